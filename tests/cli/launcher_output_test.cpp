// SPDX-License-Identifier: Apache-2.0
#include "cli/launcher_output.hpp"

#include "cli/launcher_end.hpp"
#include "comm/world.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

constexpr std::chrono::seconds kGrace{2};
const std::string kEdge = std::string(74, '-') + "\n";
const std::string kBox = kEdge +
                         "Primary job  terminated normally, but 1 process returned\n"
                         "a non-zero exit code. Per user-direction, the job has been aborted.\n" +
                         kEdge;
const std::string kOther = kEdge + "There are not enough slots available\n" + kEdge;

TEST(LauncherOutputTest, LinesPassAndBoxesAreShownAtTheEndOrLeftOut) {
  const std::string text =
      "from a rank\n" + kBox + "mpiexec: from the launcher\n" + kOther + "the last";
  const std::string lines = "from a rank\nmpiexec: from the launcher\n";
  LauncherOutput unread(kGrace);
  EXPECT_EQ(unread.take(text), lines);
  EXPECT_EQ(unread.finish(false), "the last");
  EXPECT_TRUE(unread.ranks_began()) << "one of them ended";
  LauncherOutput output(kGrace);
  EXPECT_EQ(output.take(text), lines);
  EXPECT_EQ(output.finish(true), kBox + kOther + "the last");
}

TEST(LauncherOutputTest, ForwardedSignalsAreNotShown) {
  LauncherOutput output(kGrace);
  EXPECT_EQ(output.take("mpiexec: Forwarding signal 10 to job\nsaved\n"), "saved\n");
}

TEST(LauncherOutputTest, BoxesThatTheEndDoesNotFollowAreShown) {
  using std::chrono::seconds;
  const auto begin = LauncherOutput::Clock::now();
  LauncherOutput output(kGrace);
  EXPECT_EQ(output.take(kOther, begin), "");
  EXPECT_EQ(output.late(begin + seconds(4)), "");
  EXPECT_EQ(output.late(begin + seconds(5)), kOther);
  EXPECT_EQ(output.late(begin + seconds(6)), "");
  EXPECT_EQ(output.finish(true), "");
}

TEST(LauncherOutputTest, WhatRanksTellTheSupervisorIsNotShown) {
  LauncherOutput output(kGrace);
  EXPECT_EQ(output.take("millrace: the ranks begin\na\n"), "a\n");
  EXPECT_TRUE(output.ranks_began() && !output.ranks_trained());
  EXPECT_EQ(output.take("millrace: the ranks train\nb\n"), "b\n");
  EXPECT_TRUE(output.ranks_trained());
  EXPECT_EQ(output.take(kEdge + "mpiexec noticed that process rank 3 with PID 0 on node b\n"), "");
  EXPECT_EQ(output.ended_rank(), 3);
  LauncherOutput ending(kGrace);
  EXPECT_EQ(ending.take("c\n"), "c\n");
  EXPECT_FALSE(ending.ranks_code());
  EXPECT_EQ(ending.take("millrace: the ranks end with code 75\n"), "");
  EXPECT_EQ(ending.ranks_code(), 75);
}

// It has no line end, and may come in pieces and before a line.
TEST(LauncherOutputTest, TheStatusLineIsKeptApart) {
  LauncherOutput output(kGrace);
  EXPECT_EQ(output.take("\repoch 1/2\033[K"), "");
  EXPECT_EQ(output.status(), "epoch 1/2");
  EXPECT_EQ(output.take("\repoch"), "");
  EXPECT_EQ(output.status(), "epoch 1/2");
  EXPECT_EQ(output.take(" 2/2\033[Ka line\n"), "a line\n");
  EXPECT_EQ(output.status(), "epoch 2/2");
  EXPECT_EQ(output.take("\r\033[K"), "");
  EXPECT_EQ(output.status(), "");
  EXPECT_EQ(output.finish(true), "");
}

TEST(LauncherOutputTest, RanksThatSayWhereTheyStandAreCounted) {
  LauncherOutput output(kGrace);
  const std::string lines =
      "millrace: error: no progress for 2 s: rank 0: is starting; raise --hang-timeout\n"
      "millrace: error: no progress for 2 s: rank 12: is at 1F3 and waits for stage 0 (rank 7)\n"
      "millrace: error: no progress for 2 s: rank 5: is saving and waits for rank 1; raise\n"
      "rank 3: something else\n";
  EXPECT_EQ(output.take(lines), lines);
  const std::map<int, int> stuck = {{0, -1}, {5, 1}, {12, 7}};
  EXPECT_EQ(output.stuck_ranks(), stuck);
  // It was stopped, and says so when it is woken to be ended.
  const std::string late = "millrace: error: no progress for 2 s: rank 1: is starting\n";
  const auto later = LauncherOutput::Clock::now() + kGrace;
  EXPECT_EQ(output.take(late, later), late);
  EXPECT_EQ(output.stuck_ranks(), stuck);
}

TEST(LauncherOutputTest, AnyPiecesGiveTheSame) {
  const std::string text = "a\n" + kOther + kBox + "b\n" + kBox + kEdge + "cut off";
  for (std::size_t size = 1; size < text.size(); ++size) {
    LauncherOutput output(kGrace);
    std::string shown;
    for (std::size_t i = 0; i < text.size(); i += size) shown += output.take(text.substr(i, size));
    EXPECT_EQ(shown, "a\nb\n") << size;
    EXPECT_EQ(output.finish(false), kOther + kBox + kBox + kEdge + "cut off") << size;
  }
}

