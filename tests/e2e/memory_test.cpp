// SPDX-License-Identifier: Apache-2.0
//
// What `plan` says of memory is what the run takes, and --device-memory is kept or refused.
//
// The figures of a plan come from sizes that are computed before anything is allocated, and from
// the resident memory of the planning process. Those of a run come from the kernel: its high-water
// mark of resident memory. Where memory cgroups can be made, each process also gets one with 5 %
// more than the plan says as its limit, beyond which the kernel ends it. RLIMIT_AS would count
// stacks and mapped files that nobody touches.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "mpirun.hpp"
#include "support/file_bytes.hpp"
#include "support/sanitizers.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;

/// Whether a folder lies on this kind of file system.
bool is_file_system(const char* folder, long kind) {
  struct statfs status {};
  return statfs(folder, &status) == 0 && status.f_type == kind;
}

/// A cgroup with a limit for each rank, of version 1 or 2; none if this system does not allow any.
class HardLimits {
 public:
  explicit HardLimits(const std::vector<std::int64_t>& bytes) {
    for (const auto& [parent, file, kind] :
         {std::tuple{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", CGROUP_SUPER_MAGIC},
          std::tuple{"/sys/fs/cgroup", "memory.max", CGROUP2_SUPER_MAGIC}}) {
      if (!is_file_system(parent, kind)) continue;  // a plain folder would take any file
      prefix_ = std::string(parent) + "/millrace-test-" + std::to_string(getpid()) + "-";
      if (make(bytes, file)) return;
      remove();
    }
    std::cout << "No memory cgroup can be made here: the high-water mark alone is compared\n";
  }
  ~HardLimits() { remove(); }
  HardLimits(const HardLimits&) = delete;
  HardLimits& operator=(const HardLimits&) = delete;

  [[nodiscard]] bool set() const { return !folders_.empty(); }
  /// Runs millrace on so many ranks, each within its limit.
  [[nodiscard]] ProcessResult run(const Words& words) const {
    const Words limited =
        Words{"/bin/sh -c",
              std::string("echo $$ > \"$1${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}/cgroup.procs\" "
                          "&& shift && exec \"$@\""),
              "sh", prefix_, std::string(MILLRACE_BINARY)} +
        words;
    if (folders_.size() == 1) return run_process("/usr/bin/env", limited);
    return run_process("/usr/bin/env",
                       kMpirun + Words{"-n", std::to_string(folders_.size())} + limited);
  }

 private:
  bool make(const std::vector<std::int64_t>& bytes, const char* file) {
    for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
      std::error_code error;
      const std::filesystem::path folder = prefix_ + std::to_string(rank);
      if (!std::filesystem::create_directory(folder, error)) return false;
      folders_.push_back(folder);
      std::ofstream limit(folder / file);
      limit << bytes[rank] << std::flush;
      if (!limit.good()) return false;
    }
    return true;
  }
  void remove() {
    std::error_code ignored;
    for (const std::filesystem::path& folder : folders_) std::filesystem::remove(folder, ignored);
    folders_.clear();
  }

  std::string prefix_;
  std::vector<std::filesystem::path> folders_;
};

/// The bytes in the lines of a run that match a pattern with one number, by rank.
std::map<int, std::int64_t> bytes_in(const std::string& output, const std::string& line) {
  std::map<int, std::int64_t> sizes;
  const std::regex pattern("(?:Rank (\\d+): )?" + line);
  for (std::sregex_iterator match(output.begin(), output.end(), pattern), end; match != end;
       ++match)
    sizes[(*match)[1].matched ? std::stoi((*match)[1]) : 0] = std::stoll((*match)[2]);
  return sizes;
}

/// High-water marks of resident memory.
std::map<int, std::int64_t> peaks_in(const std::string& output) {
  return bytes_in(output, "Process peak: [^,]*, (\\d+) of");
}

const Words kCifar = "--dataset cifar-10 --generated-data --threads-per-device 1";
const Words kImageNet =
    "--dataset imagenet --image-size 64 --generated-data --threads-per-device 1";

