// SPDX-License-Identifier: Apache-2.0
#include "pipeline/all_reduce.hpp"

#include <Kokkos_Core.hpp>

#include "comm/world.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "pipeline/device_memory.hpp"
#include "tests/support/device_floats.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

// A block has 16 floats. The last one may not be whole.
TEST(EqualPartsTest, AreWholeBlocksAndHaveEveryElement) {
  EXPECT_EQ(equal_parts(32, 2), (Borders{0, 16, 32}));
  EXPECT_EQ(equal_parts(33, 2), (Borders{0, 16, 33}));
  EXPECT_EQ(equal_parts(31, 2), (Borders{0, 16, 31}));
  EXPECT_EQ(equal_parts(17, 3), (Borders{0, 0, 16, 17}));
  EXPECT_EQ(equal_parts(1, 4), (Borders{0, 0, 0, 0, 1}));
  EXPECT_EQ(equal_parts(1000, 3), (Borders{0, 336, 672, 1000}));
  EXPECT_EQ(equal_parts(0, 2), (Borders{0, 0, 0}));
}

/// Replicas of a stage, all in this process.
class Replicas {
 public:
  Replicas(const Borders& borders, std::int64_t gathered_from)
      : elements_(borders.back()),
        count_(static_cast<std::int32_t>(borders.size()) - 1),
        rank_of_(static_cast<std::size_t>(count_), world_.rank()) {
    for (std::int32_t r = 0; r < count_; ++r) {
      AllReduce& sum = sums_.emplace_back(borders, gathered_from, r);
      arrays_.emplace_back(device::aligned(elements_ * kFloat));
      scratch_.emplace_back(device::aligned(sum.bytes() + kFloat));
      test::write_floats(floats(r), values(r));
      sum.bind({floats(r), static_cast<std::size_t>(elements_)}, scratch_.back().at(0),
               {transport_.get(), rank_of_, 0});
    }
  }
  /// Lets the replicas begin and go on in turns.
  void run() {
    for (AllReduce& sum : sums_) sum.start();
    for (bool done = false; !done;) {
      done = true;
      for (AllReduce& sum : sums_) done = sum.advance(space_) && done;
    }
    device::fence(space_);
  }
  /// Of replica r before the sum. Another order of addition gives other bits.
  [[nodiscard]] std::vector<float> values(std::int32_t r) const {
    std::vector<float> all(static_cast<std::size_t>(elements_));
    std::iota(all.begin(), all.end(), 1.0f);
    for (float& value : all) value /= static_cast<float>(3 + r);
    return all;
  }
  /// In the order of the replicas.
  [[nodiscard]] std::vector<float> sums() const {
    std::vector<float> all = values(0);
    for (std::int32_t r = 1; r < count_; ++r) {
      const std::vector<float> more = values(r);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += more[i];
    }
    return all;
  }
  [[nodiscard]] std::vector<float> array(std::int32_t r) {
    return test::read_floats(floats(r), elements_);
  }
  AllReduce& operator[](std::int32_t r) { return sums_[static_cast<std::size_t>(r)]; }

 private:
  static constexpr std::int64_t kFloat = sizeof(float);
  float* floats(std::int32_t r) {
    return reinterpret_cast<float*>(arrays_[static_cast<std::size_t>(r)].at(0));
  }

  comm::World world_{comm::World::Alone{}};
  std::unique_ptr<comm::Transport> transport_ =
      comm::make_transport(world_, {.copy_within = device::copy_within});
  std::int64_t elements_;
  std::int32_t count_;
  std::vector<int> rank_of_;
  std::deque<AllReduce> sums_;
  std::deque<device::Arena> arrays_;
  std::deque<device::Arena> scratch_;
  device::ExecutionSpace space_;
};

// No number of elements is a multiple of the replicas' blocks.
TEST(AllReduceTest, EveryReplicaHasTheSumOfEveryElement) {
  for (const std::int32_t replicas : {2, 3, 4})
    for (const std::int64_t elements : {1, 15, 17, 33, 100, 1000}) {
      Replicas all(equal_parts(elements, replicas), 0);
      const std::vector<float> expected = all.sums();
      all.run();
      for (std::int32_t r = 0; r < replicas; ++r)
        EXPECT_EQ(all.array(r), expected) << elements << " elements, replica " << r;
    }
}

// If the update is divided, each replica needs the sums of its own part, and of what comes after
// all parts.
TEST(AllReduceTest, SumsBeforeTheGatheredOnesStayWhereTheyAreNeeded) {
  Replicas all({0, 16, 48, 100}, 64);
  const std::vector<float> sums = all.sums();
  all.run();
  for (std::int32_t r = 0; r < 3; ++r) {
    const std::vector<float> own = all.values(r);
    const std::vector<float> got = all.array(r);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const bool sum =
          at >= 64 || (at >= all[r].first() && at < all[r].first() + all[r].elements());
      EXPECT_EQ(got[i], sum ? sums[i] : own[i]) << r << ' ' << i;
    }
  }
}

TEST(AllReduceTest, CountsTheBytesToAndFromOtherProcesses) {
  const AllReduce first(equal_parts(100, 3), 0, 0);  // parts of 32, 32 and 36 floats
  const std::vector<int> apart = {0, 1, 2};
  const std::vector<int> two = {0, 0, 1};
  // Parts: receives two of 32, sends 32 and 36. Sums: sends 32 twice, receives 32 and 36.
  EXPECT_EQ(first.message_bytes(apart), 4 * (2 * 32 + 32 + 36 + 2 * 32 + 32 + 36));
  EXPECT_EQ(first.message_bytes(two), 4 * (32 + 36 + 32 + 36));
  EXPECT_EQ(first.bytes(), 2 * 128);
}

TEST(AllReduceTest, NamesTheReplicaThatItWaitsFor) {
  Replicas all(equal_parts(100, 3), 0);
  EXPECT_EQ(all[0].awaited(), -1);
  all[0].start();
  EXPECT_EQ(all[0].awaited(), 1);
  all[1].start();
  EXPECT_EQ(all[0].awaited(), 2);
  EXPECT_EQ(all[1].awaited(), 2);
}

}  // namespace
}  // namespace millrace::pipeline
