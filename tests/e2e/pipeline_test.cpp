// SPDX-License-Identifier: Apache-2.0
//
// Pipelines and replicas over real processes: they give the bits of one process, also when restored
// in other layouts or with delayed and unbuffered messages; ranks that die or hang are reported.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <map>
#include <regex>
#include <thread>
#include <utility>

#include "job.hpp"
#include "support/covering.hpp"

namespace millrace::test {
namespace {

/// Six iterations of eight micro-batches, with validation.
const Words kRun = {"--batch-size", "8", "--gradients-to-accumulate", "8", "--iterations", "6",
                    "--log-freq",   "2", "--threads-per-device",      "1"};

/// A layout over processes, given by the values of its factors.
struct Ranks {
  int ranks;
  int stages;
  const char* schedule;
  int chunks;
  int recompute;  ///< 0 none, 1 the stage, 2 some layers
  const char* precision;
  const char* norm;
  int threads;
};

bool whole() { return std::getenv("MILLRACE_LONG_TESTS") != nullptr; }

/// Whether the layout depends on processes. Threads, norms and the recomputed layers use the same
/// kernels in one process, where law_test covers them.
bool needs_processes(const Ranks& l) {
  return l.ranks > 1 && l.stages > 2 && l.threads == 1 && l.recompute < 2 &&
         l.norm == std::string("--batch-norm");
}

std::vector<Ranks> layouts_over_ranks() {
  std::vector<Ranks> all;
  for (const int ranks : {1, 2, 4})
    for (const int stages : {2, 4, 8})
      for (const char* schedule :
           {"Sequential", "Grouped", "GPipe", "1F1B", "ZB-H1", "auto", "Looped", "ZB-V"})
        for (const int recompute : {0, 1, 2})
          for (const char* precision : {"16.32", "32.32"})
            for (const char* norm : {"--batch-norm", "--group-norm"})
              for (const int threads : {1, 2}) {
                const bool chunked = schedule == std::string("Looped") || schedule[3] == 'V';
                const int chunks = chunked ? 2 : 1;
                const int devices = stages / chunks;
                if (devices % ranks == 0 && !(chunked && devices < 2))
                  all.push_back(
                      {ranks, stages, schedule, chunks, recompute, precision, norm, threads});
              }
  if (!whole()) std::erase_if(all, [](const Ranks& l) { return !needs_processes(l); });
  return all;
}

test::Choices choices(const Ranks& l) {
  const auto letters = [](const char* text) { return text[2] + 256 * text[3]; };
  return {l.ranks,         l.stages, letters(l.schedule), l.recompute, l.precision[0],
          letters(l.norm), l.threads};
}

Words mathematics_of(const Ranks& l) {
  Words words = {"--precision", l.precision, l.norm, "--threads-per-device",
                 std::to_string(l.threads)};
  if (l.norm == std::string("--group-norm")) words = words + Words{"--groups", "4"};
  return words;
}

Words layout_of(const Ranks& l) {
  Words words = {"--shards",
                 std::to_string(l.stages / l.chunks),
                 "--ranks",
                 std::to_string(l.ranks),
                 "--pipeline-splits",
                 "auto",
                 "--pipeline-schedule",
                 l.schedule};
  if (l.chunks > 1) words = words + Words{"--chunks", std::to_string(l.chunks)};
  if (l.recompute == 1) words.emplace_back("--xla-recompute");
  if (l.recompute == 2) words = words + Words{"--recompute-layers", "b1", "b3/0"};
  return words;
}

TEST(LawOverRanksTest, EveryPairOfChoicesGivesTheBitsOfOneStage) {
  const TemporaryDirectory directory;
  const std::vector<Ranks> all = layouts_over_ranks();
  std::vector<test::Choices> factors;
  factors.reserve(all.size());
  for (const Ranks& layout : all) factors.push_back(choices(layout));
  const std::vector<std::size_t> chosen = test::covering_array(factors);
  std::printf("%zu of %zu layouts\n", chosen.size(), all.size());
  EXPECT_LE(chosen.size(), 60u);
  std::map<Words, std::filesystem::path> references;
  int number = 0;
  for (const std::size_t i : chosen) {
    const Words mathematics = mathematics_of(all[i]);
    auto& reference = references[mathematics];
    if (reference.empty()) {
      reference = directory / ("reference" + std::to_string(references.size()));
      ASSERT_EQ(train(reference, kRun + mathematics).code, 0);
    }
    const std::filesystem::path run = directory / std::to_string(number++);
    const ProcessResult result = train(run, kRun + mathematics + layout_of(all[i]));
    ASSERT_EQ(result.code, 0) << result.output;
    EXPECT_EQ(digest_of(run), digest_of(reference)) << result.output;
    EXPECT_NE(result.output.find("Bubble: "), std::string::npos) << result.output;
    for (const char* csv : {"training.csv", "validation.csv"})
      EXPECT_EQ(timeless_columns(run / csv), timeless_columns(reference / csv)) << result.output;
  }
}

/// The command lines of the IPU trainer's guide, on small images and, in the short form of this
/// test, with fewer micro-batches.
TEST(SeedTest, CommandLinesOfTheGuideRun) {
  const TemporaryDirectory directory;
  const std::vector<Words> lines = {
      {"--batch-size", "2", "--xla-recompute", "--no-validation", "--shards", "2",
       "--pipeline-depth", "256", "--pipeline-splits", "b3/1/relu", "--available-memory-proportion",
       "0.1"},
      {"--batch-size", "1", "--available-memory-proportion", "0.1", "--no-validation"},
      {"--batch-size", "2", "--shards", "2", "--pipeline-depth", "128", "--pipeline-splits",
       "b3/0/relu", "--pipeline-schedule", "Grouped", "--available-memory-proportion", "0.4",
       "--xla-recompute", "--replicas", "4", "--no-validation"},
      {"--batch-size",
       "4",
       "--batches-per-step",
       "1",
       "--shards",
       "4",
       "--pipeline-depth",
       "64",
       "--pipeline-splits",
       "b1/2/relu",
       "b2/3/relu",
       "b3/5/relu",
       "--xla-recompute",
       "--replicas",
       "4",
       "--distributed",
       "--no-stochastic-rounding",
       "--base-learning-rate",
       "-11",
       "--no-validation"}};
  int number = 0;
  for (const Words& line : lines) {
    const std::string run = (directory / std::to_string(number++)).string();
    const bool deep = std::find(line.begin(), line.end(), "--pipeline-depth") != line.end();
    Words less = whole() ? Words{} : Words{"--threads-per-device", "1"};
    if (!whole() && deep) less = less + Words{"--pipeline-depth", "4"};
    const ProcessResult result =
        millrace(Words{"train", "--dataset", "imagenet", "--data-dir", ".../imagenet-data",
                       "--model-size", "50"} +
                 line + less +
                 Words{"--precision", "16.32", "--synthetic-data", "--iterations", "1",
                       "--image-size", "32", "--run-dir", run});
    EXPECT_EQ(result.code, 0) << result.output;
    EXPECT_NE(result.output.find("ckpt-1"), std::string::npos) << result.output;
  }
}

TEST(ReplicasTest, ARunContinuesWithOthers) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  ASSERT_EQ(train(run, kRun + Words{"--no-validation", "--stop-after", "2"}).code, 75);
  const ProcessResult result =
      millrace({"restore", "--restore-path", run.string(), "--replicas", "4", "--ranks", "2"});
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_EQ(millrace({"restore", "--restore-path", run.string(), "--replicas", "3"}).code, 2);
}

TEST(ReplicasTest, AreReproducibleOverAnyNumberOfRanks) {
  const TemporaryDirectory directory;
  const Words layout = {"--replicas",
                        "2",
                        "--shards",
                        "2",
                        "--pipeline-splits",
                        "b2/0/relu",
                        "--gradients-to-accumulate",
                        "4",
                        "--weight-check-every",
                        "2"};
  ASSERT_EQ(train(directory / "a", kRun + layout).code, 0);
  for (const char* ranks : {"1", "2"}) {
    ASSERT_EQ(train(directory / ranks, kRun + layout + Words{"--ranks", ranks}).code, 0);
    EXPECT_EQ(digest_of(directory / ranks), digest_of(directory / "a")) << ranks;
    EXPECT_EQ(timeless_columns(directory / ranks / "training.csv"),
              timeless_columns(directory / "a" / "training.csv"));
  }
}

/// Four replicas of two stages, with batch statistics over two or all of them.
Words spanning(const char* span) {
  return {"--no-validation",
          "--batch-norm",
          "--replicas",
          "4",
          "--gradients-to-accumulate",
          "2",
          "--pipeline-splits",
          "b2/0/conv2",
          "--shards",
          "2",
          "--BN-span",
          span};
}

TEST(SpanTest, IsReproducibleOverAnyNumberOfRanks) {
  const TemporaryDirectory directory;
  for (const auto& [precision, span] : {std::pair{"16.32", "2"}, std::pair{"32.32", "4"}}) {
    const Words run =
        kRun + spanning(span) +
        Words{"--precision", precision, "--iterations", "3", "--weight-check-every", "1"};
    std::string expected;
    for (const char* ranks : {"1", "2", "4", "8"}) {
      const std::filesystem::path path = directory / (std::string(span) + ranks);
      const ProcessResult result = train(path, run + Words{"--ranks", ranks});
      ASSERT_EQ(result.code, 0) << result.output;
      if (expected.empty()) expected = digest_of(path);
      EXPECT_EQ(digest_of(path), expected) << span << " over " << ranks << " ranks";
    }
  }
}

// Every send waits for its receive, and messages are delayed at random.
TEST(SpanTest, DelaysAndUnbufferedSendsChangeNothing) {
  const TemporaryDirectory directory;
  const Words mathematics = kRun + Words{"--iterations", "3"};
  ASSERT_EQ(train(directory / "one", mathematics + spanning("2") + Words{"--ranks", "1"}).code, 0);
  const std::string expected = digest_of(directory / "one");
  const Variable shim("LD_PRELOAD", MILLRACE_MPI_SHIM);
  const char* schedules[] = {"1F1B", "Grouped", "GPipe", "ZB-H1", "Sequential", "ZB-V"};
  const char* ranks[] = {"4", "8", "2", "4", "8", "4"};
  for (std::size_t i = 0; i < std::size(schedules); ++i) {
    const Variable seed("MILLRACE_SHIM_SEED", std::to_string(i));
    const std::filesystem::path run = directory / schedules[i];
    Words layout = spanning("2") + Words{"--pipeline-schedule", schedules[i], "--ranks", ranks[i]};
    if (schedules[i] == std::string("ZB-V"))
      std::replace(layout.begin(), layout.end(), std::string("b2/0/conv2"), std::string("auto"));
    const ProcessResult result = train(run, mathematics + layout);
    ASSERT_EQ(result.code, 0) << result.output;
    EXPECT_EQ(digest_of(run), expected) << schedules[i];
  }
}

// A group of three replicas of two stages on three ranks: the middle replica spans two ranks.
TEST(SpanTest, GroupsMayLieAcrossRanks) {
  const TemporaryDirectory directory;
  const Words run = kRun + Words{"--iterations",
                                 "3",
                                 "--no-validation",
                                 "--batch-norm",
                                 "--replicas",
                                 "3",
                                 "--BN-span",
                                 "3",
                                 "--shards",
                                 "2",
                                 "--pipeline-splits",
                                 "b2/0/conv2",
                                 "--gradients-to-accumulate",
                                 "2"};
  ASSERT_EQ(train(directory / "one", run + Words{"--ranks", "1"}).code, 0);
  const Variable shim("LD_PRELOAD", MILLRACE_MPI_SHIM);
  for (const char* ranks : {"2", "3", "6"}) {
    const ProcessResult result = train(directory / ranks, run + Words{"--ranks", ranks});
    ASSERT_EQ(result.code, 0) << result.output;
    EXPECT_EQ(digest_of(directory / ranks), digest_of(directory / "one")) << ranks;
  }
}

// A run with shared batch statistics is restored and validated like any other.
TEST(SpanTest, ARunContinuesOverOtherRanks) {
  const TemporaryDirectory directory;
  const Words run = kRun + spanning("2");
  ASSERT_EQ(train(directory / "whole", run).code, 0);
  const std::string path = (directory / "parts").string();
  ASSERT_EQ(train(path, run + Words{"--stop-after", "2"}).code, 75);
  const ProcessResult rest =
      millrace({"restore", "--restore-path", path, "--ranks", "2", "--xla-recompute"});
  ASSERT_EQ(rest.code, 0) << rest.output;
  EXPECT_EQ(digest_of(path), digest_of(directory / "whole"));
  const ProcessResult validated = millrace({"validate", "--restore-path", path});
  EXPECT_EQ(validated.code, 0) << validated.output;
}

TEST(RelayTest, ARunContinuesInOtherLayouts) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train(directory / "whole", kRun).code, 0);
  const std::filesystem::path run = directory / "run";
  const std::string path = run.string();
  ASSERT_EQ(train(run, kRun + Words{"--shards", "2", "--pipeline-splits", "b2/0/relu",
                                    "--stop-after", "2"})
                .code,
            75);
  const ProcessResult four =
      millrace({"restore", "--restore-path", path, "--shards", "4", "--pipeline-schedule", "GPipe",
                "--ranks", "2", "--stop-after", "2"});
  ASSERT_EQ(four.code, 75) << four.output;
  const ProcessResult one = millrace({"restore", "--restore-path", path, "--shards", "1"});
  ASSERT_EQ(one.code, 0) << one.output;
  EXPECT_EQ(digest_of(run), digest_of(directory / "whole"));
  EXPECT_EQ(timeless_columns(run / "training.csv"),
            timeless_columns(directory / "whole" / "training.csv"));
}

