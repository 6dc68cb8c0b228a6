// SPDX-License-Identifier: Apache-2.0
//
// NaNs planted in messages between devices, at various cuts, micro-batches and receiving ranks.
#include "faults.hpp"

namespace millrace::test {
namespace {

constexpr int kIterations = 4;
constexpr int kMicroBatches = 2;

/// The kind of message that crosses a cut.
enum class Way { Forward, Backward };

struct Plant {
  const char* name;
  const char* cut;
  const char* named;  ///< op with the first bad result; of two tensors, the one on the shortcut
  Way way;
  int iteration;    ///< from 1
  int micro_batch;  ///< from 0
  int tensors = 1;  ///< tensors per micro-batch that cross the cut

  /// Index of the micro-batch's first message.
  [[nodiscard]] int message() const {
    return ((iteration - 1) * kMicroBatches + micro_batch) * tensors + 1;
  }
};

std::ostream& operator<<(std::ostream& out, const Plant& plant) { return out << plant.name; }

/// Poisons a message between the stages of two ranks.
Environment poison(Way way, int first, int every = 0) {
  const bool forward = way == Way::Forward;
  return {"LD_PRELOAD=" + std::string(MILLRACE_POISON_SHIM),
          std::string("MILLRACE_POISON_RANK=") + (forward ? "1" : "0"),
          std::string("MILLRACE_POISON_FROM=") + (forward ? "0" : "1"),
          "MILLRACE_POISON_FIRST=" + std::to_string(first),
          "MILLRACE_POISON_EVERY=" + std::to_string(every)};
}

Words training(const fs::path& run, const char* cut, int iterations) {
  return short_training(iterations, 1) +
         Words{"--shards 2 --pipeline-splits", cut, "--max-ckpts-to-keep 0 --run-dir", run};
}

class PlantTest : public testing::TestWithParam<Plant> {
 protected:
  [[nodiscard]] fs::path run() const { return directory_ / "run"; }
  [[nodiscard]] std::string digest_at(int iteration) const {
    return io::digest(
        io::CheckpointReader(run() / "checkpoints" / ("ckpt-" + std::to_string(iteration))));
  }
  TemporaryDirectory directory_;
};

/// A non-finite number prevents the update on all ranks, and is reported if the loss shows it.
TEST_P(PlantTest, NoRankUpdatesAnything) {
  const Plant& plant = GetParam();
  Job job(training(run(), plant.cut, kIterations), poison(plant.way, plant.message()));
  const ProcessResult result = job.wait();
  const std::string told =
      "Update " + std::to_string(plant.iteration) + ": the loss became nan; the update was skipped";
  EXPECT_EQ(result.output.find(told) != std::string::npos, plant.way == Way::Forward)
      << result.output;
  ASSERT_EQ(result.code, 0) << result.output;
  expect_in(result.output, {"Skipped updates: 1 of 4"});
  for (int i = 1; i <= kIterations; ++i)
    EXPECT_EQ(digest_at(i) == digest_at(i - 1), i == plant.iteration) << "iteration " << i;
  EXPECT_EQ(io::verify(run() / "checkpoints" / "ckpt-4"), std::vector<std::string>{});
}

TEST_P(PlantTest, TheFirstBadResultIsNamed) {
  const Plant& plant = GetParam();
  Job job(training(run(), plant.cut, kIterations) + "--fp-exceptions",
          poison(plant.way, plant.message()));
  expect_end(job.wait(), 4,
             {std::string("op ") + plant.named + " made a number that is not finite",
              "micro-batch " + std::to_string(plant.micro_batch),
              "update " + std::to_string(plant.iteration)});
}

INSTANTIATE_TEST_SUITE_P(
    Numbers, PlantTest,
    testing::Values(
        Plant{"ForwardFirstLayers", "b1/0/conv1", "b1/0/conv1", Way::Forward, 2, 0},
        Plant{"ForwardLastLayers", "b3/0/conv2", "b3/0/shortcut", Way::Forward, 3, 1, 2},
        Plant{"BackwardFirstLayers", "b1/0/conv1", "b0/norm", Way::Backward, 3, 1},
        Plant{"BackwardMiddle", "b2/0/relu", "b2/0/norm2", Way::Backward, 1, 0},
        Plant{"BackwardLastLayers", "b3/0/conv2", "b2/0/norm2", Way::Backward, 4, 0, 2}),
    [](const auto& plant) { return plant.param.name; });

// After too many steps without an update the run ends; the last checkpoint stays the newest.
TEST(PlantRunTest, TwentyStepsInARowWithoutAnUpdateEndTheRun) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  Job job(short_training(40, 5) + on_ranks(2) + Words{"--max-ckpts-to-keep 2 --run-dir", run},
          poison(Way::Backward, 7 * kMicroBatches + 1, 1));
  expect_end(job.wait(), 4, {"not finite for 20 iterations in a row", "the first of them: b0/"});
  EXPECT_TRUE(fs::exists(run / "checkpoints" / "ckpt-5"))
      << "the last checkpoint before the skipped steps";
  EXPECT_GE(newest_in(run)->iteration, 20);
}

TEST(PlantRunTest, ARunThatEndsWithoutALossSaysSo) {
  const TemporaryDirectory directory;
  Job job(training(directory / "run", "b1/0/conv1", kIterations),
          poison(Way::Forward, (kIterations - 1) * kMicroBatches + 1));
  expect_end(job.wait(), 0,
             {"Update 4: the loss became nan", "The loss of the last update was nan"});
}

}  // namespace
}  // namespace millrace::test
