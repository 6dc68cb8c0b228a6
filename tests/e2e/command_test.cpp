// SPDX-License-Identifier: Apache-2.0
//
// What a run leaves behind, what validation prints, and how errors end: message and exit code.
#include <signal.h>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "job.hpp"
#include "support/sanitizers.hpp"

namespace millrace::test {
namespace {

const Words kShort = "--iterations 4 --no-validation";

/// Expects a single line on standard error and its exit code.
void expect_error(const ProcessResult& result, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.code, code) << result.output;
  const std::size_t at = result.output.find("millrace: error: ");
  ASSERT_NE(at, std::string::npos) << result.output;
  const std::string message = result.output.substr(at);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
  expect_in(message, parts);
}

TEST(TrainTest, LeavesTheFilesOfARun) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(train(run, "--epochs 2 --validation-mode all --max-ckpts-to-keep 0"), 0,
             {"Total Parameters: 75290", "\n Batch Size: 64", " Saving to " + run.string()});
  for (const char* name :
       {"config.toml", "log.txt", "training.csv", "validation.csv", "metrics.jsonl",
        "checkpoints/ckpt-0", "checkpoints/ckpt-10", "checkpoints/ckpt-20"}) {
    EXPECT_TRUE(fs::exists(run / name)) << name;
  }
  expect_in(read_text(run / "training.csv"), {",20,2,"});
  for (const std::string& line : lines_of(read_text(run / "metrics.jsonl")))
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

TEST(TrainTest, MemoryStaysFlatOverAThousandSteps) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the training";
  const TemporaryDirectory directory;
  const auto peak = [&](const char* iterations) {
    const ProcessResult result =
        train(directory / iterations,
              {"--iterations", iterations, "--batch-size 1 --no-validation --log-freq 100"});
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
  const fs::path run = directory / "run";
  ASSERT_EQ(train(run, kShort + "--max-ckpts-to-keep 0").code, 0);
  const ProcessResult all = millrace({"validate --restore-path", run, "--json"});
  ASSERT_EQ(all.code, 0) << all.output;
  std::vector<std::int64_t> iterations;
  for (const std::string& line : lines_of(all.output)) {
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
        millrace({"validate --restore-path", one, "--json --valid-batch-size", batch}).output);
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
  ASSERT_EQ(train(directory / "end", "--epochs 3 --validation-mode end").code, 0);
  EXPECT_EQ(rows("end"), 3);
  EXPECT_TRUE(fs::exists(directory / "end/checkpoints/ckpt-10"));
  ASSERT_EQ(
      train(directory / "often", "--epochs 1 --validation-mode end --checkpoint-every 4").code, 0);
  EXPECT_EQ(rows("often"), 3) << "of ckpt-4, ckpt-8 and ckpt-10";
  ASSERT_EQ(
      train(directory / "two", "--epochs 4 --epochs-between-evals 2 --disable-checkpoints").code,
      0);
  EXPECT_EQ(rows("two"), 2);
  const std::string log = read_text(directory / "two/log.txt");
  expect_in(log, {"accuracy [update 20] (", "accuracy [ckpt-40] ("});
  EXPECT_FALSE(fs::exists(directory / "two/checkpoints/ckpt-20"));
  EXPECT_TRUE(fs::exists(directory / "two/checkpoints/ckpt-40"));
}

TEST(ValidateTest, APartOfTheSetIsNamed) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const std::string part = "of 64 of 200 images";
  const ProcessResult trained = train(run, "--iterations 2 --max-eval-steps 2");
  expect_end(trained, 0,
             {", " + part + ")\n", "\nTop-1 accuracy " + part + ": ", "\nUpdate 1 of 2: loss "});
  expect_not_in(trained.output, {"Trainable Variables"});
  const Words validate = {"validate --restore-path", run, "--max-eval-steps 2"};
  expect_end(millrace(validate), 0, {", " + part + ")\n"});
  const auto json = nlohmann::json::parse(millrace(validate + "--json", Capture::Output).output);
  EXPECT_EQ(json.at("images"), 64);
  EXPECT_EQ(json.at("set_images"), 200);
  const auto all = nlohmann::json::parse(
      millrace({"validate --json --restore-path", run}, Capture::Output).output);
  EXPECT_EQ(all.at("images"), 200) << "a part saves a training time";
}

TEST(ValidateTest, PartsOfOtherSizesAreNotCompared) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const Words often = "--iterations-between-evals 1 --checkpoint-every 1 --keep-best";
  expect_end(train(run, often + "--iterations 4 --stop-after 2 --max-eval-steps 1"), 75);
  const ProcessResult restored = restore(run, often + "--max-eval-steps 4 --stop-threshold 1");
  ASSERT_EQ(restored.code, 0) << restored.output;
  const std::string line =
      "\nThe validations before this one were of 32 images, this one is of 128: they are not "
      "compared, and the best starts anew\n";
  expect_in(restored.output, {line});
  EXPECT_EQ(restored.output.find(line), restored.output.rfind(line)) << "once";
  const std::regex accuracies(
      "\nTop-1 accuracy of 128 of 200 images: [0-9.]+ % after 4 updates \\(last\\)(, [0-9.]+ % "
      "after 3 \\(best\\))?\nSaved in");
  EXPECT_TRUE(std::regex_search(restored.output, accuracies)) << restored.output;
  for (const char* earlier : {"ckpt-1", "ckpt-2"})
    EXPECT_FALSE(fs::exists(run / "checkpoints" / earlier)) << earlier;
}

