// SPDX-License-Identifier: Apache-2.0
//
// What a run leaves behind, what validation prints, and how errors end: message and exit code.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <thread>
#include <utility>

#include "millrace.hpp"
#include "support/sanitizers.hpp"

namespace millrace::test {
namespace {

const std::vector<std::string> kShort = {"--iterations", "4", "--no-validation"};

std::vector<std::string> with(std::vector<std::string> words,
                              const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Expects a single line on standard error and its exit code.
void expect_error(const ProcessResult& result, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.code, code) << result.output;
  const std::size_t at = result.output.find("millrace: error: ");
  ASSERT_NE(at, std::string::npos) << result.output;
  const std::string message = result.output.substr(at);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
  }
}

TEST(TrainTest, LeavesTheFilesOfARun) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  const ProcessResult result =
      train(run, {"--epochs", "2", "--validation-mode", "all", "--max-ckpts-to-keep", "0"});
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_NE(result.output.find("Total Parameters: 75290"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("\n Batch Size: 64"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find(" Saving to " + run.string()), std::string::npos) << result.output;
  for (const char* name :
       {"config.toml", "log.txt", "training.csv", "validation.csv", "metrics.jsonl",
        "checkpoints/ckpt-0", "checkpoints/ckpt-10", "checkpoints/ckpt-20"}) {
    EXPECT_TRUE(std::filesystem::exists(run / name)) << name;
  }
  const std::string training = read_text(run / "training.csv");
  EXPECT_EQ(training.find("step,iteration,epoch,lr,loss_batch,loss_avg,train_acc_batch,"
                          "train_acc_avg,it_time,img_per_sec,total_time\n"),
            0u);
  EXPECT_NE(training.find(",20,2,"), std::string::npos) << training;
  std::istringstream lines(read_text(run / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }
}

TEST(TrainTest, EveryParameterMovesFromItsStart) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train(directory / "run", with(kShort, {"--max-ckpts-to-keep", "0"})).code, 0);
  const auto tensors = [&](const char* name) {
    return nlohmann::json::parse(
        millrace({"inspect", (directory / "run/checkpoints").string() + "/" + name, "--json"})
            .output);
  };
  const auto before = tensors("ckpt-0");
  const auto after = tensors("ckpt-4");
  ASSERT_GT(before.at("tensors").size(), 50u);
  const auto manifest = [&](const char* name) {
    return nlohmann::json::parse(read_text(directory / "run/checkpoints" / name / "manifest.json"));
  };
  const auto a = manifest("ckpt-0").at("parts").at(0).at("tensors");
  const auto b = manifest("ckpt-4").at("parts").at(0).at("tensors");
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NE(a.at(i).at("crc32c"), b.at(i).at("crc32c")) << a.at(i).dump();
  }
}

void expect_predicted_peak(const ProcessResult& result) {
  ASSERT_EQ(result.code, 0) << result.output;
  std::smatch match;
  const std::regex pattern(R"(Process peak: ([0-9.]+) MB \(([0-9.]+) MB predicted\))");
  ASSERT_TRUE(std::regex_search(result.output, match, pattern)) << result.output;
  const double peak = std::stod(match[1]);
  const double predicted = std::stod(match[2]);
  EXPECT_GE(predicted, peak * 0.999) << result.output;  // printed with three digits
  EXPECT_LE(predicted, peak * 1.05) << result.output;
}

TEST(TrainTest, PredictsThePeakOfTheProcess) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the training";
  const TemporaryDirectory directory;
  for (const auto& more :
       {std::vector<std::string>{"--precision", "32.32", "--threads-per-device", "2"},
        {"--model-size", "20", "--batch-size", "128", "--gradients-to-accumulate", "1"}})
    expect_predicted_peak(train(directory / ("run" + std::to_string(more.size())),
                                with({"--iterations", "4"}, more)));
  // Large parameters and small images: initialization needs more memory than the steps.
  expect_predicted_peak(
      millrace({"train", "--dataset", "imagenet", "--synthetic-data", "--model-size", "10",
                "--image-size", "32", "--batch-size", "4", "--iterations", "3",
                "--threads-per-device", "1", "--no-validation", "--no-logs"}));
}

