// SPDX-License-Identifier: Apache-2.0
//
// Pipelines and replicas over real processes: they give the bits of one process, also when restored
// in other layouts or with delayed and unbuffered messages; ranks that die or hang are reported.
#include <sched.h>
#include <signal.h>
#include <unistd.h>
#include <regex>
#include <thread>

#include "job.hpp"
#include "mpirun.hpp"
#include "run_tables.hpp"
#include "support/covering.hpp"

namespace millrace::test {
namespace {

/// Six iterations of eight micro-batches, with validation.
const Words kRun = {
    "--batch-size 8 --gradients-to-accumulate 8 --iterations 6 --log-freq 2 --threads-per-device "
    "1"};

/// A layout over processes.
struct Ranks {
  int ranks;
  int stages;
  const char* schedule;
  bool recompute;
  const char* precision;
};

/// Those that depend on processes. Threads, norms, and recomputed layers use the same kernels in
/// one process, where law_test covers them.
std::vector<Ranks> layouts_over_ranks() {
  std::vector<Ranks> all;
  for (const int ranks : {2, 4})
    for (const int stages : {4, 8})
      for (const char* schedule :
           {"Sequential", "Grouped", "GPipe", "1F1B", "ZB-H1", "auto", "Looped", "ZB-V"})
        for (const bool recompute : {false, true})
          for (const char* precision : {"16.32", "32.32"})
            all.push_back({ranks, stages, schedule, recompute, precision});
  return all;
}

test::Choices choices(const Ranks& l) {
  return {l.ranks, l.stages, l.schedule[2] + 256 * l.schedule[3], l.recompute, l.precision[0]};
}

Words layout_of(const Ranks& l) {
  const int chunks = l.schedule == std::string("Looped") || l.schedule[3] == 'V' ? 2 : 1;
  Words words = {"--shards",
                 std::to_string(l.stages / chunks),
                 "--ranks",
                 std::to_string(std::min(l.ranks, l.stages / chunks)),
                 "--pipeline-splits auto --pipeline-schedule",
                 l.schedule};
  if (chunks > 1) words = words + "--chunks 2";
  return l.recompute ? words + "--xla-recompute" : words;
}

/// On the fake device, messages go by what stands in for NCCL if it is told to be there.
bool stands_in() { return std::getenv("MILLRACE_STAND_IN_NCCL") != nullptr; }

TEST(RouteTest, DoctorSaysWhichWayMessagesGo) {
  const auto expect_said = [](const ProcessResult& result, const std::string& way) {
    expect_end(result, 0, {"messages   within a rank: a copy\n           between ranks: " + way});
  };
  expect_end(millrace("doctor"), 0, {"messages   within a rank: a copy\ncores"});
  expect_said(mpirun(2, "doctor"),
              stands_in() ? "by NCCL 2.28.9 from device to device\n" : "by MPI");
  const Variable asked("MILLRACE_MESSAGES", "mpi");
  expect_said(mpirun(2, "doctor"), "by MPI");
}

// Whether or not there are messages that it could matter to.
TEST(RouteTest, AWrongWayIsRefusedByAnyNumberOfRanks) {
  const char* const line = "MILLRACE_MESSAGES=carrier pigeons: use mpi, or unset it";
  const Variable wrong("MILLRACE_MESSAGES", "carrier pigeons");
  const Words training = kRun + "--no-logs";
  for (const Words& words :
       {Words("doctor"), Words("train") + training, Words("train --shards 2") + training}) {
    const ProcessResult result = millrace(words);
    expect_end(result, 2, {});
    EXPECT_EQ(result.output, std::string("millrace: error: ") + line + "\n");
  }
  expect_end(mpirun(2, "doctor"), 2, {line});
}

// Every send waits for its receive, and messages are delayed at random.
TEST(LawOverRanksTest, EveryPairOfChoicesGivesTheBitsOfOneStage) {
  const TemporaryDirectory directory;
  for (const char* precision : {"16.32", "32.32"})
    ASSERT_EQ(train(directory / precision, kRun + Words{"--precision", precision}).code, 0);
  const std::vector<Ranks> all = layouts_over_ranks();
  std::vector<test::Choices> factors;
  for (const Ranks& layout : all) factors.push_back(choices(layout));
  std::vector<std::size_t> chosen = test::covering_array(factors);
  if (whole()) {
    chosen.resize(all.size());
    std::iota(chosen.begin(), chosen.end(), 0u);
  }
  std::printf("%zu of %zu layouts\n", chosen.size(), all.size());
  const Variable shim("LD_PRELOAD", MILLRACE_MPI_SHIM);
  for (const std::size_t i : chosen) {
    const Variable seed("MILLRACE_SHIM_SEED", std::to_string(i));
    const fs::path reference = directory / all[i].precision;
    const fs::path run = directory / std::to_string(i);
    const ProcessResult result =
        train(run, kRun + Words{"--precision", all[i].precision} + layout_of(all[i]));
    expect_end(result, 0, {"Bubble: "});
    EXPECT_EQ(digest_of(run), digest_of(reference)) << result.output;
    for (const char* csv : {"training.csv", "validation.csv"})
      EXPECT_EQ(timeless_columns(run / csv), timeless_columns(reference / csv)) << result.output;
  }
}

TEST(ReplicasTest, ARunContinuesWithOthers) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  ASSERT_EQ(train(run, kRun + "--no-validation --stop-after 2").code, 75);
  expect_end(restore(run, "--replicas 4 --ranks 2"), 0);
  EXPECT_EQ(restore(run, "--replicas 3").code, 2);
}

/// Four replicas of two stages, with batch statistics over two or all of them.
Words spanning(const char* span) {
  return {
      "--no-validation --batch-norm --replicas 4 --gradients-to-accumulate 2 --pipeline-splits "
      "b2/0/conv2 --shards 2 --BN-span",
      span};
}

// Every send waits for its receive, and messages are delayed at random.
TEST(SpanTest, DelaysAndUnbufferedSendsChangeNothing) {
  const TemporaryDirectory directory;
  const Words mathematics = kRun + "--iterations 3";
  ASSERT_EQ(train(directory / "one", mathematics + spanning("2") + "--ranks 1").code, 0);
  const std::string expected = digest_of(directory / "one");
  const Variable shim("LD_PRELOAD", MILLRACE_MPI_SHIM);
  const char* schedules[] = {"1F1B", "Grouped", "GPipe", "ZB-H1", "Sequential", "ZB-V"};
  const char* ranks[] = {"4", "8", "2", "4", "8", "4"};
  for (std::size_t i = 0; i < std::size(schedules); ++i) {
    const Variable seed("MILLRACE_SHIM_SEED", std::to_string(i));
    const fs::path run = directory / schedules[i];
    Words layout = spanning("2") + Words{"--pipeline-schedule", schedules[i], "--ranks", ranks[i]};
    if (schedules[i] == std::string("ZB-V"))
      std::replace(layout.begin(), layout.end(), std::string("b2/0/conv2"), std::string("auto"));
    expect_end(train(run, mathematics + layout), 0);
    EXPECT_EQ(digest_of(run), expected) << schedules[i];
  }
}

/// Expects the digest of one rank, although messages are delayed and wait for their receives.
void expect_the_digest_of_one_rank(const Words& run, std::initializer_list<const char*> ranks) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train(directory / "one", run + "--ranks 1").code, 0);
  const Variable shim("LD_PRELOAD", MILLRACE_MPI_SHIM);
  for (const char* const several : ranks) {
    const Variable seed("MILLRACE_SHIM_SEED", several);
    expect_end(train(directory / several, run + Words{"--ranks", several}), 0);
    EXPECT_EQ(digest_of(directory / several), digest_of(directory / "one")) << several;
  }
}

