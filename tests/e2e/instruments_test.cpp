// SPDX-License-Identifier: Apache-2.0
//
// What a run says of itself agrees with its own trace: whatever the cuts, the stages and the links,
// waiting is waiting in both.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "job.hpp"
#include "run_tables.hpp"

namespace millrace::test {
namespace {

/// Five updates of eight micro-batches of a ResNet-20, of which all but the first are counted.
Words traced_run(const TemporaryDirectory& directory, const Words& layout) {
  const Words training =
      "--model-size 20 --batch-size 16 --gradients-to-accumulate 8 --iterations 5 --warmup-epochs "
      "0 "
      "--no-validation --disable-checkpoints --threads-per-device 1 --profile-steps 2,5";
  return Words{"train --dataset cifar-10 --data-dir", small_data()} + training +
         Words{"--trace", directory / "trace.json", "--run-dir", directory / "run"} + layout;
}

/// Times in a trace, in microseconds.
struct Traced {
  std::map<int, double> computing;  ///< by device
  std::map<int, double> waiting;
  double total = 0.0;
  [[nodiscard]] double bubble() const {
    double busy = 0.0;
    for (const auto& [device, time] : computing) busy += time;
    return 100.0 * (1.0 - busy / (total * static_cast<double>(computing.size())));
  }
};

Traced read_trace(const std::filesystem::path& file) {
  Traced traced;
  double first = 1e300;
  double last = 0.0;
  std::map<int, double> ends;
  const nlohmann::json trace = nlohmann::json::parse(read_text(file));
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const int device = event.at("pid");
    const double begin = event.at("ts");
    const double time = event.at("dur");
    EXPECT_GE(begin, ends[device] - 0.01) << "slices overlap: " << event;
    ends[device] = begin + time;
    first = std::min(first, begin);
    last = std::max(last, begin + time);
    const std::string kind = event.at("cat");
    traced.computing[device] +=
        kind == "forward" || kind == "backward" || kind == "update" ? time : 0.0;
    traced.waiting[device] += kind == "wait" ? time : 0.0;
  }
  traced.total = last - first;
  return traced;
}

double reported(const std::string& output, const std::string& pattern) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(output, match, std::regex(pattern))) << output;
  return match.empty() ? -100.0 : std::stod(match[1]);
}

/// Expects that the bubble that the run reports is that of its trace.
Traced expect_agreement(const ProcessResult& result, const TemporaryDirectory& directory) {
  EXPECT_EQ(result.code, 0) << result.output;
  Traced traced = read_trace(directory / "trace.json");
  EXPECT_NEAR(reported(result.output, "Bubble: ([0-9.]+) % measured"), traced.bubble(), 1.0)
      << result.output;
  return traced;
}

TEST(BubbleTest, ADeviceThatHardlyWorksIsOneThatWaits) {
  const TemporaryDirectory directory;
  const ProcessResult result =
      millrace(traced_run(directory, "--shards 2 --ranks 2 --pipeline-splits fc1"));
  const Traced traced = expect_agreement(result, directory);
  EXPECT_GE(traced.bubble(), 45.0);
  ASSERT_EQ(traced.computing.size(), 2u);
  EXPECT_LT(traced.computing.at(1), 0.05 * traced.total);
  EXPECT_GT(traced.waiting.at(1), 0.75 * traced.total);
}

TEST(BubbleTest, OfThreeAndFourStagesIsThatOfTheTrace) {
  for (const char* layout :
       {"--shards 3 --ranks 3 --pipeline-splits auto",
        "--shards 4 --ranks 4 --pipeline-splits auto --pipeline-schedule ZB-H1",
        "--shards 2 --ranks 2 --pipeline-splits b2/0/relu --replicas 2"}) {
    SCOPED_TRACE(layout);
    const TemporaryDirectory directory;
    expect_agreement(millrace(traced_run(directory, layout)), directory);
  }
}

TEST(BubbleTest, ASlowLinkIsWaitedFor) {
  const TemporaryDirectory directory;
  const Words layout = "--shards 2 --ranks 2 --pipeline-splits b2/0/relu --pipeline-schedule 1F1B";
  const Variable shim("LD_PRELOAD", MILLRACE_MPI_SHIM);
  const Variable latency("MILLRACE_SHIM_LATENCY", "40");
  const Traced traced = expect_agreement(millrace(traced_run(directory, layout)), directory);
  // Each of the eight micro-batches of four updates waits once on each side.
  for (const auto& [device, waiting] : traced.waiting) EXPECT_GT(waiting, 4 * 8 * 40e3) << device;
}