TEST(TrainTest, MemoryStaysFlatOverAThousandSteps) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the training";
  const TemporaryDirectory directory;
  const auto peak = [&](const char* iterations) {
    const ProcessResult result = train(
        directory / iterations,
        {"--iterations", iterations, "--batch-size", "1", "--no-validation", "--log-freq", "100"});
    EXPECT_EQ(result.code, 0) << result.output;
    std::smatch match;
    EXPECT_TRUE(std::regex_search(result.output, match, std::regex("Process peak: ([0-9.]+) MB")));
    return std::stod(match[1]);
  };
  const double few = peak("50");
  const double many = peak("1050");
  EXPECT_LE(many, few + 1.5);
}

TEST(ValidateTest, SeesEveryImageOnce) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  ASSERT_EQ(train(run, with(kShort, {"--max-ckpts-to-keep", "0"})).code, 0);
  const ProcessResult all = millrace({"validate", "--restore-path", run.string(), "--json"});
  ASSERT_EQ(all.code, 0) << all.output;
  std::istringstream lines(all.output);
  std::vector<std::int64_t> iterations;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    iterations.push_back(json.at("iteration"));
    EXPECT_EQ(json.at("images"), 200);
    EXPECT_LE(json.at("top1").get<double>(), json.at("top5").get<double>());
    EXPECT_GT(json.at("loss").get<double>(), 0.0);
  }
  EXPECT_EQ(iterations, (std::vector<std::int64_t>{0, 4}));
  // 200 images in batches of 64 leave a batch of 8; the results must equal those of batches of 200.
  const std::string one = (run / "checkpoints/ckpt-4").string();
  const auto result = [&](const char* batch) {
    return nlohmann::json::parse(
        millrace({"validate", "--restore-path", one, "--json", "--valid-batch-size", batch})
            .output);
  };
  EXPECT_EQ(result("64").at("top1"), result("200").at("top1"));
  EXPECT_NEAR(result("64").at("loss").get<double>(), result("200").at("loss").get<double>(), 1e-3);
}

TEST(ValidateTest, ModesDecideWhatIsValidatedAndKept) {
  const TemporaryDirectory directory;
  const auto rows = [&](const char* name) {
    const std::string text = read_text(directory / name / "validation.csv");
    return std::count(text.begin(), text.end(), '\n') - 1;
  };
  ASSERT_EQ(train(directory / "end", {"--epochs", "3", "--validation-mode", "end"}).code, 0);
  EXPECT_EQ(rows("end"), 3);
  EXPECT_TRUE(std::filesystem::exists(directory / "end/checkpoints/ckpt-10"));
  ASSERT_EQ(train(directory / "two",
                  {"--epochs", "4", "--epochs-between-evals", "2", "--disable-checkpoints"})
                .code,
            0);
  EXPECT_EQ(rows("two"), 2);
  EXPECT_FALSE(std::filesystem::exists(directory / "two/checkpoints/ckpt-20"));
  EXPECT_TRUE(std::filesystem::exists(directory / "two/checkpoints/ckpt-40"));
}

/// A training that runs until it gets a signal.
class Endless {
 public:
  explicit Endless(const Words& more = {})
      : thread_([this, more] {
          result_ = train(run(), Words{"--iterations", "100000", "--no-validation"} + more);
        }) {
    // The lock file names the process once it trains.
    std::string holder;
    for (int i = 0;
         i < 600 && (holder.empty() || !std::filesystem::exists(run() / "checkpoints/ckpt-0"));
         ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      holder = read_text(run() / ".lock");
    }
    EXPECT_FALSE(holder.empty()) << "it does not train";
    process_ = static_cast<pid_t>(std::strtol(holder.c_str(), nullptr, 10));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  [[nodiscard]] std::filesystem::path run() const { return directory_ / "run"; }
  void send(int signal) const {
    if (process_ > 0) kill(process_, signal);
  }
  const ProcessResult& join() {
    thread_.join();
    return result_;
  }

 private:
  TemporaryDirectory directory_;
  ProcessResult result_;
  pid_t process_ = 0;
  std::thread thread_;
};

TEST(SignalTest, RequestsToStopSaveAndEndWith75) {
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    Endless training;
    training.send(signal);
    EXPECT_EQ(training.join().code, 75) << signal;
    EXPECT_EQ(millrace({"inspect", training.run().string(), "--verify"}).code, 0) << signal;
  }
}

