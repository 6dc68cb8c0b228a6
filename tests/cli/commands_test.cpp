// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "io/checkpoint.hpp"
#include "millrace_version.hpp"
#include "support.hpp"
#include "tests/io/checkpoint_fixtures.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

TEST(CommandsTest, VersionAndHelp) {
  EXPECT_EQ(run_words({"--version"}).out, fmt::format("millrace {} ({})\n", kVersion, kCommit));
  const Outcome help = run_words({"--help"});
  EXPECT_EQ(help.code, 0);
  expect_said(run_words({}), 2, {"usage: millrace <command>"});
  EXPECT_TRUE(help.out.starts_with("usage: millrace <command> [options]\n"));
  for (const CommandSpec& command : command_table()) {
    EXPECT_TRUE(contains(help.out, command.name));
    std::vector<std::string> line = words(command.name);
    line.emplace_back("--help");
    const Outcome own = run_words(line);
    EXPECT_EQ(own.code, 0);
    EXPECT_TRUE(own.out.starts_with("usage: millrace " + std::string(command.name))) << own.out;
    line.pop_back();
    line.insert(line.begin(), "help");
    EXPECT_EQ(run_words(line).out, own.out);
  }
}

// A checkpoint that was listed may be gone before it is read.
TEST(CommandsTest, AveragesFollowARunThatKeepsThree) {
  const TemporaryDirectory run;
  const fs::path folder = run.path() / "checkpoints";
  const io::SampleModel model(1);
  const auto save = [&](std::int64_t iteration) {
    (void)io::write_checkpoint(folder, io::sample_header(iteration), model.tensors());
    io::retire_checkpoints(folder, {.keep = 3});
  };
  for (const std::int64_t iteration : {1, 2, 3}) save(iteration);
  std::atomic<bool> done{false};
  std::jthread training([&] {
    for (std::int64_t iteration = 4; iteration <= 150; ++iteration) save(iteration);
    done = true;
  });
  while (!done) {
    const Outcome outcome = run_words({"average", run.path().string()});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  }
}

TEST(CommandsTest, ADialectIsRefusedWithoutItsTool) {
  if (other_trainers() != nullptr) GTEST_SKIP() << "this program reads dialects";
  for (const char* line : {"train --dialect nvidia", "train --dialect ipu --help"}) {
    const Outcome outcome = run_words(words(line));
    EXPECT_EQ(outcome.code, 2) << line;
    EXPECT_TRUE(contains(outcome.err, "see MILLRACE_TOOLS")) << outcome.err;
  }
}

TEST(CommandsTest, ACommandOfAToolThatIsLeftOutNamesTheTool) {
  for (const auto& [command, tool] : commands_left_out())
    for (const char* more : {"", " x y", " --help"}) {
      const Outcome outcome = run_words(words(std::string(command) + more));
      EXPECT_EQ(outcome.code, 2) << command << more;
      EXPECT_EQ(outcome.err, fmt::format("millrace: error: {}: this program was built without the "
                                         "tool {}: see MILLRACE_TOOLS\n",
                                         command, tool));
    }
}

TEST(CommandsTest, MistakesEndWithTwoAndOneLine) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"inspekt x", "unknown command 'inspekt'; did you mean 'inspect'?"},
      {"inspect",
       "millrace inspect needs CHECKPOINT|RUN_DIR; millrace inspect --help shows the usage"},
      {"train --help pipelin",
       "--help: 'pipelin' is not a topic of millrace train; did you mean pipeline?"},
      {"inspect a b", "unexpected argument 'b'; --help shows the usage"},
      {"inspect a --digets", "unknown option --digets; did you mean --digest?"},
      {"average a --N 0", "--N: '0' is not a whole number from 1 to 2147483647"},
      {"average a --N 2 --decay 0.5",
       "--decay 0.5 has no effect on --mode mean, which weighs all checkpoints equally: give "
       "--mode exponential, or leave it out"},
      {"average a --N 2 --mode mean --decay 0.5",
       "--decay 0.5 has no effect on --mode mean, which weighs all checkpoints equally: give "
       "--mode exponential, or leave it out"},
  };
  for (const auto& [line, expected] : table) {
    const Outcome outcome = run_words(words(line));
    EXPECT_EQ(outcome.code, 2) << line;
    EXPECT_EQ(outcome.err, "millrace: error: " + expected + "\n");
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(CommandsTest, PathThatCannotBeLookedAtIsNamed) {
  const std::string path = "/tmp/" + std::string(300, 'a');
  const Outcome outcome =
      run_words({"train", "--dataset", "imagenet", "--data-dir", path, "--no-logs"});
  EXPECT_EQ(outcome.code, 5);
  EXPECT_EQ(outcome.err, "millrace: error: " + path +
                             ": cannot be listed (File name too long): check its permissions\n");
}

TEST(CommandsTest, FileThatIsMissingEndsWithItsOwnCode) {
  const TemporaryDirectory root;
  const std::string missing = (root.path() / "none").string();
  expect_said(run_words({"inspect", missing}), 2, {missing});
}

// What a plan imposes on itself is no notice for anybody.
TEST(CommandsTest, APlanSaysNothingOfALengthThatItHasNot) {
  for (const char* name : {"habana-resnext101-8workers", "habana-resnet50-lars-1worker",
                           "surfsara-resnet50-8k", "resnet20-cifar10"}) {
    const fs::path file = fs::path(MILLRACE_SOURCE_DIR) / "configs" / (std::string(name) + ".toml");
    const Outcome plan = run_words({"plan", "--config", file.string(), "--format", "json"});
    EXPECT_EQ(plan.code, 0) << plan.err;
    EXPECT_FALSE(contains(plan.err, "ignored")) << plan.err;
    EXPECT_FALSE(contains(plan.err, "no effect")) << plan.err;
    EXPECT_FALSE(contains(plan.err, "warm")) << plan.err;
  }
}

}  // namespace
}  // namespace millrace::cli
