// SPDX-License-Identifier: Apache-2.0
//
// A device whose memory the host may read and write, and whose kernels wait in a queue
// nevertheless: who reads waits first, as with the unified memory of a GPU.
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/queues.hpp"
#include "tests/support/test.hpp"

namespace millrace::device {
namespace {

static_assert(kHostReadable && !kOnCores && kHasQueues);

constexpr std::int64_t kNumbers = 1000;

struct Double {
  std::int64_t* numbers;
  void operator()(std::int64_t i) const { numbers[i] *= 2; }
};

class UnifiedMemory : public testing::Test {
 protected:
  [[nodiscard]] std::int64_t* numbers() const {
    return reinterpret_cast<std::int64_t*>(arena_.at(0));
  }
  void queue() { parallel("double", space_, kNumbers, Double{numbers()}); }

  ExecutionSpace space_;
  Arena arena_{kNumbers * static_cast<std::int64_t>(sizeof(std::int64_t))};
};

TEST_F(UnifiedMemory, IsReadAndWrittenByTheHost) {
  std::fill_n(numbers(), kNumbers, 21);
  queue();
  fence(space_);
  EXPECT_EQ(std::count(numbers(), numbers() + kNumbers, 42), kNumbers);
}

TEST_F(UnifiedMemory, HoldsOldNumbersUntilSomebodyWaits) {
  std::fill_n(numbers(), kNumbers, 1);
  queue();
  queue();
  EXPECT_EQ(std::count(numbers(), numbers() + kNumbers, 1), kNumbers);
  Event event;
  event.mark(space_);
  event.wait();
  EXPECT_EQ(std::count(numbers(), numbers() + kNumbers, 4), kNumbers);
}

TEST_F(UnifiedMemory, IsCopiedLikeAnyOther) {
  const std::vector<std::int64_t> sent(kNumbers, 5);
  std::vector<std::int64_t> received(kNumbers);
  const std::int64_t bytes = kNumbers * static_cast<std::int64_t>(sizeof(std::int64_t));
  copy_to_device(arena_.at(0), reinterpret_cast<const std::byte*>(sent.data()), bytes);
  queue();
  copy_to_host(reinterpret_cast<std::byte*>(received.data()), arena_.at(0), bytes);
  EXPECT_EQ(received, std::vector<std::int64_t>(kNumbers, 10));
}

}  // namespace
}  // namespace millrace::device