// As under nohup. Without it the run would end with 75.
TEST(SignalTest, AnIgnoredHangUpStaysIgnored) {
  signal(SIGHUP, SIG_IGN);
  Endless training;
  signal(SIGHUP, SIG_DFL);
  training.send(SIGHUP);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  training.send(SIGINT);
  EXPECT_EQ(training.join().code, 130);
}

TEST(SignalTest, AnInterruptionSavesAndEndsWith130) {
  Endless training;
  training.send(SIGINT);
  EXPECT_EQ(training.join().code, 130);
  EXPECT_EQ(millrace({"inspect", training.run().string(), "--verify"}).code, 0);
}

// A second request ends the process even during a long step.
TEST(SignalTest, ASecondRequestEndsAtOnce) {
  setenv("MILLRACE_MAX_ISA", "sse4.2", 1);  // makes the step long
  for (const auto& [first, signal] :
       {std::pair{SIGTERM, SIGTERM}, {SIGINT, SIGINT}, {SIGINT, SIGTERM}}) {
    Endless training({"--model-size", "110", "--precision", "32.32", "--batch-size", "8",
                      "--gradients-to-accumulate", "80"});
    training.send(first);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    training.send(signal);
    EXPECT_EQ(training.join().code, 128 + signal);
    EXPECT_EQ(millrace({"inspect", training.run().string(), "--verify"}).code, 0) << signal;
  }
  unsetenv("MILLRACE_MAX_ISA");
}

// A run that was suspended for longer than the hang timeout continues: it did not hang.
TEST(SignalTest, ASuspendedRunGoesOn) {
  Endless training({"--hang-timeout", "2"});
  training.send(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(4));
  training.send(SIGCONT);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  training.send(SIGTERM);
  EXPECT_EQ(training.join().code, 75);
}

TEST(SignalTest, ARunWhoseDirectoryIsGoneSaysSo) {
  Endless training;
  std::filesystem::rename(training.run(), training.run().parent_path() / "elsewhere");
  std::filesystem::create_directory(training.run());
  training.send(SIGTERM);
  const ProcessResult& result = training.join();
  EXPECT_EQ(result.code, 5) << result.output;
  EXPECT_NE(result.output.find("nothing more is written to it"), std::string::npos)
      << result.output;
  EXPECT_TRUE(std::filesystem::is_empty(training.run()));
}

TEST(SignalTest, FilesThatAreRemovedUnderARunComeBack) {
  Endless training({"--log-freq", "1"});
  for (const char* file : {"config.toml", "training.csv"})
    std::filesystem::remove(training.run() / file);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  training.send(SIGTERM);
  const ProcessResult& result = training.join();
  EXPECT_EQ(result.code, 75) << result.output;
  for (const char* file : {"config.toml: was removed", "training.csv: was removed"})
    EXPECT_NE(result.output.find(file), std::string::npos) << result.output;
  // A checkpoint contains its configuration.
  std::filesystem::remove(training.run() / "config.toml");
  EXPECT_EQ(
      millrace({"restore", "--restore-path", training.run().string(), "--stop-after", "1"}).code,
      75);
  EXPECT_TRUE(std::filesystem::exists(training.run() / "config.toml"));
}

// ---- errors -------------------------------------------------------------------------------------