/// A training that runs until it gets a signal.
class Endless {
 public:
  explicit Endless(const Words& more = {})
      : job_(usual_training(run(), "--iterations 100000 --no-validation" + more)) {
    EXPECT_TRUE(job_.wait_for("ckpt-0")) << "it does not train\n" << job_.output();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  [[nodiscard]] fs::path run() const { return directory_ / "run"; }
  void send(int signal) const { job_.send(signal); }
  ProcessResult join() { return job_.wait(); }

 private:
  TemporaryDirectory directory_;
  Job job_;
};

TEST(SignalTest, RequestsToStopSaveAndEndTheRun) {
  for (const auto& [signal, code] :
       {std::pair{SIGTERM, 75}, {SIGHUP, 75}, {SIGUSR1, 75}, {SIGUSR2, 75}, {SIGINT, 130}}) {
    Endless training;
    training.send(signal);
    EXPECT_EQ(training.join().code, code) << signal;
    EXPECT_EQ(millrace({"inspect", training.run(), "--verify"}).code, 0) << signal;
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

// A second request ends the process even during a long step.
TEST(SignalTest, ASecondRequestEndsAtOnce) {
  setenv("MILLRACE_MAX_ISA", "sse4.2", 1);  // makes the step long
  for (const auto& [first, signal] :
       {std::pair{SIGTERM, SIGTERM}, {SIGINT, SIGINT}, {SIGINT, SIGTERM}}) {
    Endless training(
        "--model-size 110 --precision 32.32 --batch-size 8 --gradients-to-accumulate 80");
    training.send(first);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    training.send(signal);
    EXPECT_EQ(training.join().code, 128 + signal);
    EXPECT_EQ(millrace({"inspect", training.run(), "--verify"}).code, 0) << signal;
  }
  unsetenv("MILLRACE_MAX_ISA");
}

TEST(SignalTest, ARunWhoseDirectoryIsGoneSaysSo) {
  Endless training;
  fs::rename(training.run(), training.run().parent_path() / "elsewhere");
  fs::create_directory(training.run());
  training.send(SIGTERM);
  expect_end(training.join(), 5, {"nothing more is written to it"});
  EXPECT_TRUE(fs::is_empty(training.run()));
}

TEST(SignalTest, FilesThatAreRemovedUnderARunComeBack) {
  Endless training("--log-freq 1");
  for (const char* file : {"config.toml", "training.csv"}) fs::remove(training.run() / file);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  training.send(SIGTERM);
  expect_end(training.join(), 75, {"config.toml: was removed", "training.csv: was removed"});
  // A checkpoint contains its configuration.
  fs::remove(training.run() / "config.toml");
  EXPECT_EQ(restore(training.run(), "--stop-after 1").code, 75);
  EXPECT_TRUE(fs::exists(training.run() / "config.toml"));
}

// ---- errors -------------------------------------------------------------------------------------

TEST(EnvironmentLimitTest, WhatTheEnvironmentDoesNotAllowIsNamed) {
  const TemporaryDirectory directory;
  const Words run = small_training() + Words{"--run-dir", directory / "run"};
  expect_error(millrace_with({"OMP_THREAD_LIMIT=1"}, run + "--threads-per-device 2"), 2,
               {"OMP_THREAD_LIMIT=1 allows fewer threads than the 2", "--threads-per-device 1"});
  const std::string none = (directory / "none").string();
  expect_error(
      millrace_with({"TMPDIR=" + none}, run + "--shards 2 --no-validation --pipeline-splits b2/0"),
      5, {none + ": cannot write MPI's temporary files", "TMPDIR"});
}

// libgomp reads its variables before the program runs, so the program has to start itself again.
TEST(ThreadWaitsTest, AreBriefUnlessTheUserSaysOtherwise) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "there is one core only";
  const Words bench =
      "bench -v --dataset cifar-10 --model-size 8 --batch-size 4 --steps 1 --warmup-steps 0 "
      "--threads-per-device";
  const std::string set = "Environment: GOMP_SPINCOUNT=";
  expect_end(millrace(bench + "2"), 0, {set + "5000\n"});
  expect_end(millrace_with("GOMP_SPINCOUNT=7", bench + "2"), 0, {set + "7\n"});
  for (const ProcessResult& left :
       {millrace_with("OMP_WAIT_POLICY=active", bench + "2"), millrace(bench + "1")}) {
    expect_end(left, 0);
    expect_not_in(left.output, {set});
  }
}

TEST(MistakeTest, DivergenceEndsWith4) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_error(train(run, "--iterations 200 --no-validation --base-learning-rate 20"), 4,
               {"not finite for 20 iterations in a row", "iteration", "--base-learning-rate",
                "checkpoints"});
  EXPECT_EQ(millrace({"inspect", run, "--verify"}).code, 0);
}

TEST(MistakeTest, DamagedNewestCheckpointFallsBackToTheOneBefore) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  ASSERT_EQ(train(run, "--epochs 2 --no-validation --max-ckpts-to-keep 2 --stop-after 13").code,
            75);
  const fs::path part = run / "checkpoints/ckpt-13/part-000.h5";
  fs::resize_file(part, fs::file_size(part) - 100);
  expect_end(restore(run), 0, {"ckpt-10"});
  for (const auto& checkpoint : fs::directory_iterator(run / "checkpoints"))
    fs::resize_file(checkpoint.path() / "part-000.h5", 1000);
  expect_error(restore(run), 6, {"part-000.h5"});
}

