// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "millrace.hpp"

namespace millrace::test {

/// Runs a script of tests/support with the program and an empty folder, in the Python that
/// MILLRACE_TEST_PYTHON names. It exits with 77 if that lacks a library. Use it in a test, which is
/// skipped then.
inline void run_comparison(const char* script) {
  const char* const python = std::getenv("MILLRACE_TEST_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "set MILLRACE_TEST_PYTHON to a Python with the libraries";
  const TemporaryDirectory directory;
  const ProcessResult result =
      run_process(python, {std::string(MILLRACE_SOURCE_DIR) + "/tests/support/" + script,
                           std::string(MILLRACE_BINARY), directory.path().string()});
  if (result.code == 77) GTEST_SKIP() << python << " lacks one of the libraries";
  std::printf("%s", result.output.c_str());
  EXPECT_EQ(result.code, 0);
}

}  // namespace millrace::test
