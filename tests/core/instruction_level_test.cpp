// SPDX-License-Identifier: Apache-2.0
#include "core/instruction_level.hpp"

#include <fstream>
#include <iterator>

#include "tests/support/test.hpp"

namespace millrace {
namespace {

// The kernel's list of what the processor has.
TEST(InstructionLevelTest, SlowProductsAreIntelsWithoutTiles) {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.find("\nflags") == std::string::npos) GTEST_SKIP() << "/proc/cpuinfo has no flags";
  const auto has = [&](const char* word) { return text.find(word) != std::string::npos; };
  EXPECT_EQ(has_slow_bfloat16(), has("GenuineIntel") && has(" avx512_bf16") && !has(" amx_bf16"));
}

}  // namespace
}  // namespace millrace
