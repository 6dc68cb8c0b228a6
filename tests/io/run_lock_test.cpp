// SPDX-License-Identifier: Apache-2.0
#include "io/run_lock.hpp"

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <thread>

#include "tests/io/fixtures.hpp"

namespace millrace::io {
namespace {

struct RunLockTest : testing::Test {
  const TemporaryDirectory directory;
};

TEST_F(RunLockTest, SecondHolderIsRefusedWithTheFirstOnesProcessId) {
  const RunLock first(directory.path());
  expect_error(ErrorKind::Usage,
               {directory.path().string(), "is in use by process " + std::to_string(::getpid())},
               [&] { const RunLock second(directory.path()); });
}

TEST_F(RunLockTest, IsFreeAfterwards) {
  { const RunLock lock(directory.path()); }
  EXPECT_NO_THROW(RunLock(directory.path()));
}

TEST_F(RunLockTest, LockOfAKilledProcessIsTakenOver) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const RunLock lock(directory.path());
    static_cast<void>(!::write(ready[1], "x", 1));
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  expect_error(ErrorKind::Usage, {"process " + std::to_string(child)},
               [&] { const RunLock lock(directory.path()); });
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_NO_THROW(RunLock(directory.path()));
  ::close(ready[0]);
  ::close(ready[1]);
}

// The holder has ended, but its files are not closed yet.
TEST_F(RunLockTest, WaitsForAHolderThatIsEnding) {
  std::optional<RunLock> first(directory.path());
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  std::ofstream(directory / ".lock") << gone << '\n';
  std::jthread end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    first.reset();
  });
  EXPECT_NO_THROW(RunLock(directory.path()));
}

// A restart may be quicker than the end of the process before it.
TEST_F(RunLockTest, WaitsForAHolderThatLeavesSoon) {
  std::optional<RunLock> first(directory.path());
  std::jthread end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    first.reset();
  });
  EXPECT_NO_THROW(RunLock(directory.path()));
}

TEST_F(RunLockTest, MissingDirectoryIsAnIoError) {
  expect_error(ErrorKind::Io, {"none/.lock", "No such file"},
               [&] { const RunLock lock(directory / "none"); });
}

}  // namespace
}  // namespace millrace::io
