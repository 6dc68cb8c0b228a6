// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "cli/option_text.hpp"
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
  for (const Field& spec : field_table())
    EXPECT_TRUE(testing::contains(text, "| `" + std::string(spec.name) + "` |")) << spec.name;
}

}  // namespace
}  // namespace millrace::cli
