// SPDX-License-Identifier: Apache-2.0
//
// main of the tests that run kernels: Kokkos lives for the whole process, with
// MILLRACE_TEST_THREADS threads (default 2, so that a race has a chance to show).
#include <gtest/gtest.h>

#include <cstdlib>

#include "device/environment.hpp"

namespace {

int test_threads() {
  const char* text = std::getenv("MILLRACE_TEST_THREADS");
  const int threads = text != nullptr ? std::atoi(text) : 2;
  return threads > 0 ? threads : 2;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // ctest asks each program for its cases: that needs no Kokkos.
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  const millrace::device::Environment environment(test_threads());
  return RUN_ALL_TESTS();
}
