// SPDX-License-Identifier: Apache-2.0
//
// That the fake device shows the mistakes it is there for. Part of the preset fake-device only.
#include "device/fake_device.hpp"

#include <sys/mman.h>
#include <csignal>

#include "device/arena.hpp"
#include "device/compat.hpp"
#include "tests/support/test.hpp"

namespace millrace::device {
namespace {

class FakeDevice : public testing::Test {
 protected:
  FakeDevice() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

/// Of memory that is closed to the host.
class ClosedMemory : public FakeDevice {
 protected:
  void SetUp() override {
    if (kHostReadable) GTEST_SKIP() << "unified memory is open to the host";
  }
};

/// Adds to a number, which may lie on the host: only the fake device can do that.
struct Add {
  std::int64_t* number;
  std::int64_t amount;
  void operator()(std::int64_t) const { *number += amount; }
};

std::int64_t read(const Arena& arena) {
  std::int64_t value = 0;
  copy_to_host(reinterpret_cast<std::byte*>(&value), arena.at(0), sizeof value);
  return value;
}

/// Expects that a process which does this with memory of the device is killed.
template <class Use>
void expect_killed(const Use& use) {
  EXPECT_EXIT(
      {
        const Arena arena(64);
        use(arena);
        std::_Exit(0);
      },
      testing::KilledBySignal(SIGSEGV), "");
}

void look(const Arena& arena) { (void)*reinterpret_cast<const volatile char*>(arena.at(0)); }

TEST_F(ClosedMemory, EndsAProcessWhoseHostReadsItsMemory) { expect_killed(look); }

TEST_F(ClosedMemory, EndsAProcessWhoseHostWritesItsMemory) {
  expect_killed([](const Arena& arena) { *reinterpret_cast<volatile char*>(arena.at(0)) = 1; });
}

TEST_F(ClosedMemory, ClosesItsMemoryAgainAfterACopy) {
  expect_killed([](const Arena& arena) {
    static_cast<void>(read(arena));
    look(arena);
  });
}

// As on processors without protection keys.
TEST_F(ClosedMemory, IsClosedWithoutProtectionKeys) {
  EXPECT_EXIT(
      {
        while (pkey_alloc(0, 0) >= 0) continue;
        const Arena arena(64);
        static_cast<void>(read(arena));
        look(arena);
        std::_Exit(0);
      },
      testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(FakeDevice, RunsKernelsWhenSomebodyWaits) {
  const ExecutionSpace space;
  std::int64_t number = 0;
  parallel("add", space, 1, Add{&number, 3});
  EXPECT_EQ(number, 0);
  fence(space);
  EXPECT_EQ(number, 3);
}

TEST_F(FakeDevice, KeepsOrderAndCopiesFunctors) {
  const ExecutionSpace space;
  const Arena arena(64);
  auto* const number = reinterpret_cast<std::int64_t*>(arena.at(0));
  Add add{number, 1};
  parallel("add", space, 1, add);
  add.amount = 100;  // the launched kernel has its own copy
  call_library(space, [number] { *number *= 10; });
  parallel("add", space, 1, Add{number, 5});
  EXPECT_EQ(read(arena), 15);
}

TEST_F(FakeDevice, ReleasesMemoryAfterTheKernelsThatUseIt) {
  const ExecutionSpace space;
  {
    const Arena arena(64);
    parallel("add", space, 1, Add{reinterpret_cast<std::int64_t*>(arena.at(0)), 1});
  }
  fence(space);  // nothing is left that would write to released memory
}

TEST_F(FakeDevice, OpensForAsLongAsSomebodyHasAccess) {
  const Arena arena(64);
  const fake::Access outer;
  { const fake::Access inner; }
  EXPECT_EQ(*reinterpret_cast<const char*>(arena.at(0)), 0);
}

}  // namespace
}  // namespace millrace::device