json plan_of(const Words& options) {
  const ProcessResult plan = millrace(Words{"plan --format json"} + options, Capture::Output);
  EXPECT_EQ(plan.code, 0) << plan.output;
  return plan.code == 0 ? json::parse(plan.output) : json();
}

std::int64_t device_bytes(const json& process) {
  std::int64_t sum = 0;
  for (const json& device : process.at("devices")) sum += device.at("total").get<std::int64_t>();
  return sum;
}

/// Whether messages between ranks need buffers of the host, as on devices that MPI cannot reach:
/// limits that two stages just keep are too low then.
#ifdef MILLRACE_FAKE_DEVICE
constexpr bool kStaged = true;
#else
constexpr bool kStaged = false;
#endif

/// By so much the same process differs from start to start: train/memory.hpp.
constexpr std::int64_t kBaseVaries = 1'500'000;

/// What a plan counts whatever a stage computes: on the fake device, threads of the largest teams
/// for one core, and the code of its kernels.
constexpr std::int64_t kNotNeeded = kStaged ? 2'000'000 : 0;

/// Expects that the devices take what was planned and that no process takes more, or 5 % less, but
/// for what two processes differ by: the plan comes from another one than the run. Prints a row for
/// each process.
void expect_planned(const char* name, const json& processes, const std::string& output) {
  const std::map<int, std::int64_t> arenas = bytes_in(output, "Memory: [^(]*\\((\\d+) and");
  const std::map<int, std::int64_t> peaks = peaks_in(output);
  ASSERT_FALSE(peaks.empty()) << output;
  for (const json& process : processes) {
    const int rank = process.at("rank");
    const auto planned = process.at("peak").get<std::int64_t>();
    const std::int64_t peak = peaks.at(rank);
    EXPECT_EQ(device_bytes(process), arenas.at(rank)) << "rank " << rank;
    EXPECT_GE(planned + kBaseVaries / 2, peak) << "rank " << rank << ": the plan says too little";
    EXPECT_LE(static_cast<double>(planned - kBaseVaries - kNotNeeded),
              1.05 * static_cast<double>(peak))
        << "rank " << rank << ": too much";
    std::cout << fmt::format(
        "| {} | {} | {} | {:.1f} | {:.1f} | {:+.1f} % |\n", name, rank, arenas.at(rank),
        1e-6 * static_cast<double>(planned), 1e-6 * static_cast<double>(peak),
        100.0 * (static_cast<double>(planned) / static_cast<double>(peak) - 1.0));
  }
}

/// The limits of all ranks. A plan names those of the first replica if the others are like them.
std::vector<std::int64_t> limits_of(const json& processes, const Words& options) {
  const auto replicas = std::find(options.begin(), options.end(), "--replicas");
  const bool all = replicas == options.end() ||
                   std::find(options.begin(), options.end(), "--shard-optimizer") != options.end();
  std::vector<std::int64_t> limits;
  for (int replica = 0; replica < (all ? 1 : std::stoi(*(replicas + 1))); ++replica)
    for (const json& process : processes)
      limits.push_back(static_cast<std::int64_t>(1.05 * process.at("peak").get<double>()));
  return limits;
}

struct Case {
  const char* name;
  Words options;
};

class PlannedMemoryTest : public testing::TestWithParam<Case> {};