// A group of three replicas of two stages on three ranks: the middle replica spans two ranks.
TEST(SpanTest, GroupsMayLieAcrossRanks) {
  expect_the_digest_of_one_rank(
      kRun +
          "--iterations 3 --no-validation --batch-norm --replicas 3 --BN-span 3 --shards 2 "
          "--pipeline-splits b2/0/conv2 --gradients-to-accumulate 2",
      {"2", "3", "6"});
}

// A run with shared batch statistics is restored and validated like any other.
// Eight devices of fewer processes, which have one to four of them.
TEST(SpanTest, AnyNumberOfRanksSharesTheDevices) {
  const Words run = kRun + "--iterations 2" + spanning("2");
  expect_the_digest_of_one_rank(run, {"3", "5", "7"});
  const TemporaryDirectory directory;
  const auto digest_with = [&](const char* name, const char* layout) {
    expect_end(train(directory / name, run + layout), 0);
    return digest_of(directory / name);
  };
  EXPECT_EQ(digest_with("given", "--devices-of-ranks 4 1 3"), digest_with("one", "--ranks 1"));
}

// Four replicas of two stages, and of one, whose work fewer processes have equal parts of.
TEST(SpreadTest, EqualPartsGiveTheDigestOfOneRank) {
  const Words run = kRun + "--iterations 3 --replicas 4 --gradients-to-accumulate 2";
  expect_the_digest_of_one_rank(run + "--shards 2 --pipeline-splits auto", {"3", "5", "7"});
  expect_the_digest_of_one_rank(run + "--shard-optimizer --no-validation", {"3"});
  // Ranks that are fewer than the devices split backward passes.
  expect_the_digest_of_one_rank(
      kRun +
          "--iterations 2 --replicas 2 --shards 4 --gradients-to-accumulate 6 "
          "--pipeline-splits auto --no-validation",
      {"5"});
}