TEST(RelayTest, PlansMappingsAndScheduleFilesAreTaken) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train(directory / "one", kRun).code, 0);
  const std::string expected = digest_of(directory / "one");
  const auto same = [&](const std::string& name, const Words& layout) {
    const ProcessResult result = train(directory / name, kRun + layout);
    EXPECT_EQ(result.code, 0) << result.output;
    EXPECT_EQ(digest_of(directory / name), expected) << name;
  };
  const auto printed = [&](const std::string& file, const Words& words) {
    const ProcessResult result =
        millrace(Words{"plan", "--dataset", "cifar-10", "--model-size", "8", "--batch-size", "8",
                       "--gradients-to-accumulate", "8"} +
                     words,
                 Capture::Output);
    EXPECT_EQ(result.code, 0) << result.output;
    std::ofstream(directory / file) << result.output;
    return (directory / file).string();
  };
  same("zbv", {"--plan", printed("zbv.json", {"--shards", "2", "--pipeline-schedule", "ZB-V",
                                              "--format", "json"})});
  same("auto", {"--plan", printed("auto.json", {"--shards", "3", "--pipeline-schedule", "auto",
                                                "--format", "json"})});
  const Words two = {"--shards", "2", "--pipeline-splits", "b2/0/relu"};
  const std::string list =
      printed("list.csv", two + Words{"--pipeline-schedule", "ZB-H1", "--format", "csv"});
  same("list", two + Words{"--pipeline-schedule-file", list});
  for (const std::string name : {"DualPipeV", "LoopedBFS"})  // stages are where the rows have them
    same(name, {"--pipeline-splits", "auto", "--pipeline-schedule-file",
                std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/pytorch/schedules/" + name +
                    "-2-8.csv"});
  const Words there_and_back = {
      "--pipeline-splits", "b1/0/relu", "b3/0/relu", "--device-mapping", "0", "1", "0"};
  same("mapped", there_and_back);
  const std::filesystem::path run = directory / "stopped";
  ASSERT_EQ(train(run, kRun + there_and_back + Words{"--stop-after", "3"}).code, 75);
  const ProcessResult rest = millrace({"restore", "--restore-path", run.string()});
  EXPECT_EQ(rest.code, 0) << rest.output;
  EXPECT_EQ(digest_of(run), expected);
}

