// SPDX-License-Identifier: Apache-2.0
#include "device/queues.hpp"

#include "device/arena.hpp"
#include "device/compat.hpp"
#include "tests/support/test.hpp"

namespace millrace::device {
namespace {

/// Multiplies a number on the device, then adds.
struct MultiplyAndAdd {
  std::int64_t* number;
  std::int64_t factor;
  std::int64_t summand;
  KOKKOS_FUNCTION void operator()(std::int64_t) const { *number = *number * factor + summand; }
};

constexpr std::int64_t kBytes = sizeof(std::int64_t);

/// A number of the device and one of the host, for copies.
class QueuesTest : public testing::Test {
 protected:
  [[nodiscard]] std::byte* device() const { return arena_.at(0); }
  [[nodiscard]] std::int64_t* number() const {
    return reinterpret_cast<std::int64_t*>(arena_.at(0));
  }
  [[nodiscard]] std::byte* host() const { return host_.get(); }
  void set_host(std::int64_t value) { std::memcpy(host(), &value, kBytes); }
  [[nodiscard]] std::int64_t host_value() const {
    std::int64_t value = 0;
    std::memcpy(&value, host(), kBytes);
    return value;
  }
  [[nodiscard]] std::int64_t device_value() const {
    std::int64_t value = 0;
    copy_to_host(reinterpret_cast<std::byte*>(&value), device(), kBytes);
    return value;
  }
  void compute(std::int64_t factor, std::int64_t summand) {
    parallel("compute", space_, 1, MultiplyAndAdd{number(), factor, summand});
  }

  ExecutionSpace space_;
  Arena arena_{kBytes};
  std::shared_ptr<std::byte> host_ = host_buffer(kBytes);
};

TEST_F(QueuesTest, AnEventThatWasNeverMarkedIsReached) {
  const Event event;
  EXPECT_TRUE(event.reached());
  event.wait();
}

TEST_F(QueuesTest, AnEventIsReachedWhenTheKernelsBeforeItAreDone) {
  Event event;
  compute(0, 3);
  event.mark(space_);
  while (!event.reached()) continue;
  set_host(0);
  SideQueue copies;
  copies.to_host(host(), device(), kBytes);
  copies.wait();
  EXPECT_EQ(host_value(), 3);
}

TEST_F(QueuesTest, CopiesWaitForKernelsAndKernelsForCopies) {
  SideQueue copies;
  for (const std::int64_t round : {1, 2, 3, 4}) {  // copies may be early or late, in turns
    Event computed;
    Event copied;
    compute(0, round);
    computed.mark(space_);
    copies.wait_for(computed);
    copies.to_host(host(), device(), kBytes);
    copies.mark(copied);
    wait_for(space_, copied);
    compute(0, -1);  // must not come before the copy
    fence(space_);
    EXPECT_EQ(host_value(), round);
    EXPECT_EQ(device_value(), -1);
  }
}

TEST_F(QueuesTest, KernelsWaitForWhatWasUploaded) {
  SideQueue uploads;
  for (const std::int64_t round : {5, 6, 7, 8}) {
    set_host(round);
    Event uploaded;
    uploads.to_device(device(), host(), kBytes);
    uploads.mark(uploaded);
    wait_for(space_, uploaded);
    compute(10, 1);
    EXPECT_EQ(device_value(), 10 * round + 1);
  }
}

TEST_F(QueuesTest, AQueueOfALibraryWaitsForKernelsAndKernelsForIt) {
  SideQueue library(SideQueue::Served::First);
  EXPECT_EQ(library.handle() != nullptr, kHasSideQueues);
  Event computed;
  Event passed;
  compute(0, 4);
  computed.mark(space_);
  library.wait_for(computed);
  library.mark(passed);
  wait_for(space_, passed);
  compute(2, 1);
  while (!passed.reached()) continue;
  EXPECT_TRUE(computed.reached());
  EXPECT_EQ(device_value(), 9);
}

TEST_F(QueuesTest, ADeviceWithQueuesKnowsItsPlace) {
  EXPECT_EQ(!device_place().empty(), kHasSideQueues);
  EXPECT_EQ(device_place(), device_place());
}

TEST_F(QueuesTest, ACopyInTheQueueOfKernelsKeepsItsPlace) {
  set_host(2);
  compute(0, 100);
  queue_copy(space_, Direction::ToDevice, device(), host(), kBytes);
  compute(3, 1);
  fence(space_);
  EXPECT_EQ(device_value(), 7);
  queue_clear(space_, device(), kBytes);
  compute(1, 4);
  queue_copy(space_, Direction::ToHost, host(), device(), kBytes);
  compute(1, 1);
  fence(space_);
  EXPECT_EQ(host_value(), 4);
}

TEST_F(QueuesTest, TimesOfEventsAreThoseOfTheWork) {
  Event begin;
  Event middle;
  Event end;
  begin.mark(space_);
  compute(0, 1);
  middle.mark(space_);
  compute(0, 2);
  end.mark(space_);
  end.wait();
  EXPECT_GE(begin.nanoseconds_until(middle), 0);
  EXPECT_GE(begin.nanoseconds_until(end), begin.nanoseconds_until(middle));
}

TEST_F(QueuesTest, AnEventCanBeMoved) {
  Event first;
  compute(0, 9);
  first.mark(space_);
  const Event second = std::move(first);
  second.wait();
  EXPECT_TRUE(second.reached());
}

}  // namespace
}  // namespace millrace::device