TEST(SpreadTest, ARunContinuesInEqualParts) {
  const TemporaryDirectory directory;
  const Words run = kRun +
                    "--replicas 2 --gradients-to-accumulate 4 --shards 2 --pipeline-splits "
                    "b2/0/relu";
  ASSERT_EQ(train(directory / "whole", run).code, 0);
  const std::string path = (directory / "parts").string();
  ASSERT_EQ(train(path, run + "--stop-after 2").code, 75);
  const std::string said = "Spread over 3 ranks: ";
  expect_end(restore(path, "--ranks 3 --stop-after 1"), 75, {said});
  expect_end(restore(path, "--stop-after 1"), 75, {said});  // as it was recorded
  expect_end(restore(path, "--ranks 4 --speeds-of-ranks 1 1 0.3 1 --stop-after 1"), 75,
             {"Spread over 4 ranks: "});
  const ProcessResult rest = restore(path, "--ranks 4");
  expect_end(rest, 0, {"Pipeline: 2 stages on 2 devices"});
  EXPECT_EQ(rest.output.find(said), std::string::npos);
  EXPECT_EQ(digest_of(path), digest_of(directory / "whole"));
}

TEST(SpanTest, ARunContinuesOverOtherRanks) {
  const TemporaryDirectory directory;
  const Words run = kRun + spanning("2");
  ASSERT_EQ(train(directory / "whole", run).code, 0);
  const std::string path = (directory / "parts").string();
  ASSERT_EQ(train(path, run + "--stop-after 2").code, 75);
  expect_end(restore(path, "--ranks 2 --xla-recompute"), 0);
  EXPECT_EQ(digest_of(path), digest_of(directory / "whole"));
  expect_end(millrace({"validate --restore-path", path}), 0);
}

TEST(RelayTest, ARunContinuesInOtherLayouts) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train(directory / "whole", kRun).code, 0);
  const fs::path run = directory / "run";
  const std::string path = run.string();
  ASSERT_EQ(train(run, kRun + "--shards 2 --pipeline-splits b2/0/relu --stop-after 2").code, 75);
  expect_end(restore(path, "--shards 4 --pipeline-schedule GPipe --ranks 2 --stop-after 2"), 75);
  expect_end(restore(path, "--shards 1"), 0);
  EXPECT_EQ(digest_of(run), digest_of(directory / "whole"));
  EXPECT_EQ(timeless_columns(run / "training.csv"),
            timeless_columns(directory / "whole" / "training.csv"));
}