TEST(BubbleTest, ASlowStageMakesTheOtherWait) {
  const TemporaryDirectory directory;
  Job job(traced_run(directory, "--shards 2 --ranks 2 --pipeline-splits b2/0/relu"));
  ASSERT_TRUE(job.wait_for("Rank 1: ")) << job.output();
  const pid_t slow = process_of_rank(directory / "run", 1);
  ASSERT_GT(slow, 0);
  while (!job.ended()) {  // it works half of the time
    kill(slow, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    kill(slow, SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const Traced traced = expect_agreement(job.wait(), directory);
  EXPECT_GT(traced.waiting.at(0), traced.waiting.at(1));
}

/// The last event in metrics.jsonl: how the run ended.
nlohmann::json end_of(const std::filesystem::path& run) {
  std::istringstream lines(read_text(run / "metrics.jsonl"));
  nlohmann::json last;
  for (std::string line; std::getline(lines, line);) last = nlohmann::json::parse(line);
  return last;
}

constexpr double kHeld = 3.0;

/// Runs a command, and holds the process of rank 0 for kHeld seconds as soon as there is one.
/// Returns the seconds by the clock.
double seconds_held(const std::filesystem::path& run, const Words& words, int rank, int code) {
  const auto begin = std::chrono::steady_clock::now();
  Job job(words);
  pid_t process = -1;
  EXPECT_TRUE(wait_until([&] { return (process = process_of_rank(run, rank)) > 0 || job.ended(); },
                         std::chrono::milliseconds(1)));
  EXPECT_GT(process, 0);
  if (process > 0) {
    kill(process, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::duration<double>(kHeld));
    kill(process, SIGCONT);
  }
  const ProcessResult result = job.wait();
  EXPECT_EQ(result.code, code) << result.output;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What a process does before its first step counts.
TEST(TotalTimeTest, IsTheTimeOfAllProcessesOfARun) {
  constexpr int kAlone = -1;
  const std::vector<std::pair<Words, int>> layouts = {
      {"--ranks 1", kAlone}, {"--shards 2 --ranks 2 --pipeline-splits b2/0/relu", 0}};
  for (const auto& [layout, rank] : layouts) {
    SCOPED_TRACE(layout.back());
    const TemporaryDirectory directory;
    const std::filesystem::path run = directory / "run";
    const Words training = usual_training(run, Words{"--epochs 2 --stop-after 12"} + layout);
    const double first = seconds_held(run, training, rank, 75);
    const nlohmann::json stopped = end_of(run);
    EXPECT_EQ(stopped.at("event"), "stopped");
    const double until_stop = stopped.at("total_time");
    EXPECT_LE(until_stop, first);
    EXPECT_GE(until_stop, kHeld);
    const double second = seconds_held(run, Words{"restore --restore-path", run}, rank, 0);
    const nlohmann::json finished = end_of(run);
    EXPECT_EQ(finished.at("event"), "finished");
    const double total = finished.at("total_time");
    EXPECT_LE(total, first + second);
    EXPECT_GE(total, until_stop + kHeld);
    EXPECT_GE(Table(run / "training.csv").last("total_time"), until_stop);
  }
}

TEST(SummaryTest, SaysWhatARunHasComeToAndTheNextCommand) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "my run";
  expect_end(train(run, "--epochs 3 --stop-after 12"), 75,
             {"Stopped after 12 of 30 updates in 0:", "Top-1 accuracy: ", "newest ckpt-12",
              "Next: millrace restore --restore-path '" + run.string() + "'\n"});
  expect_end(restore(run), 0,
             {"Finished: 30 of 30 updates in 0:", " % after 30 updates (last)", "newest ckpt-30",
              "Next: millrace validate --restore-path '" + run.string() + "'\n"});
}

/// What a command shows on a terminal.
ProcessResult on_terminal(const Words& words) {
  std::string line = MILLRACE_BINARY;
  for (const std::string& word : words) line += " '" + word + "'";
  const Variable terminal("TERM", "xterm");
  return run_process("/usr/bin/script", {"-qec", line, "/dev/null"});
}

TEST(StatusTest, PipelinesShowTheLineOfOneProcess) {
  if (!std::filesystem::exists("/usr/bin/script")) GTEST_SKIP() << "needs script(1)";
  for (const char* layout : {"--ranks 1", "--shards 2 --ranks 2 --pipeline-splits b2/0/relu"}) {
    SCOPED_TRACE(layout);
    const TemporaryDirectory directory;
    const Words run = usual_training(directory / "run", Words{"--epochs 2"} + layout);
    const ProcessResult shown = on_terminal(run);
    expect_end(shown, 0, {"\repoch 1/2  step ", " img/s  ETA ", "\033[K", "Finished: "});
    // A line never begins behind the status.
    EXPECT_FALSE(std::regex_search(shown.output, std::regex("ETA [0-9:]*[A-Za-z]")))
        << shown.output;
    const ProcessResult piped = restore(directory / "run");
    EXPECT_EQ(piped.output.find('\033'), std::string::npos) << piped.output;
  }
}

// Minutes on a slow machine.
TEST(MachineFileTest, IsMeasuredAndPlannedWith) {
  if (!whole()) GTEST_SKIP() << "set MILLRACE_LONG_TESTS=1";
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory / "machine.toml";
  expect_end(millrace(Words{"bench --machine-file", file}), 0,
             {"float32 ", "bfloat16 ", "float16 ", "link ", "Written to " + file.string()});
  const ProcessResult plan = millrace(
      Words{"plan --dataset cifar-10 --model-size 20 --devices 4 --total-batch 128 --device", file,
            "--link", file});
  expect_end(plan, 0, {"costs: analytic, " + file.string(), "The first: --batch-size "});
}

}  // namespace
}  // namespace millrace::test
