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
  EXPECT_EQ(equal_parts({0, 32}, 2), (Parts{{0, 16}, {16, 32}}));
  EXPECT_EQ(equal_parts({64, 97}, 2), (Parts{{64, 80}, {80, 97}}));
  EXPECT_EQ(equal_parts({0, 31}, 2), (Parts{{0, 16}, {16, 31}}));
  EXPECT_EQ(equal_parts({0, 17}, 3), (Parts{{0, 0}, {0, 16}, {16, 17}}));
  EXPECT_EQ(equal_parts({0, 1}, 4), (Parts{{0, 0}, {0, 0}, {0, 0}, {0, 1}}));
  EXPECT_EQ(equal_parts({0, 1000}, 3), (Parts{{0, 336}, {336, 672}, {672, 1000}}));
  EXPECT_EQ(equal_parts({5, 5}, 2), (Parts{{5, 5}, {5, 5}}));
}

/// Replicas of a stage, all in this process.
class Replicas {
 public:
  Replicas(std::int64_t elements, std::int32_t count)
      : elements_(elements), rank_of_(static_cast<std::size_t>(count), world_.rank()) {
    for (std::int32_t r = 0; r < count; ++r) {
      arrays_.emplace_back(device::aligned(elements_ * kFloat));
      test::write_floats(floats(r), values(r));
    }
  }
  /// Sums of parts of the arrays that start after those before.
  void add(const Parts& parts, const AllReduce::Options& options = {}) {
    auto& sums = sums_.emplace_back();
    for (std::int32_t r = 0; r < count(); ++r) {
      AllReduce& sum = sums.emplace_back(parts, options, r);
      scratch_.emplace_back(device::aligned(sum.bytes() + kFloat));
      sum.bind(floats(r), scratch_.back().at(0), {transport_.get(), rank_of_, 0});
    }
  }
  /// Lets the replicas begin all sums, and go on in turns.
  void run() {
    for (auto& sums : sums_)
      for (AllReduce& sum : sums) sum.start(space_);
    for (bool done = false; !done;) {
      done = true;
      for (std::int32_t r = count(); r-- > 0;) {
        bool may_gather = true;
        for (auto& sums : sums_) {
          AllReduce& sum = sums[static_cast<std::size_t>(r)];
          done = sum.advance(space_, may_gather) && done;
          may_gather = may_gather && sum.lets_gather();
        }
      }
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
  /// In the order of the replicas, with `rounded` values and sum.
  template <class Round>
  [[nodiscard]] std::vector<float> sums(const Round& rounded) const {
    std::vector<float> all(static_cast<std::size_t>(elements_));
    for (std::int32_t r = 0; r < count(); ++r) {
      const std::vector<float> more = values(r);
      for (std::size_t i = 0; i < all.size(); ++i)
        all[i] = r == 0 ? rounded(more[i]) : all[i] + rounded(more[i]);
    }
    for (float& sum : all) sum = rounded(sum);
    return all;
  }
  [[nodiscard]] std::vector<float> sums() const {
    return sums([](float x) { return x; });
  }
  [[nodiscard]] std::vector<float> array(std::int32_t r) {
    return test::read_floats(floats(r), elements_);
  }
  /// The sum of a replica that was added first.
  AllReduce& operator[](std::int32_t r) { return sums_.front()[static_cast<std::size_t>(r)]; }
  void start(std::int32_t r) { (*this)[r].start(space_); }
  [[nodiscard]] std::int32_t count() const { return static_cast<std::int32_t>(rank_of_.size()); }

 private:
  static constexpr std::int64_t kFloat = sizeof(float);
  float* floats(std::int32_t r) {
    return reinterpret_cast<float*>(arrays_[static_cast<std::size_t>(r)].at(0));
  }

  comm::World world_{comm::World::Alone{}};
  std::unique_ptr<comm::Transport> transport_ =
      comm::make_transport(world_, {.copy_within = device::copy_within});
  std::int64_t elements_;
  std::vector<int> rank_of_;
  std::deque<std::deque<AllReduce>> sums_;
  std::deque<device::Arena> arrays_;
  std::deque<device::Arena> scratch_;
  device::ExecutionSpace space_;
};

// No number of elements is a multiple of the replicas' blocks.
TEST(AllReduceTest, EveryReplicaHasTheSumOfEveryElement) {
  for (const std::int32_t replicas : {2, 3, 4})
    for (const std::int64_t elements : {1, 15, 17, 33, 100, 1000}) {
      Replicas all(elements, replicas);
      all.add(equal_parts({0, elements}, replicas));
      const std::vector<float> expected = all.sums();
      all.run();
      for (std::int32_t r = 0; r < replicas; ++r)
        EXPECT_EQ(all.array(r), expected) << elements << " elements, replica " << r;
    }
}

// The bits are those of one sum of all elements, however many there are.
TEST(AllReduceTest, SumsOfPartsUseTheSameTagsInOrder) {
  Replicas all(1000, 3);
  for (const Elements part : {Elements{600, 1000}, {100, 600}, {100, 100}, {0, 100}})
    all.add(equal_parts(part, 3));
  const std::vector<float> expected = all.sums();
  all.run();
  for (std::int32_t r = 0; r < 3; ++r) EXPECT_EQ(all.array(r), expected) << r;
}

// If the update is divided, each replica needs the sums of its own part only.
TEST(AllReduceTest, SumsThatAreNotGatheredStayWhereTheyAreNeeded) {
  Replicas all(100, 3);
  all.add({{0, 16}, {16, 48}, {48, 64}}, {.gathers = false});
  all.add(equal_parts({64, 100}, 3));
  const std::vector<float> sums = all.sums();
  all.run();
  for (std::int32_t r = 0; r < 3; ++r) {
    const std::vector<float> own = all.values(r);
    const std::vector<float> got = all.array(r);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const bool sum = at >= 64 || (at >= all[r].own().first && at < all[r].own().last);
      EXPECT_EQ(got[i], sum ? sums[i] : own[i]) << r << ' ' << i;
    }
  }
}

// Rounded is what each replica adds, its own values too, and the sum; not what is between. So the
// bits do not depend on who adds.
TEST(AllReduceTest, SendsSixteenBitsAndAddsInFloat32) {
  constexpr std::int64_t kCount = 1003;
  const std::vector<Parts> divisions = {equal_parts({0, kCount}, 3),
                                        {{0, 16}, {16, 16}, {16, kCount}}};
  for (const bool gathers : {true, false})
    for (const Parts& parts : divisions) {
      Replicas all(kCount, 3);
      all.add(parts, {.type = DType::BF16, .gathers = gathers});
      const std::vector<float> expected = all.sums(rounded_as<bfloat16>);
      EXPECT_NE(expected, all.sums());
      all.run();
      for (std::int32_t r = 0; r < 3; ++r) {
        const Elements own = gathers ? Elements{0, kCount} : all[r].own();
        const std::vector<float> got = all.array(r);
        EXPECT_TRUE(std::equal(got.begin() + own.first, got.begin() + own.last,
                               expected.begin() + own.first))
            << r;
      }
    }
}

TEST(AllReduceTest, CountsTheBytesToAndFromOtherProcesses) {
  const Parts parts = equal_parts({0, 100}, 3);  // 32, 32 and 36 floats
  const std::vector<int> apart = {0, 1, 2};
  const std::vector<int> two = {0, 0, 1};
  // Parts: receives two of 32, sends 32 and 36. Sums: sends 32 twice, receives 32 and 36.
  const AllReduce floats(parts, {}, 0);
  EXPECT_EQ(floats.message_bytes(apart), 4 * (2 * 32 + 32 + 36 + 2 * 32 + 32 + 36));
  EXPECT_EQ(floats.message_bytes(two), 4 * (32 + 36 + 32 + 36));
  EXPECT_EQ(floats.bytes(), 2 * 128);
  const AllReduce stays(parts, {.gathers = false}, 0);
  EXPECT_EQ(stays.message_bytes(apart), 4 * (2 * 32 + 32 + 36));
  const AllReduce narrow(parts, {.type = DType::BF16}, 0);
  EXPECT_EQ(narrow.message_bytes(apart), floats.message_bytes(apart) / 2);
  EXPECT_EQ(narrow.bytes(), 2 * 64 + 64 + 64 + 128);
}

TEST(AllReduceTest, NamesTheReplicaThatItWaitsFor) {
  Replicas all(100, 3);
  all.add(equal_parts({0, 100}, 3));
  EXPECT_EQ(all[0].awaited(), -1);
  all.start(0);
  EXPECT_EQ(all[0].awaited(), 1);
  all.start(1);
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
