// SPDX-License-Identifier: Apache-2.0
//
// The plan in README.md is what the program prints.
#include "millrace.hpp"

namespace millrace::test {
namespace {

/// A call of `plan` and the lines that a page shows below it.
struct ShownPlan {
  Words words;
  std::string output;
};

ShownPlan plan_in(const fs::path& path) {
  std::ifstream page(path);
  const std::string call = "$ build/default/millrace plan ";
  ShownPlan shown;
  std::string line;
  while (std::getline(page, line) && !line.starts_with(call)) continue;
  line = "plan " + line.substr(std::min(call.size(), line.size()));
  for (std::string next; line.ends_with('\\') && std::getline(page, next);)
    line = line.substr(0, line.size() - 1) + next;
  shown.words = Words(line.c_str());
  while (std::getline(page, line) && line != "```") shown.output += line + "\n";
  return shown;
}

// The memory column is that of AVX2 and of the oneDNN that most machines have.
TEST(ReadmeTest, ShowsWhatThePlanPrints) {
#ifdef MILLRACE_FAKE_DEVICE
  GTEST_SKIP() << "the fake device needs other memory";
#endif
  const ShownPlan shown = plan_in(fs::path(MILLRACE_SOURCE_DIR) / "README.md");
  ASSERT_GT(shown.words.size(), 3u) << "README.md shows no plan";
  const Words call = Words{"MILLRACE_MAX_ISA=avx2", std::string(MILLRACE_BINARY)} + shown.words;
  const ProcessResult all = run_process("/usr/bin/env", call);
  if (all.output.find("Kernels: own loops avx2; oneDNN 2.6") == std::string::npos)
    GTEST_SKIP() << "this processor or build has kernels with other memory:\n" << all.output;
  const ProcessResult plan = run_process("/usr/bin/env", call, Capture::Output);
  ASSERT_EQ(plan.code, 0) << all.output;
  EXPECT_EQ(plan.output.substr(0, shown.output.size()), shown.output)
      << "README.md: write these lines again";
}

}  // namespace
}  // namespace millrace::test