TEST_P(PlannedMemoryTest, IsWhatTheRunTakes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the training";
  const TemporaryDirectory directory;
  const Words& options = GetParam().options;
  const json plan = plan_of(options);
  ASSERT_TRUE(plan.contains("processes"));
  const json& processes = plan.at("processes");
  Words training = Words{"train --iterations 2"} + options;
  if (std::find(options.begin(), options.end(), "--no-logs") == options.end())
    training = training + Words{"--run-dir", directory / "run"};
  const HardLimits hard(limits_of(processes, options));
  const ProcessResult run = hard.set() ? hard.run(training) : millrace(training);
  ASSERT_EQ(run.code, 0) << run.output;
  expect_planned(GetParam().name, processes, run.output);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, PlannedMemoryTest,
    testing::Values(
        Case{"Small", kCifar + "--model-size 8 --batch-size 16 --no-validation"},
        Case{"Plain", kCifar + "--model-size 20 --batch-size 32 --no-logs --no-validation"},
        Case{"Float32", kCifar + "--model-size 20 --batch-size 64 --precision 32.32 --no-logs "
                                 "--no-validation"},
        Case{"Narrow", kCifar + "--model-size 20 --batch-size 64 --precision 16.16 --no-logs "
                                "--no-validation"},
        Case{"Validates", kCifar + "--model-size 8 --batch-size 16 --valid-batch-size 250"},
        Case{"Lars", kCifar + "--model-size 14 --batch-size 64 --optimiser LARS --no-logs "
                              "--no-validation"},
        Case{"Segments", kCifar + "--model-size 20 --batch-size 128 --recompute segments --no-logs "
                                  "--no-validation --precision 32.32"},
        Case{"Layers", kCifar + "--model-size 20 --batch-size 64 --recompute-layers b1 b2 "
                                "--no-logs --no-validation"},
        Case{"Fitting", kCifar + "--model-size 20 --batch-size 128 --precision 32.32 --recompute "
                                 "auto --device-memory 200MB --no-logs --no-validation"},
        Case{"TwoStages", kCifar + "--model-size 20 --batch-size 64 --shards 2 --pipeline-depth 4 "
                                   "--pipeline-splits b2/0 --no-logs --no-validation"},
        Case{"TwoStagesSaved", kCifar + "--model-size 20 --batch-size 64 --shards 2 "
                                        "--pipeline-depth 4 --pipeline-splits b2/1 "
                                        "--no-validation --precision 32.32"},
        Case{"OneRank", kCifar + "--model-size 20 --batch-size 32 --shards 2 --ranks 1 "
                                 "--pipeline-depth 4 --pipeline-splits b2/0 --no-logs "
                                 "--no-validation"},
        Case{"Grouped", kCifar + "--model-size 14 --batch-size 64 --shards 2 --pipeline-depth 8 "
                                 "--pipeline-schedule Grouped --pipeline-splits b2/0 --no-logs "
                                 "--no-validation"},
        Case{"GPipe", kCifar + "--model-size 14 --batch-size 32 --shards 2 --pipeline-depth 4 "
                               "--pipeline-schedule GPipe --pipeline-splits b2/0 --no-logs "
                               "--no-validation --recompute segments"},
        Case{"ZeroBubble", kCifar + "--model-size 14 --batch-size 64 --shards 2 --pipeline-depth 4 "
                                    "--pipeline-schedule ZB-H1 --pipeline-splits auto --no-logs "
                                    "--no-validation"},
        Case{"V", kCifar + "--model-size 20 --batch-size 64 --shards 2 --pipeline-depth 4 "
                           "--pipeline-schedule ZB-V --pipeline-splits auto --no-logs "
                           "--no-validation --precision 32.32"},
        Case{"FourStages", kCifar + "--model-size 20 --batch-size 64 --shards 4 --pipeline-depth 4 "
                                    "--pipeline-splits b1/2 b2/1 b3/0 --no-logs --no-validation"},
        Case{"Replicas", kCifar + "--model-size 20 --batch-size 64 --replicas 2 --no-logs "
                                  "--no-validation"},
        Case{"Sharded", kCifar + "--model-size 20 --batch-size 64 --replicas 2 --shard-optimizer "
                                 "--optimiser momentum --no-logs --no-validation"},
        Case{"Grid", kCifar + "--model-size 8 --batch-size 128 --shards 2 --replicas 2 "
                              "--pipeline-depth 4 --pipeline-splits b2/0 --no-logs "
                              "--no-validation"},
        Case{"SqueezeNet", kImageNet + "--model squeezenet --batch-size 8 --no-logs "
                                       "--no-validation"},
        Case{"EfficientNet", kImageNet + "--model efficientnet --model-size B0 --batch-size 8 "
                                         "--no-logs --no-validation"},
        Case{"ResNet18", kImageNet + "--model-size 18 --batch-size 8 --shards 2 --pipeline-depth 2 "
                                     "--pipeline-splits b4/0 --no-logs --no-validation"},
        Case{"ResNet50", kImageNet + "--model-size 50 --batch-size 4 --no-logs "
                                     "--no-validation"},
        Case{"DeepMomentum", kCifar + "--model-size 110 --batch-size 8 --no-validation "
                                      "--optimiser momentum"},
        Case{"DeepAdam", kCifar + "--model-size 110 --batch-size 8 --no-validation "
                                  "--optimiser Adam --abs-learning-rate 0.001"},
        Case{"AdamW", kCifar + "--model-size 20 --batch-size 48 --no-validation "
                               "--optimiser AdamW --abs-learning-rate 0.001"},
        Case{"EfficientNetRmsprop", kImageNet + "--model efficientnet --model-size B0 "
                                                "--batch-size 2 --no-validation --optimiser "
                                                "RMSprop"},
        Case{"Deep", kCifar + "--model-size 110 --batch-size 16 --no-validation"},
        Case{"ResNet18Saved", kImageNet + "--model-size 18 --batch-size 4 --shards 2 "
                                          "--pipeline-depth 2 --pipeline-splits b3/0 "
                                          "--no-validation"},
        Case{"ResNet50Saved", kImageNet + "--model-size 50 --batch-size 4 --no-validation"},
        Case{"ReplicasSaved", kImageNet + "--model-size 18 --batch-size 4 --replicas 2 "
                                          "--no-validation"},
        Case{"EfficientNetSaved", kImageNet + "--model efficientnet --model-size B0 --batch-size 4 "
                                              "--shards 2 --pipeline-depth 2 --pipeline-splits "
                                              "block4a --no-validation"},
        Case{"DeepStagesSaved", kCifar + "--model-size 56 --batch-size 16 --shards 2 "
                                         "--pipeline-depth 2 --pipeline-splits auto --optimiser "
                                         "momentum --ema-decay 0.99"},
        Case{"NarrowAverages", kCifar + "--model-size 20 --batch-size 16 --precision 16.16 "
                                        "--ema-decay 0.99"},
        Case{"DeepestStagesSaved", kCifar + "--model-size 110 --batch-size 16 --shards 2 "
                                            "--pipeline-depth 2 --pipeline-splits auto "
                                            "--optimiser momentum --no-validation"},
        Case{"FourStagesSaved", kCifar + "--model-size 20 --batch-size 8 --shards 4 "
                                         "--pipeline-depth 4 --pipeline-splits auto"},
        Case{"ChunksSaved", kCifar + "--model-size 20 --batch-size 16 --shards 2 --chunks 2 "
                                     "--pipeline-depth 8 --pipeline-schedule Looped "
                                     "--pipeline-splits auto --recompute-layers b2 b3"},
        Case{"LossAlone", kCifar + "--model-size 20 --batch-size 64 --shards 2 --pipeline-depth 2 "
                                   "--pipeline-splits fc1 --no-validation"}),
    [](const auto& layout) { return std::string(layout.param.name); });

