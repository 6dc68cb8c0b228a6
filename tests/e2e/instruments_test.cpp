// SPDX-License-Identifier: Apache-2.0
//
// What a run says of itself agrees with its own trace: whatever the cuts, the stages and the links,
// waiting is waiting in both.
#include <sched.h>
#include <signal.h>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "job.hpp"
#include "run_tables.hpp"

namespace millrace::test {
namespace {

/// Five updates of eight micro-batches of a ResNet-20, of which all but the first are counted.
Words traced_run(const TemporaryDirectory& directory, const Words& layout) {
  const Words training =
      "--model-size 20 --batch-size 16 --gradients-to-accumulate 8 --iterations 5 --warmup-epochs "
      "0 --no-validation --disable-checkpoints --threads-per-device 1 --profile-steps 2,5";
  return Words{"train --dataset cifar-10 --data-dir", small_data()} + training +
         Words{"--trace", directory / "trace.json", "--run-dir", directory / "run"} + layout;
}

/// Times in a trace, in microseconds. Like the report, it counts what lies within updates: between
/// them ranks that share cores wait for a core, not for each other.
struct Traced {
  std::map<int, double> computing;  ///< by device
  std::map<int, double> waiting;
  double total = 0.0;                                                ///< of the longest device
  std::map<std::pair<int, int>, std::pair<double, double>> updates;  ///< ends, by device and step
  [[nodiscard]] double bubble() const {
    double busy = 0.0;
    double all = 0.0;
    for (const auto& [device, time] : computing) busy += time;
    for (const auto& [where, ends] : updates) all += ends.second - ends.first;
    return 100.0 * (1.0 - busy / all);
  }
};

Traced read_trace(const fs::path& file) {
  Traced traced;
  std::map<int, double> ends;
  const nlohmann::json trace = nlohmann::json::parse(read_text(file));
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const int device = event.at("pid");
    const double begin = event.at("ts");
    const double time = event.at("dur");
    EXPECT_GE(begin, ends[device] - 0.01) << "slices overlap: " << event;
    ends[device] = begin + time;
    const auto where = std::pair(device, event.at("args").at("step").get<int>());
    auto& update = traced.updates.try_emplace(where, begin, begin).first->second;
    update.second = begin + time;
    const std::string kind = event.at("cat");
    traced.computing[device] +=
        kind == "forward" || kind == "backward" || kind == "update" ? time : 0.0;
    traced.waiting[device] += kind == "wait" ? time : 0.0;
  }
  std::map<int, double> totals;
  for (const auto& [where, update] : traced.updates)
    totals[where.first] += update.second - update.first;
  for (const auto& [device, total] : totals) traced.total = std::max(traced.total, total);
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

/// The plan of four stages for `ranks` processes that may use one core.
nlohmann::json planned_on_one_core(const std::string& ranks) {
  cpu_set_t cores;
  EXPECT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  int core = 0;
  while (!CPU_ISSET(core, &cores)) ++core;
  const Words plan{
      "plan --dataset cifar-10 --generated-data --model-size 20 --batch-size 16 --pipeline-depth 8 "
      "--shards 4 --pipeline-splits b1/2 b2/1 b3/0 --format json --ranks"};
  const ProcessResult result = run_process(
      "/usr/bin/taskset",
      Words{"-c", std::to_string(core), std::string(MILLRACE_BINARY)} + plan + Words{ranks},
      Capture::Output);
  EXPECT_EQ(result.code, 0) << result.output;
  return nlohmann::json::parse(result.output);
}

TEST(PlanTest, RanksThatShareACoreTakeTurns) {
  for (const char* ranks : {"1", "2", "4"}) {
    const nlohmann::json plan = planned_on_one_core(ranks);
    double work = 0.0;
    for (const nlohmann::json& stage : plan.at("stages"))
      work += stage.at("forward").get<double>() + stage.at("backward_input").get<double>() +
              stage.at("backward_weight").get<double>();
    const double seconds = plan.at("seconds");
    EXPECT_GE(seconds, 8 * work * (1.0 - 1e-9)) << ranks;
    EXPECT_LE(seconds, 1.5 * 8 * work) << ranks << ": messages and updates take little";
  }
}

/// The last event in metrics.jsonl: how the run ended.
nlohmann::json end_of(const fs::path& run) {
  return nlohmann::json::parse(lines_of(read_text(run / "metrics.jsonl")).back());
}

constexpr double kHeld = 2.0;

/// Runs a command, and holds the process of rank 0 for kHeld seconds as soon as there is one.
/// Returns the seconds by the clock.
double seconds_held(const fs::path& run, const Words& words, int rank, int code) {
  const auto begin = std::chrono::steady_clock::now();
  Job job(words);
  pid_t process = -1;
  EXPECT_TRUE(
      wait_until([&] { return (process = process_of_rank(run, rank)) > 0 || job.ended(); }, 1));
  EXPECT_GT(process, 0);
  if (process > 0) {
    kill(process, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::duration<double>(kHeld));
    kill(process, SIGCONT);
  }
  expect_end(job.wait(), code);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What a process does before its first step counts.
TEST(TotalTimeTest, IsTheTimeOfAllProcessesOfARun) {
  constexpr int kAlone = -1;
  constexpr double kTick = 0.01;  // by which the system knows when a process began
  const std::vector<std::pair<Words, int>> layouts = {
      {"--ranks 1", kAlone}, {"--shards 2 --ranks 2 --pipeline-splits b2/0/relu", 0}};
  for (const auto& [layout, rank] : layouts) {
    SCOPED_TRACE(layout.back());
    const TemporaryDirectory directory;
    const fs::path run = directory / "run";
    const Words training = usual_training(run, Words{"--epochs 2 --stop-after 12"} + layout);
    const double first = seconds_held(run, training, rank, 75);
    const nlohmann::json stopped = end_of(run);
    EXPECT_EQ(stopped.at("event"), "stopped");
    EXPECT_FALSE(stopped.contains("time_to_train"));
    const double until_stop = stopped.at("total_time");
    EXPECT_LE(until_stop, first + kTick);
    EXPECT_GE(until_stop, kHeld);
    const double second = seconds_held(run, Words{"restore --restore-path", run}, rank, 0);
    const nlohmann::json finished = end_of(run);
    EXPECT_EQ(finished.at("event"), "finished");
    const double total = finished.at("total_time");
    EXPECT_LE(total, first + second + 2 * kTick);
    EXPECT_GE(total, until_stop + kHeld);
    EXPECT_EQ(finished.at("time_to_train"), total);
    EXPECT_GE(Table(run / "training.csv").last("total_time"), until_stop);
  }
}

/// The slices of a trace on a track, by category.
std::map<std::string, std::vector<nlohmann::json>> slices_of(const fs::path& file, int track) {
  std::map<std::string, std::vector<nlohmann::json>> slices;
  const nlohmann::json trace = nlohmann::json::parse(read_text(file));
  for (const nlohmann::json& event : trace.at("traceEvents"))
    if (event.at("ph") == "X" && event.at("tid") == track) slices[event.at("cat")].push_back(event);
  return slices;
}

/// Whether passes and kernels are timed by one clock. Devices with queues have their own for
/// passes.
#ifdef MILLRACE_FAKE_DEVICE
constexpr bool kOneClock = false;
#else
constexpr bool kOneClock = true;
#endif

bool lies_in(const nlohmann::json& inner, const nlohmann::json& outer) {
  constexpr double kRounding = 0.01;
  const double begin = inner.at("ts");
  const double end = begin + inner.at("dur").get<double>();
  return inner.at("pid") == outer.at("pid") && begin >= outer.at("ts").get<double>() - kRounding &&
         end <= outer.at("ts").get<double>() + outer.at("dur").get<double>() + kRounding;
}

TEST(TraceTest, KernelsLieInThePassesThatRunThem) {
  const TemporaryDirectory directory;
  const Words training =
      small_training() +
      "--batch-size 16 --gradients-to-accumulate 4 --iterations 4 --warmup-epochs 0 "
      "--no-validation --disable-checkpoints --threads-per-device 1 --profile-steps 2,3";
  const Words layout = "--shards 2 --ranks 2 --pipeline-splits b2/0/relu";
  const auto run = [&](const std::string& name, const Words& more) {
    expect_end(millrace(training + layout + more + Words{"--run-dir", directory / name}), 0);
    return digest_of(directory / name);
  };
  const std::string plain = run("plain", Words{"--trace", directory / "plain.json"});
  const std::string timed =
      run("timed", Words{"--trace-kernels --trace", directory / "timed.json"});
  EXPECT_EQ(plain, timed);
  EXPECT_TRUE(slices_of(directory / "plain.json", 1).empty());
  const auto passes = slices_of(directory / "timed.json", 0);
  const auto kernels = slices_of(directory / "timed.json", 1);
  ASSERT_EQ(kernels.size(), 1u);
  ASSERT_GT(kernels.at("kernel").size(), 2u * 2 * 4 * 8);
  std::size_t products = 0;
  std::set<int> devices;
  for (const nlohmann::json& kernel : kernels.at("kernel")) {
    const auto holds = [&](const nlohmann::json& pass) {
      if (!kOneClock)
        return kernel.at("pid") == pass.at("pid") && kernel.at("args") == pass.at("args");
      return lies_in(kernel, pass);
    };
    EXPECT_TRUE(std::ranges::any_of(passes.at("forward"), holds) ||
                std::ranges::any_of(passes.at("backward"), holds))
        << kernel;
    products += kernel.at("name").get<std::string>().find("/conv") != std::string::npos ? 1 : 0;
    devices.insert(kernel.at("pid").get<int>());
  }
  EXPECT_GT(products, 2u * 4 * 8);  // two updates of four micro-batches
  EXPECT_EQ(devices, (std::set<int>{0, 1}));
}

TEST(TraceTest, ProfilesShowWhatTheirNamesSay) {
  const TemporaryDirectory directory;
  const Words training = small_training() +
                         "--batch-size 16 --iterations 3 --warmup-epochs 0 --no-validation "
                         "--disable-checkpoints --threads-per-device 1";
  const auto profile = [&](const std::string& mode, const Words& more = {}) {
    const fs::path run = directory / ("run" + mode + std::to_string(more.size()));
    expect_end(millrace(training + more + Words{"--gc-profile", mode, "--run-dir", run}), 0);
    return run / "trace.json";
  };
  EXPECT_FALSE(fs::exists(profile("NO_PROFILE")));
  const auto whole = slices_of(profile("DEVICE_PROFILE"), 0);
  ASSERT_EQ(whole.size(), 1u);
  ASSERT_EQ(whole.at("step").size(), 1u);  // of the first update alone
  EXPECT_EQ(whole.at("step")[0].at("name"), "update 1");
  EXPECT_LE(whole.at("step")[0].at("args").at("work_us").get<double>(),
            whole.at("step")[0].at("dur").get<double>());
  const fs::path actions = profile("IPU_PROFILE");
  const auto passes = slices_of(actions, 0);
  ASSERT_FALSE(passes.at("forward").empty());
  for (const nlohmann::json& pass : passes.at("forward"))
    EXPECT_EQ(pass.at("args").at("step"), 1) << pass;
  EXPECT_TRUE(slices_of(actions, 1).empty());
  EXPECT_FALSE(slices_of(profile("TILE_PROFILE"), 1).empty());
  EXPECT_EQ(slices_of(profile("DEVICE_PROFILE", "--profile-steps 2,3"), 0).at("step").size(), 2u);
}

// What is there stays until the new trace is complete.
TEST(TraceTest, ARefusedRunKeepsTheOldFile) {
  const TemporaryDirectory directory;
  const fs::path file = directory / "trace.json";
  std::ofstream(file) << "an older trace";
  expect_end(
      millrace(small_training() +
               Words{"--batch-size 16 --iterations 2 --no-logs --device-memory 1MB --trace", file}),
      2, {"but --device-memory is"});
  EXPECT_EQ(read_text(file), "an older trace");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), fs::directory_iterator()), 1)
      << "a temporary file is left";
  expect_end(
      millrace(small_training() + Words{"--batch-size 16 --iterations 2 --no-logs --trace", file}),
      0);
  EXPECT_FALSE(slices_of(file, 0).at("forward").empty());
}

