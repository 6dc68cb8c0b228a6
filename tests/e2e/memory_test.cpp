// SPDX-License-Identifier: Apache-2.0
//
// What `plan` and a run say of memory is what the run takes.
//
// The figures of a plan come from sizes that are computed before anything is allocated, and from
// the resident memory of the planning process. Those of a run come from the kernel: its high-water
// mark of resident memory. Where memory cgroups can be made, each process also gets one with what
// the plan says as its limit, beyond which the kernel ends it. RLIMIT_AS would count
// stacks and mapped files that nobody touches.
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <thread>

#include "plans.hpp"

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
      const fs::path folder = prefix_ + std::to_string(rank);
      if (!fs::create_directory(folder, error)) return false;
      folders_.push_back(folder);
      std::ofstream limit(folder / file);
      limit << bytes[rank] << std::flush;
      if (!limit.good()) return false;
    }
    return true;
  }
  void remove() {
    std::error_code ignored;
    for (const fs::path& folder : folders_) fs::remove(folder, ignored);
    folders_.clear();
  }

  std::string prefix_;
  std::vector<fs::path> folders_;
};

std::int64_t device_bytes(const json& process) {
  std::int64_t sum = 0;
  for (const json& device : process.at("devices")) sum += device.at("total").get<std::int64_t>();
  return sum;
}

/// Expects that the devices take what was planned and that no process takes more than was planned,
/// and than it said itself. Prints a row for each process.
void expect_planned(const char* name, const json& processes, const std::string& output) {
  const std::map<int, std::int64_t> arenas = bytes_in(output, "Memory: [^(]*\\((\\d+) and");
  const std::map<int, std::int64_t> peaks = peaks_in(output);
  ASSERT_FALSE(peaks.empty()) << output;
  for (const auto& [rank, said] : predicted_in(output))
    expect_within(said, peaks.at(rank), fmt::format("rank {}", rank));
  for (const json& process : processes) {
    const int rank = process.at("rank");
    const auto planned = process.at("peak").get<std::int64_t>();
    const std::int64_t peak = peaks.at(rank);
    EXPECT_EQ(device_bytes(process), arenas.at(rank)) << "rank " << rank;
    expect_within(planned, peak, fmt::format("plan of rank {}", rank));
    std::cout << fmt::format(
        "| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n", name, rank,
        1e-6 * static_cast<double>(arenas.at(rank)), 1e-6 * static_cast<double>(planned - kMargin),
        1e-6 * static_cast<double>(peak), 1e-6 * static_cast<double>(peak - planned + kMargin));
  }
}

/// The limits of all ranks. A plan names those of the first replica if the others are like them.
std::vector<std::int64_t> limits_of(const json& processes, const Words& options) {
  const auto replicas = std::find(options.begin(), options.end(), "--replicas");
  const bool all = replicas == options.end() ||
                   std::find(options.begin(), options.end(), "--shard-optimizer") != options.end();
  std::vector<std::int64_t> limits;
  for (int replica = 0; replica < (all ? 1 : std::stoi(*(replicas + 1))); ++replica)
    for (const json& process : processes) limits.push_back(process.at("peak").get<std::int64_t>());
  return limits;
}

struct Case {
  const char* name;
  Words options;
};

class PlannedMemoryTest : public MemoryTest, public testing::WithParamInterface<Case> {};

TEST_P(PlannedMemoryTest, IsWhatTheRunTakes) {
  const TemporaryDirectory directory;
  const Words& options = GetParam().options;
  const json plan = plan_of(options);
  ASSERT_TRUE(plan.contains("processes"));
  const json& processes = plan.at("processes");
  Words training = Words{"train --iterations 2"} + options;
  if (std::ranges::find(options, "--no-logs") == options.end())
    training = training + Words{"--run-dir", directory / "run"};
  if (std::ranges::find(options, "--no-validation") == options.end())
    training = training + "--max-eval-steps 40";  // more than are computed at once
  const HardLimits hard(limits_of(processes, options));
  const ProcessResult run = hard.set() ? hard.run(training) : millrace(training);
  ASSERT_EQ(run.code, 0) << run.output;
  expect_planned(GetParam().name, processes, run.output);
}

std::string name_of(const testing::TestParamInfo<Case>& one) { return one.param.name; }

// The steps alone.
Words cifar(const char* more) { return kCifar + "--no-logs --no-validation" + more; }
Words image_net(const char* more) { return kImageNet + "--no-logs --no-validation" + more; }
// With what is saved.
Words saved_cifar(const char* more) { return kCifar + "--no-validation" + more; }
Words saved_image_net(const char* more) { return kImageNet + "--no-validation" + more; }