// Averages are made when nothing else is saved; `plan` does not know of them.
TEST(PlannedMemoryTest, CountsAverages) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the training";
  for (const char* size : {"18", "50"}) {
    const TemporaryDirectory directory;
    const ProcessResult run = millrace(
        Words{"train --iterations 3 --checkpoint-every 1 --weight-avg-exp 0.9 --batch-size 4 "
              "--no-validation --run-dir",
              directory / "run", "--model-size", size} +
        kImageNet);
    ASSERT_EQ(run.code, 0) << run.output;
    const std::int64_t planned =
        bytes_in(run.output, "Process peak: [^,]*, \\d+ of (\\d+) bytes").at(0);
    const std::int64_t peak = peaks_in(run.output).at(0);
    EXPECT_GE(planned, peak) << size;
    EXPECT_LE(static_cast<double>(planned), 1.05 * static_cast<double>(peak)) << size;
  }
}

const Words kTraced = kCifar +
                      "--model-size 20 --batch-size 32 --shards 2 --pipeline-depth 32 "
                      "--pipeline-splits b2/0 --no-validation --no-logs --profile-steps 1,4";

/// Rank 0 gathers the text of all ranks, piece by piece.
TEST(PlannedMemoryTest, CountsTraces) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the training";
  for (const char* name : {"trace.json", "trace.svg"}) {
    const TemporaryDirectory directory;
    Words options = kTraced + Words{"--trace", directory / name};
    if (name == std::string("trace.json")) options = options + "--trace-kernels";
    const json plan = plan_of(options);
    ASSERT_TRUE(plan.contains("processes"));
    EXPECT_FALSE(std::filesystem::exists(directory / name)) << "a plan traces nothing";
    const ProcessResult run = millrace(Words{"train --iterations 4"} + options);
    ASSERT_EQ(run.code, 0) << run.output;
    expect_planned(name, plan.at("processes"), run.output);
    if (name == std::string("trace.json")) {
      EXPECT_GT(std::filesystem::file_size(directory / name), 2'000'000);
      EXPECT_FALSE(json::parse(read_text(directory / name)).at("traceEvents").empty());
    }
  }
}

