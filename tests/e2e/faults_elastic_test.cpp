// SPDX-License-Identifier: Apache-2.0
//
// Runs with --elastic outlive their ranks: the supervisor starts them again from the newest
// checkpoint, and the result is the undisturbed one. tests/e2e/hosts/elastic.sh loses hosts.
#include <fstream>

#include "faults.hpp"
#include "mpirun.hpp"

namespace millrace::test {
namespace {

constexpr int kUpdates = 160;

class ElasticTest : public testing::Test {
 protected:
  [[nodiscard]] Words training(const Words& more = {}) const {
    return short_training(kUpdates, 4) + on_ranks(2) + "--elastic" + more +
           Words{"--run-dir", run_};
  }
  /// Waits for a checkpoint behind this update; returns the newest one's.
  [[nodiscard]] int saved_behind(int update) const {
    int newest = -1;
    EXPECT_TRUE(wait_until([&] {
      if (!fs::exists(run_ / "checkpoints")) return false;
      const auto all = io::list_checkpoints(run_);
      if (!all.empty()) newest = std::atoi(all.back().filename().c_str() + 5);
      return newest > update;
    }));
    return newest;
  }
  /// Waits for a rank and kills it.
  void kill_rank(int rank) const {
    pid_t process = -1;
    ASSERT_TRUE(wait_until([&] { return (process = process_of_rank(run_, rank)) > 0; }));
    kill(process, SIGKILL);
    ASSERT_TRUE(wait_until([&] { return process_of_rank(run_, rank) != process; }));
  }
  [[nodiscard]] std::size_t events(const std::string& event) const {
    const std::string text = read_text(run_ / "supervisor.jsonl");
    std::size_t n = 0;
    for (const std::string& line : lines_of(text))
      n += line.find("\"event\":\"" + event + '"') != std::string::npos ? 1u : 0u;
    return n;
  }