TEST(MistakeTest, TruncatedDataNamesFileAndSizes) {
  const TemporaryDirectory directory;
  std::filesystem::copy(small_data(), directory / "cifar-10-batches-bin");
  const std::filesystem::path file = directory / "cifar-10-batches-bin" / "data_batch_1.bin";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  expect_error(millrace({"train", "--dataset", "cifar-10", "--data-dir", directory.path().string(),
                         "--run-dir", (directory / "run").string()}),
               3, {"data_batch_1.bin", "3073"});
  EXPECT_FALSE(std::filesystem::exists(directory / "run"));
}

/// Runs the program under `env` with these variables; it must end with one of our exit codes.
ProcessResult millrace_with(const Words& variables, const Words& words) {
  return run_process("/usr/bin/env", variables + Words{MILLRACE_BINARY} + words, Capture::Both);
}

TEST(EnvironmentLimitTest, FewerThreadsThanAskedForAreNamed) {
  const TemporaryDirectory directory;
  expect_error(millrace_with({"OMP_THREAD_LIMIT=1"},
                             small_training() + Words{"--threads-per-device", "2", "--run-dir",
                                                      (directory / "run").string()}),
               2, {"OMP_THREAD_LIMIT=1 allows fewer threads than the 2", "--threads-per-device 1"});
}

TEST(EnvironmentLimitTest, NoPlaceForTemporaryFilesIsNamed) {
  const TemporaryDirectory directory;
  const std::string none = (directory / "none").string();
  expect_error(millrace_with(
                   {"TMPDIR=" + none},
                   small_training() + Words{"--shards", "2", "--no-validation", "--pipeline-splits",
                                            "b2/0", "--run-dir", (directory / "run").string()}),
               5, {none + ": cannot write MPI's temporary files", "TMPDIR"});
}

TEST(MistakeTest, LabelOutOfRangeNamesRecordAndValue) {
  const TemporaryDirectory directory;
  std::filesystem::copy(small_data(), directory / "cifar-10-batches-bin");
  {
    std::fstream file(directory / "cifar-10-batches-bin/test_batch.bin",
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(3073 * 17);
    file.put(10);
  }
  expect_error(millrace({"train", "--dataset", "cifar-10", "--data-dir", directory.path().string(),
                         "--run-dir", (directory / "run").string()}),
               3, {"test_batch.bin", "17", "10"});
}

TEST(MistakeTest, DivergenceEndsWith4) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  expect_error(train(run, {"--iterations", "200", "--no-validation", "--base-learning-rate", "20"}),
               4,
               {"not finite for 20 iterations in a row", "iteration", "--base-learning-rate",
                "checkpoints"});
  EXPECT_EQ(millrace({"inspect", run.string(), "--verify"}).code, 0);
}

// Overflowing gradients leave the weights unchanged, and the checkpoint is valid.
TEST(TrainTest, GradientsThatAreNoNumbersUpdateNothing) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  const ProcessResult result =
      train(run, {"--iterations", "3", "--base-learning-rate", "20", "--precision", "32.32",
                  "--no-validation", "--optimiser", "momentum"});
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_NE(result.output.find("Skipped updates: 1 of 3"), std::string::npos) << result.output;
  EXPECT_EQ(millrace({"inspect", run.string(), "--verify"}).code, 0);
}

TEST(MistakeTest, DamagedCheckpointEndsWith6) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  ASSERT_EQ(train(run, kShort).code, 0);
  {
    std::fstream part(run / "checkpoints/ckpt-4/part-000.h5",
                      std::ios::binary | std::ios::in | std::ios::out);
    part.seekg(0, std::ios::end);
    const std::streamoff middle = part.tellg() / 2;
    part.seekg(middle);
    const char byte = static_cast<char>(part.get() ^ 1);
    part.seekp(middle);
    part.put(byte);
  }
  expect_error(millrace({"restore", "--restore-path", run.string()}), 6, {"ckpt-4", "part-000.h5"});
  expect_error(millrace({"validate", "--restore-path", run.string()}), 6, {"part-000.h5"});
  expect_error(millrace({"inspect", run.string(), "--verify"}), 6, {"1 of 1 checkpoints damaged"});
}