// ---- --device-memory

const Words kLarge = kCifar +
                     "--model-size 20 --batch-size 128 --precision 32.32 --no-logs "
                     "--no-validation";

/// Expects the same single line of a plan and of a run, and returns it.
std::string refusal(const Words& options) {
  std::string line;
  for (const Words& command : {Words("plan"), Words("train --iterations 2")}) {
    const ProcessResult result = millrace(command + options);
    EXPECT_EQ(result.code, 2) << result.output;
    std::smatch match;
    EXPECT_TRUE(std::regex_search(result.output, match, std::regex("millrace: error: [^\n]*")))
        << result.output;
    line = match[0];
    EXPECT_NE(line.find("but --device-memory is"), std::string::npos) << line;
  }
  return line;
}

TEST(DeviceMemoryTest, NamesRecomputationThatFits) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  const std::string line = refusal(kLarge + "--device-memory 180MB");
  EXPECT_NE(line.find("--recompute segments fits with"), std::string::npos) << line;
  const ProcessResult run =
      millrace(Words{"train --iterations 2 --device-memory 180MB --recompute segments"} + kLarge);
  ASSERT_EQ(run.code, 0) << run.output;
  EXPECT_LE(peaks_in(run.output).at(0), 180'000'000);
}

TEST(DeviceMemoryTest, NamesABatchThatFits) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  const std::string line = refusal(kLarge + "--device-memory 90MB --recompute segments");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(line, match, std::regex("--batch-size (\\d+) fits with"))) << line;
  Words smaller = kLarge + "--device-memory 90MB --recompute segments";
  *(std::find(smaller.begin(), smaller.end(), "--batch-size") + 1) = match[1];
  const ProcessResult run = millrace(Words{"train --iterations 2"} + smaller);
  ASSERT_EQ(run.code, 0) << run.output;
  EXPECT_LE(peaks_in(run.output).at(0), 90'000'000);
}

TEST(DeviceMemoryTest, NamesCutsThatFit) {
  if (kStaged) GTEST_SKIP() << "the limit is for messages without buffers";
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  const std::string line = refusal(
      kLarge + "--shards 2 --pipeline-depth 4 --pipeline-splits b3/2 --device-memory 330MB");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(line, match, std::regex("--pipeline-splits '([^']*)' fits")))
      << line;
  const ProcessResult run =
      millrace(Words{"train --iterations 2 --shards 2 --pipeline-depth 4 --device-memory 330MB"} +
               kLarge + Words{"--pipeline-splits", match[1].str()});
  ASSERT_EQ(run.code, 0) << run.output;
  for (const auto& [rank, peak] : peaks_in(run.output)) EXPECT_LE(peak, 330'000'000) << rank;
}

