// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/world.hpp"
#include "tests/support/test.hpp"

namespace millrace::test {

/// Tests of two processes, run by mpirun with MILLRACE_TEST_RANKS; skipped elsewhere.
template <class Base>
class OverTwoRanks : public Base {
 protected:
  void SetUp() override {
    if (std::getenv("MILLRACE_TEST_RANKS") == nullptr) GTEST_SKIP() << "needs mpirun";
    ASSERT_EQ(world().size(), 2);
  }
  /// Shared by all tests, as MPI starts once per process.
  static const comm::World& world() {
    static const comm::World shared;
    return shared;
  }
};
using TwoRanks = OverTwoRanks<testing::Test>;

}  // namespace millrace::test
