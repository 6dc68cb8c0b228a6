// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "cli/commands.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

TEST(ReferenceTest, CommittedPageIsTheGeneratedOne) {
  std::ifstream in(std::filesystem::path(MILLRACE_SOURCE_DIR) / "configs" / "README.md");
  ASSERT_TRUE(in) << "configs/README.md is missing";
  std::ostringstream committed;
  committed << in.rdbuf();
  EXPECT_EQ(committed.str(), option_reference())
      << "write it again: millrace --write-option-reference configs/README.md";
}

TEST(ReferenceTest, NamesEveryOption) {
  const std::string text = option_reference();
  for (const OptionSpec& spec : option_table())
    EXPECT_TRUE(testing::contains(text, "| `" + std::string(spec.name) + "` |")) << spec.name;
}

TEST(HelpTest, ListsEveryOptionOfTheCommandWithDefaultsAndUnits) {
  const std::string text = command_help(command_table().front());  // of train
  EXPECT_TRUE(text.starts_with("usage: millrace train [options]\n")) << text;
  EXPECT_TRUE(testing::contains(text, "\nModel:\n"));
  for (const char* family : {"ResNet and ResNeXt", "ResNeXt", "SqueezeNet", "EfficientNet"})
    EXPECT_TRUE(testing::contains(text, "\n" + std::string(family) + ":\n")) << family;
  EXPECT_TRUE(testing::contains(text, "--batch-size N"));
  EXPECT_TRUE(testing::contains(text, "or $DATA_DIR"));
  EXPECT_TRUE(testing::contains(text, "default 0.97"));
  for (const OptionSpec& spec : option_table()) {
    const std::string name = "  --" + std::string(spec.name);
    const bool listed = testing::contains(text, name + " ") ||
                        testing::contains(text, name + ",") || testing::contains(text, name + "\n");
    EXPECT_EQ(listed, spec.taken_by(Command::Train)) << spec.name;
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

}  // namespace
}  // namespace millrace::cli