TEST(RelayTest, PlansMappingsAndScheduleFilesAreTaken) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train(directory / "one", kRun).code, 0);
  const std::string expected = digest_of(directory / "one");
  const auto same = [&](const std::string& name, const Words& layout) {
    expect_end(train(directory / name, kRun + layout + "--stop-after 3"), 75);
    expect_end(restore(directory / name), 0);  // as config.toml recorded it
    EXPECT_EQ(digest_of(directory / name), expected) << name;
  };
  const auto printed = [&](const std::string& file, const Words& words) {
    const ProcessResult result = millrace(
        Words{"plan --dataset cifar-10 --model-size 8 --batch-size 8 --gradients-to-accumulate 8"} +
            words,
        Capture::Output);
    EXPECT_EQ(result.code, 0) << result.output;
    std::ofstream(directory / file) << result.output;
    return (directory / file).string();
  };
  same("zbv",
       {"--plan", printed("zbv.json", {"--shards 2 --pipeline-schedule ZB-V --format json"})});
  same("auto",
       {"--plan", printed("auto.json", {"--shards 3 --pipeline-schedule auto --format json"})});
  const Words two = {"--shards 2 --pipeline-splits b2/0/relu"};
  const std::string list = printed("list.csv", two + "--pipeline-schedule ZB-H1 --format csv");
  same("list", two + Words{"--pipeline-schedule-file", list});
  for (const std::string name : {"DualPipeV", "LoopedBFS"})  // stages are where the rows have them
    same(name, {"--pipeline-splits auto --pipeline-schedule-file",
                std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/pytorch/schedules/" + name +
                    "-2-8.csv"});
  same("mapped", {"--pipeline-splits b1/0/relu b3/0/relu --device-mapping 0 1 0"});
}

TEST(ReplicasTest, DelaysDoNotReorderSumsOverAnyNumberOfRanks) {
  expect_the_digest_of_one_rank(kRun +
                                    "--no-validation --replicas 2 --gradients-to-accumulate 4 "
                                    "--shards 2 --pipeline-splits b2/0/relu --weight-check-every 2",
                                {"2", "4"});
}

/// Numbers of the cores that a process may use.
std::vector<int> cores_of(pid_t process) {
  std::vector<int> cores;
  cpu_set_t mask;
  if (sched_getaffinity(process, sizeof mask, &mask) != 0) return cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) cores.push_back(cpu);
  return cores;
}