/// An end of the launcher with one of the flags.
LauncherEnd ended(int code, bool LauncherEnd::*flag = nullptr) {
  LauncherEnd end;
  end.code = code;
  if (flag != nullptr) end.*flag = true;
  return end;
}

/// What it means for two replicas of two stages, one on each of two hosts: a code, and the text of
/// an error.
std::pair<int, std::string> meaning(const LauncherEnd& end) {
  pipeline::PipelinePlan plan;
  plan.ranks = {.devices = 2, .replicas = 2, .ranks = 4};
  plan.schedule.device_of = {0, 1};
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  try {
    return {meaning_of(end, "mpiexec", plan, hosts), ""};
  } catch (const Error& error) {
    return {exit_code(error.kind()), error.what()};
  }
}

// A host of which one rank spoke is there; where nobody gave up, nothing is known of hosts.
TEST(LauncherEndTest, HostsAreSilentIfAllTheirRanksAre) {
  const std::vector<std::string> hosts = {"a", "a", "b", "b", "c"};
  LauncherEnd end = ended(124);
  EXPECT_TRUE(silent_hosts(end, hosts).empty());
  end.stuck_ranks = {{1, -1}, {4, -1}};
  EXPECT_EQ(silent_hosts(end, hosts), std::set<std::string>{"b"});
  EXPECT_TRUE(silent_hosts(end, {}).empty()) << "one machine";
}

TEST(LauncherEndTest, HostsAreAwaitedByRanksOfOthers) {
  const std::vector<std::string> hosts = {"a", "a", "b", "b", "c"};
  LauncherEnd end = ended(124);
  end.stuck_ranks = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 3}};
  EXPECT_EQ(awaited_hosts(end, hosts), (std::map<std::string, int>{{"b", 2}, {"c", 1}}));
  EXPECT_TRUE(awaited_hosts(end, {}).empty()) << "one machine";
}

TEST(LauncherEndTest, HostsOfAgentsAreUnstarted) {
  LauncherEnd end = ended(137);
  EXPECT_TRUE(unstarted_hosts(end, std::vector<std::string>{"a", "b"}).empty());
  end.agents = {"/usr/bin/ssh -x b orted --host a.b ", "ssh c orted "};
  EXPECT_EQ(unstarted_hosts(end, std::vector<std::string>{"a", "b"}), std::set<std::string>{"b"});
}

TEST(LauncherEndTest, AHostThatIsCutOffIsNamed) {
  const LauncherEnd ranks_ended = ended(124);
  const LauncherEnd waited_in_vain = ended(137, &LauncherEnd::killed);
  const LauncherEnd noticed_later = ended(205);
  for (LauncherEnd end : {ranks_ended, waited_in_vain, noticed_later}) {
    end.stuck_ranks = {{0, 1}, {1, 2}};
    const auto [code, text] = meaning(end);
    EXPECT_EQ(code, 124);
    EXPECT_EQ(
        text,
        "rank 2 on b (replica 1, stage 0), rank 3 on b (replica 1, stage 1) did not respond: it is "
        "stopped, or its machine hangs or is cut off; the last checkpoint can be restored");
  }
}

TEST(LauncherEndTest, TheCodeOfTheLauncherTellsWhatHappened) {
  const auto expect = [](const LauncherEnd& end, int expected, std::string_view begin) {
    const auto [code, text] = meaning(end);
    EXPECT_EQ(code, expected) << end.code;
    EXPECT_TRUE(text.starts_with(begin)) << text;
    EXPECT_EQ(text.empty(), begin.empty()) << text;
  };
  for (const int code : {0, 2, 3, 4, 5, 6, 7, 75, 124, 130}) expect(ended(code), code, "");
  expect(ended(2, &LauncherEnd::interrupted), 130, "");
  expect(ended(1), 5, "mpiexec failed: see its message above");
  expect(ended(1, &LauncherEnd::asked), 75, "");
  expect(ended(127), 5, "cannot run mpiexec");
  LauncherEnd named = ended(137);
  named.ended_rank = 1;
  expect(named, 7, "a rank was ended by signal 9 (Killed): mpiexec names it above; the");
  expect(ended(137, &LauncherEnd::killed), 7, "mpiexec was ended by signal 9 (Killed); the last");
  expect(ended(138), 75, "");
  LauncherEnd crashed = ended(139, &LauncherEnd::killed);
  crashed.asked = true;
  expect(crashed, 75, "");
  LauncherEnd early = ended(0, &LauncherEnd::asked);
  expect(early, 0, "");
  early.ranks_began = false;
  expect(early, 75, "");
  expect(ended(137), 7, "a rank was ended by signal 9");
  LauncherEnd unnamed = ended(132);
  unnamed.ranks_began = false;
  if (comm::is_open_mpi()) expect(unnamed, 5, "mpiexec could not start the ranks");
  expect(ended(205), 5, "mpiexec could not start the ranks: see its message above");
  expect(ended(205, &LauncherEnd::ranks_printed), 7,
         "mpiexec ended the ranks: see its message above");
}

}  // namespace
}  // namespace millrace::cli