  TemporaryDirectory directory_;
  const fs::path run_ = directory_ / "run";
};

TEST_F(ElasticTest, LostRanksAreStartedAgain) {
  Job job(training());
  (void)saved_behind(0);
  for (const std::size_t losses : {1u, 2u}) {
    kill_rank(2 - static_cast<int>(losses));
    ASSERT_TRUE(wait_until([&] { return events("start") > losses; }));
    (void)saved_behind(saved_behind(-1));  // the ranks work again
  }
  const ProcessResult result = job.wait();
  expect_end(result, 0, {"a rank was ended by signal 9", "restart 1 of 10 from ckpt-"});
  EXPECT_EQ(newest_in(run_)->digest, undisturbed(kUpdates).at_end()) << result.output;
  EXPECT_EQ(events("lost"), 2u) << result.output;
  EXPECT_EQ(events("start"), 3u) << result.output;
  EXPECT_EQ(events("end"), 1u) << result.output;
}

// The first checkpoint on disk is far away; a snapshot in memory becomes one.
TEST_F(ElasticTest, LostRanksGoOnFromASnapshotInMemory) {
  const fs::path memory = directory_ / "memory";
  Job job(training({"--ckpts-per-epoch 1 --log-freq 1 --partner-every 5"}),
          Environment{"MILLRACE_MEMORY_DIRECTORY=" + memory.string()});
  const auto update = [&] {
    const std::vector<std::string> rows = lines_of(read_text(run_ / "training.csv"));
    return static_cast<int>(rows.size()) - 1;
  };
  ASSERT_TRUE(wait_until([&] { return update() >= 17; }));
  kill_rank(1);
  const int killed = update();
  ASSERT_TRUE(wait_until([&] { return events("snapshot") > 0; }));
  ASSERT_TRUE(wait_until([&] { return update() >= killed + 10; }));
  kill_rank(1);
  ASSERT_TRUE(wait_until([&] { return events("snapshot") > 1; }));
  // Two are kept: the first snapshot's took the place of the beginning, and the second of none.
  EXPECT_TRUE(wait_until([&] { return io::list_checkpoints(run_).size() == 2; }));
  const ProcessResult result = job.wait();
  expect_end(result, 0,
             {"a rank was ended by signal 9", "or a newer snapshot in memory",
              "there is one host, so they outlive its ranks, and not the host"});
  const std::string sign = "going on from the snapshot after update ";
  const int taken = std::atoi(result.output.c_str() + result.output.find(sign) + sign.size());
  EXPECT_EQ(taken % 5, 0);
  EXPECT_GT(taken, 0);
  EXPECT_LE(killed - taken, 10) << "one may have been in the making";
  EXPECT_EQ(newest_in(run_)->digest, undisturbed(kUpdates).at_end()) << result.output;
  EXPECT_FALSE(fs::exists(memory));
}

TEST_F(ElasticTest, FullMemoryEndsTheSnapshotsAlone) {
  const fs::path memory = directory_ / "memory";
  const Environment full = file_shim(
      1, {"MILLRACE_MEMORY_DIRECTORY=" + memory.string(), "MILLRACE_SHIM_BELOW=" + memory.string(),
          "MILLRACE_SHIM_AT=12", "MILLRACE_SHIM_FAULT=ENOSPC"});
  const ProcessResult result = Job(training({"--partner-every 5"}), full).wait();
  expect_end(result, 0,
             {"No more snapshots are kept in memory: ", memory.string(),
              "No space left on device; free some space there or choose another directory"});
  EXPECT_EQ(events("start"), 1u) << result.output;
  EXPECT_EQ(newest_in(run_)->digest, undisturbed(kUpdates).at_end());
  EXPECT_FALSE(fs::exists(memory));
}

// Two are kept.
TEST_F(ElasticTest, ADamagedCheckpointCostsUpdates) {
  Job job(training());
  (void)saved_behind(saved_behind(0));
  std::ofstream(io::list_checkpoints(run_).back() / "part-000.h5") << "damaged";
  kill_rank(1);
  expect_end(job.wait(), 0, {"restart 1 of 10 from ckpt-"});
  EXPECT_EQ(newest_in(run_)->digest, undisturbed(kUpdates).at_end());
}

// The ranks of the second replica save nothing.
TEST_F(ElasticTest, SnapshotsAndCheckpointsTakeTurns) {
  const Words replicas = {"--replicas 2 --gradients-to-accumulate 1 --ckpts-per-epoch 1 --ranks"};
  const fs::path one = directory_ / "one";
  const Words alone = short_training(kUpdates, 0) + on_ranks(2) + replicas + "1";
  ASSERT_EQ(millrace(alone + Words{"--run-dir", one}).code, 0);
  const ProcessResult result = millrace(training(replicas + "4 --partner-every 15 --restarts 0"));
  expect_end(result, 0, {"Snapshots in memory: after every 15 updates"});
  EXPECT_EQ(events("start"), 1u) << result.output;
  EXPECT_EQ(newest_in(run_)->digest, newest_in(one)->digest) << result.output;
}

// As if a host were lost just then.
TEST_F(ElasticTest, ALauncherThatStartsNoRanksIsEnded) {
  const fs::path launcher = directory_ / "launcher";
  const fs::path once = directory_ / "once";
  std::ofstream(launcher) << "#!/bin/sh\n[ -e " << once << " ] && exec " << MILLRACE_MPIEXEC
                          << " \"$@\"\ntouch " << once << "\nexec sleep 1000\n";
  fs::permissions(launcher, fs::perms::owner_all);
  Job job(training({"--hang-timeout 1"}), Environment{"MILLRACE_MPIEXEC=" + launcher.string()});
  expect_end(job.wait(), 0,
             {"did not start the ranks in time", "restart 1 of 10 from the beginning"});
  EXPECT_EQ(newest_in(run_)->digest, undisturbed(kUpdates).at_end());
}

TEST_F(ElasticTest, ARunHasOneSupervisor) {
  Job job(training({"--iterations 100000"}));
  (void)saved_behind(0);
  expect_end(restore(run_, "--elastic"), 2, {"is in use by process"});
  job.send(SIGTERM);
  const ProcessResult result = job.wait();
  expect_end(result, 75, {"ended with code 75"});
  EXPECT_TRUE(wait_until([&] { return members_of(run_).empty(); }));
}

// Nothing is saved between the losses: the beginning is tried again, not for ever.
TEST_F(ElasticTest, LossesWithoutACheckpointEnd) {
  Job job(training({"--ckpts-per-epoch 1 --iterations 100000 --restarts 1"}));
  kill_rank(1);
  kill_rank(1);
  expect_end(job.wait(), 7,
             {"restart 1 of 1 from the beginning", "2 losses without a new checkpoint"});
  EXPECT_EQ(events("given up"), 1u);
}

// What would come again is not tried again.
TEST_F(ElasticTest, WrongDataEndsTheRun) {
  const fs::path data = directory_ / "data";
  fs::copy(small_data(), data, fs::copy_options::recursive);
  Job job(training(Words{"--iterations 100000 --data-dir", data}));
  (void)saved_behind(0);
  fs::remove_all(data);
  kill_rank(1);
  const ProcessResult result = job.wait();
  EXPECT_TRUE(result.code == 2 || result.code == 3) << result.code << result.output;
  EXPECT_EQ(events("lost"), 1u) << result.output;
}

TEST_F(ElasticTest, MistakesAreRefused) {
  expect_end(millrace(training("--no-logs")), 2, {"--no-logs"});
  expect_end(millrace(training("--ckpts-per-epoch 0")), 2, {"--elastic goes on from checkpoints"});
  expect_end(millrace(short_training(4, 4) + Words{"--min-ranks 2 --run-dir", run_}), 2,
             {"--min-ranks", "elastic"});
  expect_end(millrace(short_training(4, 4) + Words{"--partner-every 2 --run-dir", run_}), 2,
             {"--partner-every", "elastic"});
  expect_end(millrace(training({"--min-ranks 9"})), 2, {"--min-ranks 9: the run has only 2 ranks"});
  expect_end(mpirun(2, training({"--probe-every 9"})), 2,
             {"--probe-every has no effect here: millrace starts only those ranks again"});
  EXPECT_FALSE(fs::exists(run_));
  expect_end(mpirun(2, training({"--iterations 1"})), 0, {"so a lost one ends the job"});
}

}  // namespace
}  // namespace millrace::test