TEST(MistakeTest, DamagedOlderCheckpointsAreLeftOutAndSaid) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  ASSERT_EQ(
      train(
          run,
          "--epochs 3 --validation-mode end --max-ckpts-to-keep 0 --weight-avg-N 3 --stop-after 25")
          .code,
      75);
  const fs::path part = run / "checkpoints/ckpt-20/part-000.h5";
  fs::resize_file(part, fs::file_size(part) - 100);
  expect_end(restore(run), 0,
             {"it is not validated", "it is left out of the average",
              "Saved the average of 2 checkpoints"});
  const std::string rows = read_text(run / "validation.csv");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 1 + 2 + 1) << rows;
}

/// What a command ends with, without numbers: processes differ by some bytes.
std::string last_error(const ProcessResult& result) {
  const std::size_t at = result.output.rfind("millrace: error: ");
  if (at == std::string::npos) return "none";
  return std::regex_replace(result.output.substr(at), std::regex("[0-9.]+"), "N");
}

TEST(MistakeTest, CompileOnlyFindsWhatAStartWouldFind) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  ASSERT_EQ(train(run, kShort).code, 0);
  const fs::path fresh = directory / "new" / "fresh";
  std::ofstream(directory / "file") << "x";
  const std::vector<std::pair<Words, int>> cases = {
      {{"--init-path", directory / "nowhere"}, 2},
      {{"--init-path", directory / "nowhere.onnx"}, 5},
      {{"--model-size 14 --init-path", run}, 6},
      {{"--init-path", run, "--init-fresh logits"}, 2},
      {"--device-memory 1MB", 2},
      {"--device-memory 1MB --shards 2 --pipeline-splits b2/0", 2},
      {"--weight-avg-N 5", 2},
      {{"--export-dir", directory / "file" / "export"}, 5},
      {{"--trace", directory / "file" / "trace.json"}, 5},
      {"", 0},
  };
  for (const auto& [words, code] : cases) {
    SCOPED_TRACE(testing::PrintToString(words));
    const ProcessResult checked = train(fresh, kShort + words + "--compile-only");
    EXPECT_EQ(checked.code, code) << checked.output;
    EXPECT_FALSE(fs::exists(directory / "new"));
    const ProcessResult started = train(directory / "other", kShort + words);
    EXPECT_EQ(started.code, code) << started.output;
    EXPECT_EQ(last_error(checked), last_error(started));
  }
  // A run is there already: it is neither begun again nor continued as another one.
  expect_end(train(run, kShort + "--compile-only"), 2, {run.string() + ": already exists"});
  expect_error(train(run, kShort), 2, {run.string()});
  expect_error(restore(run, "--batch-size 16"), 2, {"batch-size", "16", "32"});
}

TEST(MistakeTest, RestoreRefusesAnotherNumberOfImages) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train(directory / "run", "--epochs 1 --stop-after 3").code, 75);
  const std::string other = (directory / "other").string();
  ASSERT_EQ(millrace({"data generate", other, "--train-images 704 --test-images 200"}).code, 0);
  expect_error(millrace({"restore --restore-path", directory / "run", "--data-dir", other}), 3,
               {"704", "--data-dir"});
}

// A path may hold anything; a line end in it must not begin a line of its own.
TEST(TrainTest, ThePathOfARunCannotBeginALine) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "a\nmillrace: error: b\033[2J";
  const std::string shown = (directory / "a\\nmillrace: error: b\\x1b[2J").string();
  const ProcessResult trained = train(run, "--iterations 1");
  EXPECT_EQ(trained.code, 0) << trained.output;
  expect_in(trained.output, {" Saving to " + shown + "\n", "Saved checkpoint to " + shown});
  expect_in(read_text(run / "log.txt"), {" Saving to " + shown + "\n"});
  const ProcessResult again = train(run, "--iterations 1");
  for (const ProcessResult& result :
       {trained, again, restore(run, "--iterations 2"), millrace({"validate --restore-path", run}),
        millrace({"export", run, "--to hdf5"}), millrace({"export", run}),
        millrace({"inspect", run, "--verify"}),
        millrace({"import", run / "resnet-8.safetensors", directory / "again"})}) {
    EXPECT_EQ(result.output.find('\033'), std::string::npos) << result.output;
    expect_not_in(result.output, {"\nmillrace: error: b"});
  }
}

}  // namespace
}  // namespace millrace::test