INSTANTIATE_TEST_SUITE_P(
    Layouts, PlannedMemoryTest,
    testing::Values(
        Case{"Small", saved_cifar("--model-size 8 --batch-size 16")},
        Case{"Plain", cifar("--model-size 20 --batch-size 32")},
        Case{"Float32", cifar("--model-size 20 --batch-size 64 --precision 32.32")},
        Case{"Narrow", cifar("--model-size 20 --batch-size 64 --precision 16.16")},
        Case{"Threads",
             "--dataset cifar-10 --generated-data --threads-per-device 2 --no-logs "
             "--model-size 8 --batch-size 64 --precision 32.32"},
        Case{"Validates", kCifar + "--model-size 8 --batch-size 16 --valid-batch-size 250"},
        // With many micro-batches a device has many launches to queue and to keep.
        Case{"ManyMicroBatches", cifar("--model-size 8 --batch-size 4 --gradients-to-accumulate "
                                       "128")},
        Case{"ImagesOfTheDevice",
             "--dataset cifar-10 --synthetic-data --threads-per-device 1 --no-logs --no-validation "
             "--model-size 8 --batch-size 4 --gradients-to-accumulate 128"},
        Case{"ManySlots", cifar("--model-size 20 --batch-size 1 --shards 2 --pipeline-depth 64 "
                                "--pipeline-schedule GPipe --pipeline-splits b2/0")},
        // Large parameters and small images: initialization needs more memory than the steps.
        Case{"Parameters",
             "--dataset imagenet --synthetic-data --threads-per-device 1 --no-logs --no-validation "
             "--model-size 10 --image-size 32 --batch-size 4"},
        Case{"Lars", cifar("--model-size 14 --batch-size 64 --optimiser LARS")},
        Case{"Segments", cifar("--model-size 20 --batch-size 128 --recompute segments "
                               "--precision 32.32")},
        Case{"Layers", cifar("--model-size 20 --batch-size 64 --recompute-layers b1 b2")},
        Case{"Fitting", cifar("--model-size 20 --batch-size 128 --precision 32.32 --recompute "
                              "auto --device-memory 200MB")},
        // With one micro-batch an update, cuts are chosen by memory.
        Case{"CutByMemory", cifar("--model-size 20 --batch-size 64 --shards 2")},
        Case{"TwoStages", cifar("--model-size 20 --batch-size 64 --shards 2 --pipeline-depth 4 "
                                "--pipeline-splits b2/0")},
        Case{"TwoStagesSaved", saved_cifar("--model-size 20 --batch-size 64 --shards 2 "
                                           "--pipeline-depth 4 --pipeline-splits b2/1 "
                                           "--precision 32.32")},
        Case{"OneRank", cifar("--model-size 20 --batch-size 32 --shards 2 --ranks 1 "
                              "--pipeline-depth 4 --pipeline-splits b2/0")},
        Case{"Grouped", cifar("--model-size 14 --batch-size 64 --shards 2 --pipeline-depth 8 "
                              "--pipeline-schedule Grouped --pipeline-splits b2/0")},
        Case{"GPipe", cifar("--model-size 14 --batch-size 32 --shards 2 --pipeline-depth 4 "
                            "--pipeline-schedule GPipe --pipeline-splits b2/0 --recompute "
                            "segments")},
        Case{"ZeroBubble", cifar("--model-size 14 --batch-size 64 --shards 2 --pipeline-depth 4 "
                                 "--pipeline-schedule ZB-H1 --pipeline-splits auto")},
        Case{"V", cifar("--model-size 20 --batch-size 64 --shards 2 --pipeline-depth 4 "
                        "--pipeline-schedule ZB-V --pipeline-splits auto --precision 32.32")},
        Case{"FourStages", cifar("--model-size 20 --batch-size 64 --shards 4 --pipeline-depth 4 "
                                 "--pipeline-splits b1/2 b2/1 b3/0")},
        Case{"Replicas", cifar("--model-size 20 --batch-size 64 --replicas 2")},
        Case{"Sharded", cifar("--model-size 20 --batch-size 64 --replicas 2 --shard-optimizer "
                              "--optimiser momentum")},
        Case{"Grid", cifar("--model-size 8 --batch-size 128 --shards 2 --replicas 2 "
                           "--pipeline-depth 4 --pipeline-splits b2/0")},
        Case{"SqueezeNet", image_net("--model squeezenet --batch-size 8")},
        Case{"EfficientNet", image_net("--model efficientnet --model-size B0 --batch-size 8")},
        Case{"ResNet18", image_net("--model-size 18 --batch-size 8 --shards 2 --pipeline-depth 2 "
                                   "--pipeline-splits b4/0")},
        Case{"ResNet50", image_net("--model-size 50 --batch-size 4")},
        Case{"DeepMomentum", saved_cifar("--model-size 110 --batch-size 8 --optimiser momentum")},
        Case{"DeepAdam", saved_cifar("--model-size 110 --batch-size 8 --optimiser Adam "
                                     "--abs-learning-rate 0.001")},
        Case{"AdamW", saved_cifar("--model-size 20 --batch-size 48 --optimiser AdamW "
                                  "--abs-learning-rate 0.001")},
        Case{"EfficientNetRmsprop", saved_image_net("--model efficientnet --model-size B0 "
                                                    "--batch-size 2 --optimiser RMSprop")},
        Case{"Deep", saved_cifar("--model-size 110 --batch-size 16")},
        Case{"ResNet18Saved", saved_image_net("--model-size 18 --batch-size 4 --shards 2 "
                                              "--pipeline-depth 2 --pipeline-splits b3/0")},
        Case{"ResNet50Saved", saved_image_net("--model-size 50 --batch-size 4")},
        Case{"ReplicasSaved", saved_image_net("--model-size 18 --batch-size 4 --replicas 2")},
        Case{"EfficientNetSaved", saved_image_net("--model efficientnet --model-size B0 "
                                                  "--batch-size 4 --shards 2 --pipeline-depth 2 "
                                                  "--pipeline-splits block4a")},
        Case{"DeepStagesSaved", kCifar + "--model-size 56 --batch-size 16 --shards 2 "
                                         "--pipeline-depth 2 --pipeline-splits auto --optimiser "
                                         "momentum --ema-decay 0.99"},
        Case{"NarrowAverages", kCifar + "--model-size 20 --batch-size 16 --precision 16.16 "
                                        "--ema-decay 0.99"},
        Case{"DeepestStagesSaved", saved_cifar("--model-size 110 --batch-size 16 --shards 2 "
                                               "--pipeline-depth 2 --pipeline-splits auto "
                                               "--optimiser momentum")},
        Case{"FourStagesSaved", kCifar + "--model-size 20 --batch-size 8 --shards 4 "
                                         "--pipeline-depth 4 --pipeline-splits auto"},
        Case{"ChunksSaved", kCifar + "--model-size 20 --batch-size 16 --shards 2 --chunks 2 "
                                     "--pipeline-depth 8 --pipeline-schedule Looped "
                                     "--pipeline-splits auto --recompute-layers b2 b3"},
        Case{"LossAlone", saved_cifar("--model-size 20 --batch-size 64 --shards 2 "
                                      "--pipeline-depth 2 --pipeline-splits fc1")}),
    name_of);

