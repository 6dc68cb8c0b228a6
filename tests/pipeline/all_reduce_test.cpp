// SPDX-License-Identifier: Apache-2.0
#include "pipeline/all_reduce.hpp"

#include <Kokkos_Core.hpp>

#include "comm/world.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "pipeline/recording.hpp"
#include "pipeline/stage_messages.hpp"
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

// ---- recording ----------------------------------------------------------------------------------

std::int64_t g_now = 0;

std::int64_t now() { return g_now; }

/// A forward and a backward action of one stage.
std::vector<LocalEntry> two_entries() {
  LocalEntry forward;
  forward.action = {.kind = ActionKind::Forward, .stage = 0, .micro_batch = 0};
  LocalEntry backward = forward;
  backward.action.kind = ActionKind::Backward;
  return {forward, backward};
}

/// begin, end, entry, what is done
std::vector<std::tuple<std::int64_t, std::int64_t, std::uint32_t, std::string>> pieces_of(
    const Recording& recording) {
  std::vector<std::tuple<std::int64_t, std::int64_t, std::uint32_t, std::string>> pieces;
  for (const Piece& piece : recording.pieces())
    pieces.emplace_back(piece.begin, piece.end, piece.entry, name_of(piece.doing));
  return pieces;
}

/// The host queues the forward from 0 to 10, waits for a message from 10 to 50, queues the backward
/// from 50 to 60, and waits for all ranks from 60 to 100.
class RecordingTest : public testing::Test {
 protected:
  RecordingTest() {
    recording_.set_clock(now);
    recording_.begin_step();
    g_now = 0;
    recording_.begin(0, 1);
    g_now = 10;
    recording_.end(0, 1);
    recording_.begin(1, 1);
    {
      const Recording::While waiting(recording_, Doing::AwaitMessage);
      g_now = 50;
    }
    g_now = 60;
    recording_.end(1, 1);
    recording_.await_all_ranks(1);
    g_now = 100;
    recording_.finish();
  }

  Recording recording_{two_entries(), 16};
};

TEST_F(RecordingTest, KeepsTheTimesOfTheHostWithoutOthers) {
  recording_.take_times_of_device({});
  const decltype(pieces_of(recording_)) expected = {{0, 10, 0, "work"},
                                                    {10, 10, 1, "work"},
                                                    {10, 50, 1, "wait for a message"},
                                                    {50, 60, 1, "work"},
                                                    {60, 100, 1, "wait for all ranks"}};
  EXPECT_EQ(pieces_of(recording_), expected);
  EXPECT_EQ(recording_.records()[1].begin, 10);
}

TEST_F(RecordingTest, WaitsOnlyWhereTheDeviceDoesNothing) {
  // The device is at work from 5 to 20, from 30 to 40 and from 55 to 70.
  const std::array<Piece, 3> spans = {Piece{5, 20, 0, Doing::Work}, Piece{30, 40, 1, Doing::Work},
                                      Piece{55, 70, 1, Doing::Work}};
  recording_.take_times_of_device(spans);
  const decltype(pieces_of(recording_)) expected = {
      {5, 20, 0, "work"},  {20, 30, 1, "wait for a message"},
      {30, 40, 1, "work"}, {40, 50, 1, "wait for a message"},
      {55, 70, 1, "work"}, {70, 100, 1, "wait for all ranks"}};
  EXPECT_EQ(pieces_of(recording_), expected);
  EXPECT_EQ(recording_.records()[0].begin, 5);
  EXPECT_EQ(recording_.records()[0].end, 20);
  EXPECT_EQ(recording_.records()[1].begin, 30);
  EXPECT_EQ(recording_.records()[1].end, 70);
}

TEST_F(RecordingTest, MessagesComeAfterWhatTheyCarry) {
  // The host starts a message, from 10 to 12, when it has queued a forward that ends at 30.
  LocalEntry send;
  send.action = {.kind = ActionKind::SendActivation, .stage = 0, .micro_batch = 0, .peer = 1};
  std::vector<LocalEntry> entries = two_entries();
  entries.insert(entries.begin() + 1, send);
  Recording recording(entries, 16);
  recording.set_clock(now);
  recording.begin_step();
  for (const auto& [entry, time] : {std::pair{0U, 0}, std::pair{1U, 10}, std::pair{2U, 12}}) {
    g_now = time;
    recording.begin(entry, 1);
    g_now = time + 2;
    recording.end(entry, 1);
  }
  recording.finish();
  const std::array<Piece, 2> spans = {Piece{1, 30, 0, Doing::Work}, Piece{40, 50, 2, Doing::Work}};
  recording.take_times_of_device(spans);
  const decltype(pieces_of(recording)) expected = {
      {1, 30, 0, "work"}, {30, 30, 1, "work"}, {40, 50, 2, "work"}};
  EXPECT_EQ(pieces_of(recording), expected);
  EXPECT_EQ(recording.records()[1].begin, 30);
  EXPECT_EQ(recording.records()[1].end, 30);
}

TEST_F(RecordingTest, PackingIsWorkButNotPartOfAnAction) {
  const std::array<Piece, 2> spans = {Piece{0, 20, 0, Doing::Pack}, Piece{20, 90, 0, Doing::Work}};
  recording_.take_times_of_device(spans);
  EXPECT_EQ(recording_.records()[0].begin, 20);
  EXPECT_EQ(recording_.records()[0].end, 90);
}

}  // namespace
}  // namespace millrace::pipeline