TEST(TransportTest, DelaysDoNotReorderSumsOverReplicas) {
  const TemporaryDirectory directory;
  const Words layout = {
      "--no-validation",   "--replicas", "2", "--gradients-to-accumulate", "4", "--shards", "2",
      "--pipeline-splits", "b2/0/relu"};
  ASSERT_EQ(train(directory / "free", kRun + layout).code, 0);
  const Variable shim("LD_PRELOAD", MILLRACE_MPI_SHIM);
  for (int i = 0; i < 3; ++i) {
    const Variable seed("MILLRACE_SHIM_SEED", std::to_string(i));
    const std::filesystem::path run = directory / std::to_string(i);
    const ProcessResult result = train(run, kRun + layout);
    ASSERT_EQ(result.code, 0) << result.output;
    EXPECT_EQ(digest_of(run), digest_of(directory / "free")) << i;
  }
}

TEST(TransportTest, DelaysAndUnbufferedSendsChangeNothing) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train(directory / "one", kRun + Words{"--no-validation"}).code, 0);
  const std::string expected = digest_of(directory / "one");
  const int runs = whole() ? 200 : 14;  // each schedule over two and over three ranks
  const Variable shim("LD_PRELOAD", MILLRACE_MPI_SHIM);
  for (int i = 0; i < runs; ++i) {
    const Variable seed("MILLRACE_SHIM_SEED", std::to_string(i));
    const char* schedules[] = {"1F1B", "Grouped", "GPipe", "ZB-H1", "Sequential", "ZB-V", "auto"};
    const std::filesystem::path run = directory / std::to_string(i);
    const ProcessResult result =
        train(run, kRun + Words{"--no-validation", "--iterations", "6", "--shards",
                                i % 2 == 0 ? "2" : "3", "--pipeline-splits", "auto",
                                "--pipeline-schedule", schedules[i % 7]});
    ASSERT_EQ(result.code, 0) << result.output;
    EXPECT_EQ(digest_of(run), expected) << i;
  }
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