TEST(MistakeTest, DamagedNewestCheckpointFallsBackToTheOneBefore) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  ASSERT_EQ(train(run, {"--epochs", "2", "--no-validation", "--max-ckpts-to-keep", "2",
                        "--stop-after", "13"})
                .code,
            75);
  const std::filesystem::path part = run / "checkpoints/ckpt-13/part-000.h5";
  std::filesystem::resize_file(part, std::filesystem::file_size(part) - 100);
  const ProcessResult restored = millrace({"restore", "--restore-path", run.string()});
  EXPECT_EQ(restored.code, 0) << restored.output;
  EXPECT_NE(restored.output.find("ckpt-10"), std::string::npos) << restored.output;
}

TEST(MistakeTest, RunDirectoryThatCannotBeMadeEndsWith5) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "file") << "x";
  expect_error(train(directory / "file" / "run", kShort), 5, {"file"});
}

TEST(MistakeTest, FullDiskEndsWith5AndKeepsWhatWasSaved) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  ASSERT_EQ(train(run, with({"--iterations", "6", "--no-validation"}, {"--stop-after", "2"})).code,
            75);
  // A limit on file sizes simulates a full disk: checkpoints are larger than it, logs smaller.
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100'000, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const ProcessResult result = millrace({"restore", "--restore-path", run.string()});
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, SIG_DFL);
  expect_error(result, 5, {"ckpt-6"});
  EXPECT_EQ(millrace({"inspect", run.string(), "--verify"}).code, 0);
  EXPECT_EQ(millrace({"restore", "--restore-path", run.string()}).code, 0);
}

TEST(MistakeTest, RestoreRefusesOtherMathematicsByName) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train(directory / "run", kShort).code, 0);
  expect_error(
      millrace({"restore", "--restore-path", (directory / "run").string(), "--batch-size", "16"}),
      2, {"batch-size", "16", "32"});
}

TEST(MistakeTest, RestoreRefusesAnotherNumberOfImages) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train(directory / "run", {"--epochs", "1", "--stop-after", "3"}).code, 75);
  const std::string other = (directory / "other").string();
  ASSERT_EQ(
      millrace({"data", "generate", other, "--train-images", "704", "--test-images", "200"}).code,
      0);
  expect_error(
      millrace({"restore", "--restore-path", (directory / "run").string(), "--data-dir", other}), 3,
      {"704", "--data-dir"});
}

TEST(MistakeTest, UnknownKeyOfAFileNamesFileAndLine) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "bad.toml") << "[model]\nmodel-size = \"8\"\nmodle = \"resnet\"\n";
  expect_error(millrace({"train", "--config", (directory / "bad.toml").string()}), 2,
               {"bad.toml", "3", "modle"});
}

TEST(MistakeTest, SeveralProcessesAreRefused) {
  const TemporaryDirectory directory;
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  const ProcessResult result =
      run_process("/usr/bin/env",
                  {"ASAN_OPTIONS=detect_leaks=0",  // Open MPI leaks a little
                   "mpirun", "-n", "2", "--oversubscribe", MILLRACE_BINARY, "train", "--dataset",
                   "cifar-10", "--synthetic-data", "--run-dir", (directory / "run").string()});
  if (result.code == 127) GTEST_SKIP() << "mpirun was not found";
  EXPECT_EQ(result.code, 2) << result.output;
  EXPECT_NE(result.output.find("2 ranks cannot share 1 device(s)"), std::string::npos)
      << result.output;
  EXPECT_FALSE(std::filesystem::exists(directory / "run"));
}

TEST(MistakeTest, TwoProcessesCannotShareARunDirectory) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  ASSERT_EQ(train(run, kShort).code, 0);
  expect_error(train(run, kShort), 2, {run.string()});
}

}  // namespace
}  // namespace millrace::test
