// SPDX-License-Identifier: Apache-2.0
#include "cli/recorded_runs.hpp"

#include "cli/command_line.hpp"
#include "io/checkpoint.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

class RecordedRunsTest : public ::testing::Test {
 protected:
  /// A run with a checkpoint that was written this many hours ago.
  fs::path make_run(const std::string& name, int hours) const {
    const fs::path run = root_.path() / name;
    fs::create_directories(run);
    std::ofstream(run / "config.toml") << "\n";
    io::CheckpointHeader header;
    header.iteration = 3;
    const fs::path checkpoint = write_small_checkpoint(run, header);
    fs::last_write_time(checkpoint, fs::file_time_type::clock::now() - std::chrono::hours(hours));
    return run;
  }
  /// What a line means for --restore-path, and what is said.
  struct Meant {
    std::string path;
    std::vector<std::string> said;
  };
  static Meant meant_by(const std::string& line, Command command = Command::Validate) {
    CommandLine translation = read_command_line(command, words(line), 0, environment_of({}));
    std::vector<std::string> said = find_recorded_runs(translation);
    return {translation.options.text("restore-path").value_or(""), std::move(said)};
  }
  [[nodiscard]] std::string root() const { return root_.path().string(); }

  TemporaryDirectory root_;
};

TEST_F(RecordedRunsTest, TheOnlyRunInAFolderIsTaken) {
  const std::string run = make_run("RN20_a", 1).string();
  fs::create_directories(root_.path() / "other");  // no run
  fs::create_directories(root_.path() / "begun/checkpoints");
  std::ofstream(root_.path() / "begun/config.toml") << "\n";  // nothing to validate
  for (const Command command : {Command::Validate, Command::Restore}) {
    const Meant meant = meant_by("--restore-path " + root(), command);
    EXPECT_EQ(meant.path, run);
    EXPECT_EQ(meant.said, (std::vector<std::string>{"--restore-path " + root() +
                                                    ": taking the only run in it, " + run}));
  }
  CommandLine line{.command = Command::Export, .arguments = {root()}};
  EXPECT_EQ(find_recorded_runs(line).size(), 1u);
  EXPECT_EQ(line.arguments.front(), run);
  // A report is about any run, and so this folder has two.
  line = {.command = Command::Report, .arguments = {root()}};
  expect_in(failure_of([&] { (void)find_recorded_runs(line); }).text, {"holds 2 runs"});
}

TEST_F(RecordedRunsTest, ARunOrCheckpointIsTakenAsItIs) {
  const fs::path run = make_run("RN20_a", 1);
  make_run("RN20_a/averages/mean", 1);
  for (const fs::path& path : {run, run / "checkpoints", run / "checkpoints/ckpt-3"}) {
    const Meant meant = meant_by("--restore-path " + path.string());
    EXPECT_EQ(meant.path, path.string());
    EXPECT_TRUE(meant.said.empty());
  }
  EXPECT_EQ(meant_by("--restore-path /nonexistent").path, "/nonexistent");
}

TEST_F(RecordedRunsTest, SeveralRunsAreListed) {
  const std::string old = make_run("a", 5).string();
  const std::string newest = make_run("c", 1).string();
  const std::string middle = make_run("b", 3).string();
  expect_refusal(ErrorKind::Usage,
                 "--restore-path " + root() +
                     ": holds 3 runs: give the path of one of them, the newest first: " + newest +
                     ", " + middle + ", " + old,
                 [&] { (void)meant_by("--restore-path " + root()); });
}

TEST_F(RecordedRunsTest, OfManyRunsTheNewestAreListed) {
  std::vector<std::string> runs;
  for (const int hours : {4, 7, 2, 6, 1, 3, 5}) {
    const std::string name(1, static_cast<char>('h' - hours));
    runs.push_back(make_run(name, hours).string());
  }
  std::ranges::sort(runs, std::greater<>());  // "g" is the newest
  EXPECT_TRUE(failure_of([&] { (void)meant_by("--restore-path " + root()); })
                  .text.ends_with("the newest first: " +
                                  join(std::vector(runs.begin(), runs.begin() + 5), ", ") +
                                  " and 2 older ones"));
}