// Automatic cuts stay within it, whole processes included.
TEST(DeviceMemoryTest, IsKeptByAutomaticCuts) {
  if (kStaged) GTEST_SKIP() << "the limit is for messages without buffers";
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  const Words pipeline = kLarge + "--shards 2 --pipeline-depth 4 --pipeline-splits auto";
  const ProcessResult run =
      millrace(Words{"train --iterations 2 --device-memory 330MB"} + pipeline);
  ASSERT_EQ(run.code, 0) << run.output;
  const std::map<int, std::int64_t> peaks = peaks_in(run.output);
  ASSERT_EQ(peaks.size(), 2u) << run.output;
  for (const auto& [rank, peak] : peaks) EXPECT_LE(peak, 330'000'000) << "rank " << rank;
  (void)refusal(pipeline + "--device-memory 120MB");
}

// The limits are what the named schedules need.
TEST(DeviceMemoryTest, AutomaticSchedulesAreNeverWorseThanNamedOnes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  constexpr std::int64_t kVaries = 2'500'000;  // of a process from start to start
  const Words pipeline = kCifar +
                         "--model-size 20 --batch-size 16 --precision 32.32 --no-logs "
                         "--no-validation --shards 2 --pipeline-depth 8 --pipeline-splits auto";
  const auto plan = [&](const char* schedule, const Words& limit) {
    return millrace(
        Words{"plan --format json --pipeline-schedule", schedule} + limit + pipeline,
        Capture::Output);
  };
  const auto plan_within = [&](std::int64_t bytes, const char* schedule) {
    return plan(schedule, {"--device-memory", std::to_string(bytes)});
  };
  const auto seconds = [](const ProcessResult& planned) {
    return json::parse(planned.output).at("seconds").get<double>();
  };
  const std::array names{"Sequential", "1F1B", "ZB-H1"};
  int compared = 0;
  for (const char* limiting : names) {
    const ProcessResult unlimited = plan(limiting, {});
    ASSERT_EQ(unlimited.code, 0) << unlimited.output;
    std::int64_t need = 0;
    for (const json& process : json::parse(unlimited.output).at("processes"))
      need = std::max(need, process.at("peak").get<std::int64_t>());
    const std::int64_t limit = need + 2 * kVaries;
    const ProcessResult automatic = plan_within(limit, "auto");
    ASSERT_EQ(automatic.code, 0) << automatic.output;
    for (const char* name : names) {
      const ProcessResult named = plan_within(limit - kVaries, name);
      if (named.code != 0) continue;
      ++compared;
      EXPECT_LE(seconds(automatic), 1.0011 * seconds(named)) << name << " in " << limit;
    }
  }
  EXPECT_GE(compared, static_cast<int>(names.size()));
}

TEST(DeviceMemoryTest, IsKeptByAutomaticSchedules) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  const TemporaryDirectory directory;
  const ProcessResult run = millrace(
      Words{"train --iterations 2 --device-memory 88MB --pipeline-schedule auto --pipeline-splits "
            "auto --run-dir",
            directory / "run"} +
      kCifar +
      "--model-size 20 --batch-size 16 --precision 32.32 --no-validation --shards 2 "
      "--pipeline-depth 8");
  ASSERT_EQ(run.code, 0) << run.output;
  for (const auto& [rank, peak] : peaks_in(run.output)) EXPECT_LE(peak, 88'000'000) << rank;
  std::smatch chosen;
  ASSERT_TRUE(std::regex_search(run.output, chosen,
                                std::regex("Automatic schedule: ([^,]+), with splits (\\S+)")))
      << run.output;
  const bool listed = chosen[1].str().find(' ') != std::string::npos;
  const std::string recorded = read_text(directory / "run" / "config.toml");
  EXPECT_NE(recorded.find("pipeline-schedule = \"" + (listed ? "auto" : chosen[1].str())),
            std::string::npos);
  EXPECT_NE(recorded.find("pipeline-splits = \"" + chosen[2].str()), std::string::npos);
}

