// SPDX-License-Identifier: Apache-2.0
#include "pipeline/recording.hpp"

#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

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