/// Runs a long training in the background and finds its ranks.
class Background {
 public:
  Background(const std::filesystem::path& run, const Words& more)
      : thread_([this, run, more] {
          result_ = train(run, Words{"--batch-size", "8", "--gradients-to-accumulate", "8",
                                     "--iterations", "100000", "--threads-per-device", "1",
                                     "--no-validation", "--disable-checkpoints", "--shards", "2",
                                     "--pipeline-splits", "b2/0/relu"} +
                                   more);
        }) {}
  /// Process of a rank of the run in `run`, once it trains; -1 if it never does.
  static pid_t rank_of(const std::filesystem::path& run, int rank) {
    for (int attempt = 0; attempt < 300; ++attempt) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (!std::filesystem::exists(run / "log.txt")) continue;
      if (read_text(run / "log.txt").find("Memory: ") != std::string::npos)
        return process_of_rank(run, rank);
    }
    return -1;
  }
  const ProcessResult& join() {
    thread_.join();
    return result_;
  }

 private:
  ProcessResult result_;
  std::thread thread_;
};

TEST(DevicesTest, RanksComputeOnThoseThatTheyWereGiven) {
  const TemporaryDirectory directory;
  const std::vector<int> all = cores_of(getpid());
  if (all.size() < 2) GTEST_SKIP() << "this process may use one core only";
  Background job(directory / "run", {"--select-ipus", "1", "0"});
  const pid_t first = Background::rank_of(directory / "run", 0);
  const pid_t second = process_of_rank(directory / "run", 1);
  const bool trains = first > 0 && second > 0;
  const std::vector<int> of_first = trains ? cores_of(first) : std::vector<int>{};
  const std::vector<int> of_second = trains ? cores_of(second) : std::vector<int>{};
  if (trains) kill(first, SIGTERM);
  const ProcessResult& result = job.join();
  ASSERT_TRUE(trains) << result.output;
  EXPECT_EQ(of_first, std::vector<int>{all[1]});
  EXPECT_EQ(of_second, std::vector<int>{all[0]});
}