/// A long training on ranks, in the background.
class Background {
 public:
  explicit Background(const Words& more = {})
      : job_(usual_training(
            directory_ / "run",
            Words{"--batch-size 8 --gradients-to-accumulate 8 --iterations 100000 --no-validation "
                  "--disable-checkpoints --shards 2 --pipeline-splits b2/0/relu"} +
                more)) {
    EXPECT_TRUE(job_.wait_for("Memory: ")) << job_.output();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  [[nodiscard]] pid_t rank(int number) const { return process_of_rank(directory_ / "run", number); }
  ProcessResult wait() { return job_.wait(); }

 private:
  TemporaryDirectory directory_;
  Job job_;
};

TEST(DevicesTest, RanksComputeOnThoseThatTheyWereGiven) {
  const std::vector<int> all = cores_of(getpid());
  if (all.size() < 2) GTEST_SKIP() << "this process may use one core only";
  Background job("--select-ipus 1 0");
  for (const int rank : {0, 1}) {
    ASSERT_GT(job.rank(rank), 0);
    EXPECT_EQ(cores_of(job.rank(rank)), std::vector<int>{all[rank == 0 ? 1 : 0]});
  }
  kill(job.rank(0), SIGTERM);
  (void)job.wait();
}

TEST(FailureTest, ADeadRankEndsTheJob) {
  Background job;
  ASSERT_GT(job.rank(1), 0);
  kill(job.rank(1), SIGKILL);
  // The launcher says which.
  expect_end(job.wait(), 7, {"process rank 1 ", "a rank was ended by signal 9 (Killed)"});
}

// The step is long enough to stop the rank within it. The other devices of its stage report for
// whom they wait.
TEST(FailureTest, AHangNamesWhoseStatisticsAreMissing) {
  Background job(
      "--hang-timeout 2 --replicas 2 --BN-span 2 --batch-norm --gradients-to-accumulate 500 "
      "--synthetic-data");
  const pid_t rank = job.rank(2);
  ASSERT_GT(rank, 0);
  kill(rank, SIGSTOP);
  const ProcessResult result = job.wait();
  kill(rank, SIGKILL);
  // With NCCL the device waits and not the process, which cannot tell for whom.
  expect_end(result, 124,
             {stands_in() ? "rank 2 (replica 1, stage 0) did not respond"
                          : "waits for the batch statistics of replica 1 (rank 2)"});
}

TEST(FailureTest, NobodyWhoReadsStopsNobodyWhoTrains) {
  const TemporaryDirectory directory;
  std::string line = MILLRACE_BINARY;
  for (const std::string& word :
       usual_training(directory / "run", kRun + "--shards 2 --pipeline-splits b2/0/relu"))
    line += " '" + word + "'";
  expect_end(run_process("/bin/bash", {"-c", line + " | head -n 1; exit ${PIPESTATUS[0]}"}), 0);
  EXPECT_EQ(millrace({"inspect", directory / "run", "--verify"}).code, 0);
}

/// Works both before and after the ranks have started.
TEST(SignalTest, AnEarlyOneStopsTheJobAsWell) {
  const TemporaryDirectory directory;
  for (const char* seconds : {"0.02", "0.05", "0.1", "0.2", "0.4"}) {
    const ProcessResult result = run_process(
        "/usr/bin/timeout",
        Words{"--preserve-status --signal=TERM", seconds, std::string(MILLRACE_BINARY)} +
            usual_training(directory / seconds,
                           "--iterations 100000 --shards 2 --pipeline-splits b2/0/relu"));
    EXPECT_TRUE(result.code == 75 || result.code == 128 + SIGTERM)
        << seconds << " s: " << result.code << "\n"
        << result.output;
  }
}

TEST(LayoutMistakesTest, AreRefusedBeforeAnythingIsTrained) {
  const TemporaryDirectory directory;
  const auto refused = [&](const Words& layout, const std::string& text) {
    expect_end(train(directory / "run", kRun + layout), 2, {text});
    EXPECT_FALSE(fs::exists(directory / "run"));
  };
  const Words open = "--shards 2 --pipeline-schedule 1F1B";
  refused(open, "--pipeline-splits not specified or wrong number of splits. Need 1 of [");
  // The table of possible cuts has a line for each, whoever starts the ranks.
  expect_end(mpirun(2, usual_training(directory / "run", kRun + open)), 2,
             {"Need 1 of [", "\nb2/0/relu ", "\n--pipeline-splits auto would select: "});
  refused("--shards 2 --pipeline-splits b9/9/relu", "b9/9/relu");
  refused("--shards 3 --pipeline-splits b3/0/relu b2/0/relu", "order");
  refused("--shards 2 --pipeline-splits b2/0/relu b2/0/relu", "given twice");
  refused("--shards 2 --pipeline-splits b2/0/relu --ranks 3", "3 ranks, but only 2 device(s)");
  refused("--replicas 3 --devices-of-ranks 2 2",
          "2 2 are 4 devices of 2 ranks, but the run has 3 (1 shards x 3 replicas) of 2");
  refused("--replicas 3 --speeds-of-ranks 1 0.5",
          "--speeds-of-ranks 1 0.5: 2 numbers for 3 rank(s); give one for each");
  refused("--replicas 3 --speeds-of-ranks 1 0.5 1.5",
          "'1.5' is not a number above 0 and at most 1");
  refused("--replicas 2 --speeds-of-ranks 1 0.5 --device-memory 8GiB",
          "leave that or the speeds out");
  refused("--replicas 3 --devices-of-ranks 3 0", "a rank without a device has nothing to do");
  refused("--shards 2 --pipeline-splits b2/0/relu --no-launch", "--no-launch");
  refused("--shards 2 --pipeline-splits auto --chunks 2", "Looped");
  refused("--pipeline-splits b2/0/relu --device-mapping 0 2", "device 1 of 3");
  refused(
      {"--shards 2 --pipeline-splits b1/0 b2/0 --device-mapping 0 1 2 --pipeline-schedule auto"},
      "needs 3 devices, but --shards is 2");
  refused("--replicas 2 --hosts a:1", "room for 1 ranks");
  refused("--replicas 2 --hosts a:x", "'a:x'");
  refused("--replicas 2 --ssh-port 99", "--ssh-port has no effect");
}

TEST(StartTest, RanksHaveTheCoresThatAnyOfThemMayUse) {
  const Variable root("OMPI_ALLOW_RUN_AS_ROOT", "1");
  const Variable confirmed("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  Words cores;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) cores.push_back(std::to_string(cpu));
  if (cores.size() < 2) GTEST_SKIP() << "there is one core only";
  const auto rank_on = [](const std::string& core) {
    return Words{"-n 1 /usr/bin/taskset -c", core, std::string(MILLRACE_BINARY), "doctor"};
  };
  const auto cores_with = [&](const std::string& first, const std::string& second) {
    const ProcessResult result =
        run_process(MILLRACE_MPIEXEC, rank_on(first) + ":" + rank_on(second));
    EXPECT_EQ(result.code, 0) << result.output;
    std::smatch match;
    EXPECT_TRUE(std::regex_search(result.output, match, std::regex("\ncores +([0-9]+)")))
        << result.output;
    return match[1].str();
  };
  EXPECT_EQ(cores_with(cores[0], cores[1]), "2");
  EXPECT_EQ(cores_with(cores[0], cores[0]), "1");
}

const Words kTwoRanks = kRun + "--shards 2 --pipeline-splits b2/0/relu";

// Open MPI looks for ssh even if no other machine takes part.
TEST(StartTest, RanksHereNeedNoSsh) {
  const TemporaryDirectory directory;
  expect_end(millrace_with({std::string("PATH=") + directory.path().string()},
                           usual_training(directory / "run", kTwoRanks)),
             0, {"Starting 2 ranks on this machine"});
}

TEST(StartTest, TasksOfSrunThatMpiDoesNotJoinAreRefusedInOneLine) {
  const TemporaryDirectory directory;
  const Words training = usual_training(directory / "run", kRun);
  for (const Words& words : {training, usual_training(directory / "run", kTwoRanks),
                             Words("doctor"), Words("bench --batch-sizes 1,2")}) {
    const Words step = "SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2";
    const ProcessResult first = millrace_with(step + "SLURM_PROCID=0", words);
    expect_end(first, 2, {"srun started 2 tasks, but did not join them", "srun --mpi=pmix"});
    EXPECT_EQ(std::ranges::count(first.output, '\n'), 1) << first.output;
    const ProcessResult second = millrace_with(step + "SLURM_PROCID=1", words);
    expect_end(second, 2);
    EXPECT_EQ(second.output, "");
  }
  EXPECT_FALSE(fs::exists(directory / "run"));
}

// The tasks of a batch script or of a shell are those that could be started.
TEST(StartTest, WhatStartsRanksUnderSlurmIsNotRefused) {
  const TemporaryDirectory directory;
  const Words variables[] = {"SLURM_NTASKS=2 SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1"};
  for (const Words& started : variables)
    expect_end(millrace_with(started, usual_training(directory / started.front(), kTwoRanks)), 0,
               {"Starting 2 ranks"});
  const Variable tasks("SLURM_STEP_NUM_TASKS", "4");
  expect_end(mpirun(2, usual_training(directory / "mpirun", kTwoRanks)), 0, {"Rank 1: "});
}

}  // namespace
}  // namespace millrace::test