// Every trainer evaluates with the directory that its training was given.
TEST_F(RecordedRunsTest, TheDirectoryOfATrainingMeansItsNewestRun) {
  if (other_trainers() == nullptr) GTEST_SKIP() << "built without dialects";
  const std::string old = make_run("a", 5).string();
  const std::string newest = make_run("b", 1).string();
  const std::pair<std::string, std::string> lines[] = {
      {"--dialect nvidia --mode evaluate --results_dir ", "--results_dir"},
      {"--dialect nvidia --mode=evaluate --log_dir ", "--log_dir"},
      {"--dialect habana imagenet_main.py --eval_only --model_dir ", "--model_dir"},
      {"--dialect habana imagenet_main.py --eval_only -md ", "-md"},
      {"--dialect surfsara resnet_eval.py --model_dir ", "--model_dir"},
      {"--dialect nvidia ./scripts/RN50_FP16_EVAL.sh . data ", "RN50_FP16_EVAL.sh"},
      {"--dialect ipu python3 validation.py --restore-path ", "--restore-path"},
      {"--dialect ipu restore.py --restore-path ", "--restore-path"}};
  for (const auto& [line, spelled] : lines) {
    const Meant meant = meant_by(line + root(), Command::Train);
    EXPECT_EQ(meant.path, newest) << line;
    EXPECT_EQ(meant.said, (std::vector<std::string>{
                              spelled + " " + root() + ": taking the newest run in it, " + newest +
                              "; to choose another, give its path, the newest first: " + old}));
  }
}

// What is no directory is refused in the same words by all commands.
TEST_F(RecordedRunsTest, EveryCommandSaysWhatToGiveInPlaceOfAFile) {
  const fs::path run = make_run("run", 1);
  const fs::path foreign = root_.path() / "w.pth";
  std::ofstream(foreign) << "weights";
  const fs::path exported = root_.path() / "w.h5";
  io::write_merged(io::CheckpointReader(run / "checkpoints" / "ckpt-3"), exported);
  const fs::path part = run / "checkpoints" / "ckpt-3" / "part-000.h5";
  const auto is_file = [](const fs::path& path) {
    return path.string() + ": is a file, not a run: ";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "the path of the run is empty: give a run directory or a checkpoint"},
      {root() + "/none", root() + "/none: no such directory: give a run directory or a checkpoint"},
      {foreign, is_file(foreign) + "millrace import " + foreign.string() +
                    " RUN_DIR makes a run of the weights in it; give that run"},
      {exported, is_file(exported) + "give the run that millrace wrote it from"},
      {part, is_file(part) + "give " + part.parent_path().string() + ", where it lies"},
      {run / "config.toml",
       is_file(run / "config.toml") + "give " + run.string() + ", where it lies"}};
  for (const char* command :
       {"restore", "validate --restore-path", "predict", "inspect", "export", "average", "report",
        "train --dataset cifar-10 --synthetic-data --no-logs --init-path"})
    for (const auto& [path, said] : cases) {
      if (!has_command(words(command).front())) continue;
      const bool is_weights = path.ends_with(".pth") || path.ends_with(".h5");
      if (is_weights && contains(command, "init-path")) continue;  // it begins with them
      if (path.empty() && contains(command, "-path")) continue;    // an option needs a value
      std::vector<std::string> line = words(command);
      line.push_back(path);
      const Outcome outcome = run_words(line);
      EXPECT_EQ(outcome.code, 2) << command;
      EXPECT_TRUE(contains(outcome.err, "error: " + said + "\n")) << command << ": " << outcome.err;
    }
}

}  // namespace
}  // namespace millrace::cli