TEST(FailureTest, ADeadRankEndsTheJob) {
  const TemporaryDirectory directory;
  Background job(directory / "run", {});
  const pid_t rank = Background::rank_of(directory / "run", 1);
  ASSERT_GT(rank, 0) << job.join().output;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  kill(rank, SIGKILL);
  const ProcessResult& result = job.join();
  EXPECT_EQ(result.code, 7) << result.output;
  EXPECT_NE(result.output.find("rank 1 (replica 0, stage 1) was ended by signal 9"),
            std::string::npos)
      << result.output;
}

TEST(FailureTest, NobodyWhoReadsStopsNobodyWhoTrains) {
  const TemporaryDirectory directory;
  std::string line = MILLRACE_BINARY;
  for (const std::string& word : small_training() + kRun +
                                     Words{"--shards", "2", "--pipeline-splits", "b2/0/relu",
                                           "--run-dir", (directory / "run").string()})
    line += " '" + word + "'";
  const ProcessResult result =
      run_process("/bin/bash", {"-c", line + " | head -n 1; exit ${PIPESTATUS[0]}"});
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_EQ(millrace({"inspect", (directory / "run").string(), "--verify"}).code, 0);
}

/// Works both before and after the ranks have started.
TEST(SignalTest, AnEarlyOneStopsTheJobAsWell) {
  const TemporaryDirectory directory;
  const std::string data = small_data().string();
  for (const char* seconds : {"0.02", "0.05", "0.1", "0.2", "0.4"}) {
    const ProcessResult result =
        run_process("/usr/bin/timeout", Words{"--preserve-status",
                                              "--signal=TERM",
                                              seconds,
                                              MILLRACE_BINARY,
                                              "train",
                                              "--dataset",
                                              "cifar-10",
                                              "--data-dir",
                                              data,
                                              "--model-size",
                                              "8",
                                              "--batch-size",
                                              "8",
                                              "--iterations",
                                              "100000",
                                              "--shards",
                                              "2",
                                              "--pipeline-splits",
                                              "b2/0/relu",
                                              "--threads-per-device",
                                              "1",
                                              "--run-dir",
                                              (directory / seconds).string()});
    EXPECT_TRUE(result.code == 75 || result.code == 128 + SIGTERM)
        << seconds << " s: " << result.code << "\n"
        << result.output;
  }
}

