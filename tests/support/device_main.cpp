// SPDX-License-Identifier: Apache-2.0
//
// main() of the tests that run kernels. Kokkos lives as long as the process and uses
// MILLRACE_TEST_THREADS threads (default 2, so that races can show). With MILLRACE_TEST_OTHER_LEVEL
// the tests are skipped if MILLRACE_MAX_ISA changes nothing on this machine.
#include "core/instruction_level.hpp"
#include "device/environment.hpp"
#include "tests/support/test.hpp"

namespace {

int test_threads() {
  const char* text = std::getenv("MILLRACE_TEST_THREADS");
  const int threads = text != nullptr ? std::atoi(text) : 2;
  return threads > 0 ? threads : 2;
}

/// Libraries know levels above AVX-512; this program does not.
bool is_own_level() {
  using millrace::InstructionLevel;
  const auto cap = millrace::level_cap();
  return cap && cap == millrace::machine_level() && *cap != InstructionLevel::Avx512;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Listing the tests for ctest needs no Kokkos.
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  if (std::getenv("MILLRACE_TEST_OTHER_LEVEL") != nullptr && is_own_level()) {
    std::cout << "skipped: this is the machine's own level, at which the tests run anyway\n";
    constexpr int kSkipped = 77;
    return kSkipped;
  }
  const millrace::device::Environment environment(test_threads());
  return RUN_ALL_TESTS();
}