/// Rank 0 gathers the text of all ranks, piece by piece.
TEST_F(MemoryTest, PlansCountTraces) {
  for (const std::string name : {"trace.json", "trace.svg"}) {
    const TemporaryDirectory directory;
    const bool json_text = name == "trace.json";
    const Words options = cifar(
                              "--model-size 20 --batch-size 32 --shards 2 --pipeline-depth 32 "
                              "--pipeline-splits b2/0 --profile-steps 1,4") +
                          Words{"--trace", directory / name} + (json_text ? "--trace-kernels" : "");
    const json plan = plan_of(options);
    ASSERT_TRUE(plan.contains("processes"));
    EXPECT_FALSE(fs::exists(directory / name)) << "a plan traces nothing";
    const ProcessResult run = millrace(Words{"train --iterations 4"} + options);
    ASSERT_EQ(run.code, 0) << run.output;
    expect_planned(name.c_str(), plan.at("processes"), run.output);
    if (!json_text) continue;
    EXPECT_GT(fs::file_size(directory / name), 2'000'000);
    EXPECT_FALSE(json::parse(read_text(directory / name)).at("traceEvents").empty());
  }
}

// Averages are made when nothing else is saved; `plan` does not know of them.
TEST_F(MemoryTest, RunsCountAverages) {
  for (const char* size : {"18", "50"}) {
    const TemporaryDirectory directory;
    const ProcessResult run = millrace(
        Words{"train --iterations 3 --checkpoint-every 1 --weight-avg-exp 0.9 --batch-size 4 "
              "--no-validation --run-dir",
              directory / "run", "--model-size", size} +
        kImageNet);
    ASSERT_EQ(run.code, 0) << run.output;
    expect_within(predicted_in(run.output).at(0), peaks_in(run.output).at(0), size);
  }
}

// The last stage is the largest, and its part lies with the first rank, too. A memory directory of
// its own makes a host of each rank.
TEST_F(MemoryTest, RunsCountSnapshotsOfPartners) {
  const TemporaryDirectory directory;
  const Words train =
      Words{
          "train --iterations 4 --elastic --partner-every 1 --model-size 18 --shards 3 "
          "--batch-size 2",
          "--pipeline-depth 3 --pipeline-splits b3/0 b4/0 --no-validation --run-dir",
          directory / "run"} +
      kImageNet;
  const Words hosts = {"/bin/sh",
                       "-c",
                       std::string("export MILLRACE_MEMORY_DIRECTORY=\"$1$OMPI_COMM_WORLD_RANK\"; "
                                   "shift; exec \"$@\""),
                       "sh",
                       directory / "memory-",
                       std::string(MILLRACE_BINARY)};
  const ProcessResult run = run_process("/usr/bin/env", kMpirun + Words{"-n 3"} + hosts + train);
  ASSERT_EQ(run.code, 0) << run.output;
  EXPECT_NE(run.output.find("3 of 3 sent"), std::string::npos) << run.output;
  for (const auto& [rank, said] : predicted_in(run.output))
    expect_within(said, peaks_in(run.output).at(rank), fmt::format("rank {}", rank));
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
  expect_end(millrace(Words{"train --recompute auto"} + kLarge), 2,
             {"--recompute auto needs --device-memory"});
}

}  // namespace
}  // namespace millrace::test