TEST(FailureTest, AHangNamesWhoWaitsForWhom) {
  const TemporaryDirectory directory;
  Background job(directory / "run", {"--hang-timeout", "2"});
  const pid_t rank = Background::rank_of(directory / "run", 1);
  ASSERT_GT(rank, 0) << job.join().output;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  kill(rank, SIGSTOP);
  const ProcessResult& result = job.join();
  kill(rank, SIGKILL);
  EXPECT_EQ(result.code, 124) << result.output;
  EXPECT_NE(result.output.find("no progress for 2 s: rank 0: "), std::string::npos)
      << result.output;
}

// The step is long enough to stop the rank within it. The other devices of its stage report for
// whom they wait.
TEST(FailureTest, AHangNamesWhoseStatisticsAreMissing) {
  const TemporaryDirectory directory;
  Background job(directory / "run",
                 {"--hang-timeout", "2", "--replicas", "2", "--BN-span", "2", "--batch-norm",
                  "--gradients-to-accumulate", "500", "--synthetic-data"});
  const pid_t rank = Background::rank_of(directory / "run", 2);
  ASSERT_GT(rank, 0) << job.join().output;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  kill(rank, SIGSTOP);
  const ProcessResult& result = job.join();
  kill(rank, SIGKILL);
  EXPECT_EQ(result.code, 124) << result.output;
  EXPECT_NE(result.output.find("waits for the batch statistics of replica 1 (rank 2)"),
            std::string::npos)
      << result.output;
}

/// A rank that never reaches the training does not block the others forever.
TEST(FailureTest, AHangBeforeTheTrainingEndsTheJobAsWell) {
  const TemporaryDirectory directory;
  Background job(directory / "run", {"--hang-timeout", "2"});
  pid_t rank = -1;
  for (int attempt = 0; rank < 0 && attempt < 20000; ++attempt)
    rank = process_of_rank(directory / "run", 1);
  ASSERT_GT(rank, 0);
  kill(rank, SIGSTOP);
  const ProcessResult& result = job.join();
  kill(rank, SIGKILL);
  EXPECT_EQ(result.code, 124) << result.output;
  EXPECT_NE(result.output.find("no progress for 2 s: rank 0: "), std::string::npos)
      << result.output;
}