TEST(SummaryTest, SaysWhatARunHasComeToAndTheNextCommand) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "my run";
  expect_end(train(run, "--epochs 3 --stop-after 12"), 75,
             {"Process peak: ", "Stopped after 12 of 30 updates in 0:", "Top-1 accuracy: ",
              "newest ckpt-12", "Next: millrace restore --restore-path '" + run.string() + "'\n"});
  expect_end(restore(run), 0,
             {"Finished: 30 of 30 updates in 0:", " % after 30 updates (last)", "newest ckpt-30",
              "Next: millrace validate --restore-path '" + run.string() + "'\n"});
  const ProcessResult again = restore(run);
  expect_end(again, 0, {"Finished: 30 of 30 updates in 0:"});
  expect_not_in(again.output, {"img/s while training"});
}

/// What a command shows on a terminal.
ProcessResult on_terminal(const Words& words) {
  std::string line = MILLRACE_BINARY;
  for (const std::string& word : words) line += " '" + word + "'";
  const Variable terminal("TERM", "xterm");
  return run_process("/usr/bin/script", {"-qec", line, "/dev/null"});
}

TEST(StatusTest, PipelinesShowTheLineOfOneProcess) {
  if (!fs::exists("/usr/bin/script")) GTEST_SKIP() << "needs script(1)";
  for (const char* layout : {"--ranks 1", "--shards 2 --ranks 2 --pipeline-splits b2/0/relu"}) {
    SCOPED_TRACE(layout);
    const TemporaryDirectory directory;
    const Words run = usual_training(directory / "run", Words{"--epochs 2"} + layout);
    const ProcessResult shown = on_terminal(run);
    expect_end(shown, 0, {"\repoch 1/2  update ", " img/s  ETA ", "\033[K", "Finished: "});
    // A bar for each stage of a pipeline, in color.
    const bool pipeline = std::string(layout) != "--ranks 1";
    EXPECT_EQ(std::regex_search(shown.output, std::regex("busy \\[[^\\]]*\\]\\[[^\\]]*\\]")),
              pipeline)
        << shown.output;
    EXPECT_EQ(shown.output.find("\033[32m") != std::string::npos, pipeline) << shown.output;
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
  const fs::path file = directory / "machine.toml";
  expect_end(millrace(Words{"bench --machine-file", file}), 0,
             {"float32 ", "bfloat16 ", "float16 ", "link ", "Written to " + file.string()});
  expect_end(millrace(Words{
                 "plan --dataset cifar-10 --model-size 20 --devices 4 --total-batch 128 --device",
                 file, "--link", file}),
             0, {"costs: analytic, " + file.string(), "The first: --batch-size "});
}

TEST(StatusTest, ColorsCanBeSwitchedOff) {
  if (!fs::exists("/usr/bin/script")) GTEST_SKIP() << "needs script(1)";
  const TemporaryDirectory directory;
  const Words run = usual_training(directory / "run",
                                   "--epochs 1 --ranks 1 --shards 2 --pipeline-splits b2/0/relu");
  const Words wrong = "train --no-such-option";
  {
    const Variable none("NO_COLOR", "1");
    const ProcessResult shown = on_terminal(run);
    expect_end(shown, 0, {"busy ["});
    expect_not_in(shown.output, {"\033[32m"});
    expect_end(on_terminal(wrong), 2, {"millrace: error: unknown option"});
  }
  expect_end(on_terminal(wrong), 2, {"millrace: \033[1;31merror:\033[0m unknown option"});
  expect_end(millrace(wrong), 2, {"millrace: error: unknown option"});
}

TEST(VerbosityTest, QuietPrintsTheSummaryAndVerboseTheCommand) {
  if (!fs::exists("/usr/bin/script")) GTEST_SKIP() << "needs script(1)";
  const TemporaryDirectory directory;
  const Words layout = "--epochs 1 --shards 2 --ranks 2 --pipeline-splits b2/0/relu";
  const Variable variable("OMP_WAIT_POLICY", "passive");
  // Options travel to the ranks.
  const ProcessResult quiet = on_terminal(usual_training(directory / "quiet", layout) + "-q");
  expect_end(quiet, 0, {"Finished: 10 of 10 updates"});
  for (const char* absent :
       {"Starting", "step:", "Validation", "Saved checkpoint", "ETA", "Bubble"})
    EXPECT_EQ(quiet.output.find(absent), std::string::npos) << absent << " in\n" << quiet.output;
  expect_in(read_text(directory / "quiet" / "log.txt"),
            {"step:", "Validation top-1", "Saved checkpoint", "Bubble"});
  const ProcessResult usual = train(directory / "usual", layout);
  expect_end(usual, 0, {"Starting 2 ranks on this machine (--no-launch prevents this)\n"});
  expect_not_in(usual.output, {"Environment: ", " -n 2 "});
  expect_end(train(directory / "verbose", layout + "--verbose"), 0,
             {" -n 2 ", "Environment: OMP_WAIT_POLICY=passive\n"});
  expect_end(train(directory / "both", "-q -v"), 2,
             {"--quiet and --verbose contradict each other"});
}

TEST(VerbosityTest, QuietKeepsWarnings) {
  const std::string threads = std::to_string(2 * std::thread::hardware_concurrency() + 1);
  const Words network =
      Words{"-q --dataset cifar-10 --model-size 8 --batch-size 4 --threads-per-device", threads};
  for (const Words& command :
       {Words("plan --no-validation"), Words("bench --steps 1 --warmup-steps 0")}) {
    const ProcessResult quiet = millrace(command + network);
    expect_end(quiet, 0, {threads + " threads share the "});
    expect_not_in(quiet.output, {"Kernels: "});
  }
}

TEST(StatusTest, DataToolsShowHowFarTheyAre) {
  if (!fs::exists("/usr/bin/script")) GTEST_SKIP() << "needs script(1)";
  const TemporaryDirectory directory;
  const fs::path images = directory / "images" / "train" / "n01";
  fs::create_directories(images);
  std::ofstream(images / "a.png", std::ios::binary) << "no image";
  const Words check = {"data check", directory / "images", "--split train"};
  expect_in(on_terminal(check).output, {"\rchecking training images: 100 %", "\033[K"});
  EXPECT_EQ(on_terminal(check + "-q").output.find("checking"), std::string::npos);
  EXPECT_EQ(millrace(check).output.find('\r'), std::string::npos);
}

}  // namespace
}  // namespace millrace::test
