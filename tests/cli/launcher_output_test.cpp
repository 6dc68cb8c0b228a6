// SPDX-License-Identifier: Apache-2.0
#include "cli/launcher_output.hpp"

#include <gtest/gtest.h>

#include "cli/launcher_end.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

const std::string kEdge = std::string(74, '-') + "\n";
const std::string kReturned =
    kEdge +
    "Primary job  terminated normally, but 1 process returned\n"
    "a non-zero exit code. Per user-direction, the job has been aborted.\n" +
    kEdge;
const std::string kKilled =
    kEdge +
    "mpirun noticed that process rank 11 with PID 0 on node a exited on signal 9 (Killed).\n" +
    kEdge;
const std::string kUnknown = kEdge + "There are not enough slots available\n" + kEdge;

TEST(LauncherOutputTest, LinesOfRanksPassAndBoxesOfTheEndDoNot) {
  LauncherOutput output;
  const std::string text = "from a rank\n" + kReturned + "from another\n" + kKilled + "the last";
  std::string shown = output.take(text);
  shown += output.finish();
  EXPECT_EQ(shown, "from a rank\nfrom another\nthe last");
  EXPECT_EQ(output.report().ended_rank, (EndedRank{.rank = 11, .signal = 9}));
}

// It has no line end, and may come in pieces and before a line.
TEST(LauncherOutputTest, TheStatusLineIsKeptApart) {
  LauncherOutput output;
  EXPECT_EQ(output.take("\repoch 1/2\033[K"), "");
  EXPECT_EQ(output.status(), "epoch 1/2");
  EXPECT_EQ(output.take("\repoch"), "");
  EXPECT_EQ(output.status(), "epoch 1/2");
  EXPECT_EQ(output.take(" 2/2\033[Ka line\n"), "a line\n");
  EXPECT_EQ(output.status(), "epoch 2/2");
  EXPECT_EQ(output.take("\r\033[K"), "");
  EXPECT_EQ(output.status(), "");
  EXPECT_EQ(output.finish(), "");
}

TEST(LauncherOutputTest, TheCodeOfAnAbortIsRead) {
  LauncherOutput output;
  EXPECT_EQ(output.take(kEdge + "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n" +
                        "with errorcode 124.\n" + kEdge),
            "");
  EXPECT_EQ(output.report().abort_code, 124);
  EXPECT_TRUE(output.report().ending);
}

TEST(LauncherOutputTest, AMachineOutOfReachIsRead) {
  LauncherOutput output;
  EXPECT_EQ(output.take(kEdge +
                        "ORTE has lost communication with a remote daemon.\n\n"
                        "  HNP daemon   : [[29827,0],0] on node a\n"
                        "  Remote daemon: [[29827,0],1] on node b\n\n" +
                        kEdge),
            "");
  EXPECT_EQ(output.report().lost_host, "b");
}

TEST(LauncherOutputTest, RanksThatSayWhereTheyStandAreCounted) {
  LauncherOutput output;
  const std::string lines =
      "millrace: error: no progress for 2 s: rank 0: is starting; raise --hang-timeout\n"
      "millrace: error: no progress for 2 s: rank 12: is at 1F3 and waits for stage 0 (rank 7)\n"
      "rank 3: something else\n";
  EXPECT_EQ(output.take(lines), lines);
  EXPECT_EQ(output.report().stuck_ranks, (std::set<int>{0, 12}));
  // It was stopped, and says so when it is woken to be ended.
  const std::string late = "millrace: error: no progress for 2 s: rank 1: is starting\n";
  const auto later = LauncherOutput::Clock::now() + std::chrono::seconds(3);
  EXPECT_EQ(output.take(late, later), late);
  EXPECT_EQ(output.report().stuck_ranks, (std::set<int>{0, 12}));
}

TEST(LauncherOutputTest, ForwardedSignalsAreNoNews) {
  LauncherOutput output;
  const std::string rank = "rank 0: Forwarding signal 10 to job\n";  // has a blank before the colon
  EXPECT_EQ(output.take("a\nmpiexec: Forwarding signal 10 to job\nb\n" + rank), "a\nb\n" + rank);
  EXPECT_EQ(output.take("/opt/mpirun: Forwarding signal 12 to job\n"), "");
  EXPECT_EQ(output.finish(), "");
  EXPECT_FALSE(output.report().complained);
}

// Two replicas of two stages, one on each of two hosts.
TEST(LauncherEndTest, AHostThatIsCutOffIsNamed) {
  pipeline::PipelinePlan plan;
  plan.ranks = {.devices = 2, .replicas = 2, .ranks = 4};
  plan.schedule.device_of = {0, 1};
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  LauncherEnd end;
  end.code = 124;
  end.report.stuck_ranks = {0, 1};
  const auto expect_named = [&](const std::string& what) {
    const Failure failure = failure_of([&] { (void)meaning_of(end, "mpiexec", plan, hosts); });
    EXPECT_EQ(failure.kind, ErrorKind::Watchdog) << what;
    EXPECT_TRUE(contains(failure.text,
                         "rank 2 on b (replica 1, stage 0), rank 3 on b (replica 1, stage 1) did "
                         "not respond"))
        << what << ": " << failure.text;
  };
  expect_named("the launcher was killed while it waited for the host");
  end.code = 205;
  end.report.lost_host = "b";
  expect_named("the launcher noticed it after the ranks");
  end.report.stuck_ranks.clear();
  const Failure failure = failure_of([&] { (void)meaning_of(end, "mpiexec", plan, hosts); });
  EXPECT_EQ(failure.kind, ErrorKind::Peer);
  EXPECT_TRUE(contains(failure.text, "lost contact with b:")) << failure.text;
}

TEST(LauncherOutputTest, OtherBoxesPassWhole) {
  LauncherOutput output;
  EXPECT_EQ(output.take(kUnknown), kUnknown);
  EXPECT_FALSE(output.report().ending);
  EXPECT_EQ(output.finish(), "");
  EXPECT_EQ(output.report().ended_rank, std::nullopt);
}

TEST(LauncherOutputTest, AnyPiecesGiveTheSame) {
  const std::string text = "a\n" + kUnknown + kReturned + "b\n" + kKilled + kEdge + "cut off";
  for (std::size_t size = 1; size < text.size(); ++size) {
    LauncherOutput output;
    std::string shown;
    for (std::size_t i = 0; i < text.size(); i += size) shown += output.take(text.substr(i, size));
    shown += output.finish();
    EXPECT_EQ(shown, "a\n" + kUnknown + "b\n" + kEdge + "cut off") << size;
    EXPECT_TRUE(output.report().ended_rank) << size;
  }
}

TEST(LauncherOutputTest, TheFirstRankThatEndedCounts) {
  LauncherOutput output;
  std::string later = kKilled;
  later.replace(later.find("11"), 2, "12");
  (void)output.take(kKilled + later);
  EXPECT_EQ(output.report().ended_rank->rank, 11);
}

}  // namespace
}  // namespace millrace::cli