// What a search finds for devices of this machine trains within the same limit.
TEST(DeviceMemoryTest, IsKeptByTheLayoutsOfASearch) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  const Words network =
      kCifar + "--model-size 20 --precision 32.32 --no-logs --no-validation --optimiser momentum";
  const ProcessResult search =
      millrace(Words{"plan --devices 2 --total-batch 256 --memory 150MB"} + network);
  ASSERT_EQ(search.code, 0) << search.output;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(search.output, match, std::regex("The first: ([^\n]*)")))
      << search.output;
  const ProcessResult run = millrace(Words{"train --iterations 2 --device-memory 150MB"} + network +
                                     Words(match[1].str().c_str()));
  ASSERT_EQ(run.code, 0) << match[1] << '\n' << run.output;
  const std::map<int, std::int64_t> peaks = peaks_in(run.output);
  ASSERT_EQ(peaks.size(), 2u) << run.output;
  for (const auto& [rank, peak] : peaks) EXPECT_LE(peak, 150'000'000) << "rank " << rank;
}

// Nothing that fits is refused, and nothing slower is preferred: a limit that a plan barely fits
// into leads to a layout that is as fast.
TEST(DeviceMemoryTest, IsUsedByTheLayoutsOfASearch) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  const Words network =
      kCifar + "--model-size 20 --precision 32.32 --no-logs --no-validation --optimiser momentum";
  constexpr std::int64_t kRoom = 2 * kBaseVaries + 500'000;
  for (const int batch : {8, 32}) {
    const json plan = plan_of(Words{"--replicas 2 --batch-size", std::to_string(batch),
                                    "--gradients-to-accumulate", std::to_string(128 / batch)} +
                              network);
    std::int64_t limit = kRoom;
    for (const json& process : plan.at("processes"))
      limit = std::max(limit, process.at("peak").get<std::int64_t>() + kRoom);
    const ProcessResult search = millrace(
        Words{"plan --devices 2 --total-batch 256 --format json --memory", std::to_string(limit)} +
            network,
        Capture::Output);
    ASSERT_EQ(search.code, 0) << limit << '\n' << search.output;
    const json first = json::parse(search.output).front();
    EXPECT_LE(first.at("step_seconds").get<double>(), 1.0011 * plan.at("seconds").get<double>())
        << first;
    EXPECT_LE(first.at("device_bytes_with_process").get<std::int64_t>(), limit) << first;
  }
}

TEST(DeviceMemoryTest, IsNeededToRecomputeForIt) {
  const ProcessResult run = millrace(Words{"train --recompute auto"} + kLarge);
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.output.find("--recompute auto needs --device-memory"), std::string::npos)
      << run.output;
}

// ---- figures of a plan

// Each rank keeps to a core of its own, and still counts those of the others: with one core for
// all, a single stage would be the fastest.
TEST(PlanTest, ProfilesForAllCores) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two cores";
  const json plan = plan_of(kCifar +
                            "--model-size 20 --batch-size 16 --shards 2 --pipeline-depth 8 "
                            "--pipeline-splits auto --cost-model profile");
  ASSERT_EQ(plan.at("splits").size(), 1u);
  EXPECT_TRUE(plan.at("splits").at(0).get<std::string>().starts_with("b")) << plan.at("splits");
}

// With one micro-batch an update, cuts are chosen by memory.
TEST(PlanTest, CutsLikeTheRun) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the training";
  const Words options =
      kCifar + "--model-size 20 --batch-size 64 --shards 2 --no-logs --no-validation";
  const json plan = plan_of(options);
  ASSERT_TRUE(plan.contains("processes"));
  const ProcessResult run = millrace(Words{"train --iterations 2"} + options);
  ASSERT_EQ(run.code, 0) << run.output;
  expect_planned("by memory", plan.at("processes"), run.output);
}

TEST(PlanTest, RecomputationChangesItsFigures) {
  const auto activations = [](const Words& options) {
    return plan_of(kLarge + options)
        .at("processes")
        .at(0)
        .at("devices")
        .at(0)
        .at("activations")
        .get<double>();
  };
  const double all = activations("");
  const double segments = activations("--recompute segments");
  EXPECT_LT(segments, 0.6 * all);
  EXPECT_EQ(activations("--xla-recompute"), segments);
  EXPECT_LT(activations("--recompute-layers b1"), 0.9 * all);
  const double fitting = activations("--recompute auto --device-memory 240MB");
  EXPECT_LT(fitting, all);
  EXPECT_GT(fitting, segments) << "no more is repeated than has to be";
}

}  // namespace
}  // namespace millrace::test