TEST(FailureTest, APreemptedJobSavesOneStepOnAllRanks) {
  const TemporaryDirectory directory;
  Background job(directory / "run", {});
  const pid_t rank = Background::rank_of(directory / "run", 1);
  ASSERT_GT(rank, 0) << job.join().output;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  kill(rank, SIGUSR1);
  const ProcessResult& result = job.join();
  EXPECT_EQ(result.code, 75) << result.output;
  const ProcessResult verified = millrace({"inspect", (directory / "run").string(), "--verify"});
  EXPECT_EQ(verified.code, 0) << verified.output;
}

TEST(LayoutMistakesTest, AreRefusedBeforeAnythingIsTrained) {
  const TemporaryDirectory directory;
  const auto refused = [&](const Words& layout, const std::string& text) {
    const ProcessResult result = train(directory / "run", kRun + layout);
    EXPECT_EQ(result.code, 2) << result.output;
    EXPECT_NE(result.output.find(text), std::string::npos) << result.output;
    EXPECT_FALSE(std::filesystem::exists(directory / "run"));
  };
  refused({"--shards", "2"},
          "--pipeline-splits not specified or wrong number of splits. Need 1 of [");
  refused({"--shards", "2", "--pipeline-splits", "b9/9/relu"}, "b9/9/relu");
  refused({"--shards", "3", "--pipeline-splits", "b3/0/relu", "b2/0/relu"}, "order");
  refused({"--shards", "2", "--pipeline-splits", "b2/0/relu", "b2/0/relu"}, "given twice");
  refused({"--shards", "2", "--pipeline-splits", "b2/0/relu", "--ranks", "3"},
          "3 ranks cannot share 2 device(s)");
  refused({"--shards", "2", "--pipeline-splits", "b2/0/relu", "--no-launch"}, "--no-launch");
  refused({"--shards", "2", "--pipeline-splits", "auto", "--chunks", "2"}, "Looped");
  refused({"--pipeline-splits", "b2/0/relu", "--device-mapping", "0", "2"}, "device 1 of 3");
  refused({"--shards", "2", "--pipeline-splits", "b1/0", "b2/0", "--device-mapping", "0", "1", "2",
           "--pipeline-schedule", "auto"},
          "needs 3 devices, but --shards is 2");
  refused({"--replicas", "2", "--hosts", "a:1"}, "room for 1 ranks");
  refused({"--replicas", "2", "--hosts", "a:x"}, "'a:x'");
  refused({"--replicas", "2", "--ssh-port", "99"}, "--ssh-port has no effect");
}

TEST(LayoutMistakesTest, RanksThatWereToldDifferentThingsSaySo) {
  const TemporaryDirectory directory;
  const Variable root("OMPI_ALLOW_RUN_AS_ROOT", "1");
  const Variable confirmed("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  const std::string run = (directory / "run").string();
  const Words one =
      Words{"-n", "1", MILLRACE_BINARY} + small_training() +
      Words{"--batch-size",      "8",         "--iterations",         "2", "--shards",  "2",
            "--pipeline-splits", "b2/0/relu", "--threads-per-device", "1", "--run-dir", run};
  const ProcessResult result =
      run_process(MILLRACE_MPIEXEC, one + Words{":"} + one + Words{"--seed", "7"});
  EXPECT_EQ(result.code, 2) << result.output;
  EXPECT_NE(result.output.find("seed"), std::string::npos) << result.output;
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
    return Words{"-n", "1", "/usr/bin/taskset", "-c", core, MILLRACE_BINARY, "doctor"};
  };
  const auto cores_with = [&](const std::string& first, const std::string& second) {
    const ProcessResult result =
        run_process(MILLRACE_MPIEXEC, rank_on(first) + Words{":"} + rank_on(second));
    EXPECT_EQ(result.code, 0) << result.output;
    std::smatch match;
    EXPECT_TRUE(std::regex_search(result.output, match, std::regex("cores +([0-9]+)\n")))
        << result.output;
    return match[1].str();
  };
  EXPECT_EQ(cores_with(cores[0], cores[1]), "2");
  EXPECT_EQ(cores_with(cores[0], cores[0]), "1");
}

}  // namespace
}  // namespace millrace::test
