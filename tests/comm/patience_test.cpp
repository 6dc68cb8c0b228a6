// SPDX-License-Identifier: Apache-2.0
#include "comm/world.hpp"

#include <sys/resource.h>

#include "tests/support/test.hpp"

namespace millrace::comm {
namespace {

/// How often this thread has given up its core of its own accord.
long sleeps_so_far() {
  rusage usage = {};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

constexpr int kPauses = 100;

long sleeps_in(Patience patience) {
  const long before = sleeps_so_far();
  for (int i = 0; i < kPauses; ++i) patience.pause();
  return sleeps_so_far() - before;
}

TEST(PatienceTest, SleepsOnlyWhereCoresAreSharedAndNotForMessagesAboutToArrive) {
  EXPECT_EQ(sleeps_in(Patience(false)), 0);
  EXPECT_GE(sleeps_in(Patience(true)), kPauses / 2);
  Patience shortly(true);
  const long before = sleeps_so_far();
  for (int i = 0; i < 10; ++i) shortly.pause();
  EXPECT_EQ(sleeps_so_far() - before, 0);
}

}  // namespace
}  // namespace millrace::comm
