// SPDX-License-Identifier: Apache-2.0
#include "device/queues.hpp"

#include "device/arena.hpp"
#include "device/compat.hpp"
#include "tests/support/test.hpp"

namespace millrace::device {
namespace {

/// Adds number 0 to number 1, and a value of the launch to number 0.
struct Step {
  std::int64_t* numbers;
  std::int64_t summand;
  KOKKOS_FUNCTION void operator()(std::int64_t) const {
    numbers[1] += numbers[0];
    numbers[0] += summand;
  }
};

struct Numbers {
  std::int64_t first = 0;
  std::int64_t second = 0;
  friend bool operator==(const Numbers&, const Numbers&) = default;
};

class LaunchGraphTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!kHasGraphs) GTEST_SKIP() << "this device keeps no launches";
    step(0);  // a device may load a kernel when it is first launched, which it cannot keep
    fence(space_);
  }
  void step(std::int64_t summand) {
    parallel("step", space_, 1, Step{reinterpret_cast<std::int64_t*>(arena_.at(0)), summand});
  }
  [[nodiscard]] Numbers numbers() const {
    Numbers result;
    copy_to_host(reinterpret_cast<std::byte*>(&result), arena_.at(0), sizeof result);
    return result;
  }

  ExecutionSpace space_;
  Arena arena_{sizeof(Numbers)};
};

TEST_F(LaunchGraphTest, RunsOnlyWhenItIsLaunched) {
  LaunchGraph graph;
  ASSERT_TRUE(graph.capture(space_, [&] {
    step(1);
    step(2);
  }));
  EXPECT_EQ(numbers(), (Numbers{0, 0}));
  graph.launch(space_);
  EXPECT_EQ(numbers(), (Numbers{3, 1}));
}

TEST_F(LaunchGraphTest, KeepsArgumentsAndReadsMemoryAgain) {
  LaunchGraph graph;
  std::int64_t summand = 5;
  ASSERT_TRUE(graph.capture(space_, [&] { step(summand); }));
  summand = 100;
  graph.launch(space_);
  graph.launch(space_);
  EXPECT_EQ(numbers(), (Numbers{10, 5}));
}

TEST_F(LaunchGraphTest, KeepsItsPlaceAmongOtherWork) {
  step(1);
  LaunchGraph graph;
  ASSERT_TRUE(graph.capture(space_, [&] {
    step(10);
    queue_copy(space_, Direction::Within, arena_.at(8), arena_.at(0), 8);
  }));
  step(2);
  graph.launch(space_);
  step(3);
  EXPECT_EQ(numbers(), (Numbers{16, 26}));
}

// More than a queue has room for: what is behind runs later, with its own arguments.
TEST_F(LaunchGraphTest, KeepsTheOrderOfMoreThanAQueueHolds) {
  LaunchGraph graph;
  ASSERT_TRUE(graph.capture(space_, [&] {
    step(1);
    step(2);
  }));
  Numbers expected;
  const auto expect_step = [&](std::int64_t summand) {
    expected.second += expected.first;
    expected.first += summand;
  };
  for (std::int64_t i = 0; i < 3000; ++i) {
    step(i);
    expect_step(i);
    if (i % 3 != 0) continue;
    graph.launch(space_);
    expect_step(1);
    expect_step(2);
  }
  EXPECT_EQ(numbers(), expected);
}

TEST_F(LaunchGraphTest, CanBeCapturedAgainAndMoved) {
  LaunchGraph graph;
  ASSERT_TRUE(graph.capture(space_, [&] { step(1); }));
  ASSERT_TRUE(graph.capture(space_, [&] { step(7); }));
  const LaunchGraph moved = std::move(graph);
  moved.launch(space_);
  EXPECT_EQ(numbers(), (Numbers{7, 0}));
}

}  // namespace
}  // namespace millrace::device
