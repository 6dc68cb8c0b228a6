// SPDX-License-Identifier: Apache-2.0
#include "train/stage_times.hpp"

#include "core/clock.hpp"
#include "tests/support/test.hpp"
#include "tests/train/small_run.hpp"

namespace millrace::training {
namespace {

using namespace small;
using pipeline::StageCost;

/// The costs of a layout with a rank per device.
std::vector<StageCost> costs_of(const Layout& layout) {
  run::Run config = planned(layout);
  config.pipeline.ranks.ranks = config.pipeline.ranks.devices * layout.replicas;
  const comm::World world;
  const Timer timer;
  std::vector<StageCost> costs = measured_costs(
      config, std::make_shared<NoiseDataset>(network_of(config).input_shape), world, 1);
  double work = 0.0;
  for (const StageCost& cost : costs)
    work += cost.forward + cost.backward_input + cost.backward_weight;
  // At least three of the five steps took each median or more.
  EXPECT_LE(3.0 * work * static_cast<double>(config.micro_batches), timer.seconds());
  EXPECT_EQ(std::ssize(costs), layout.stages);
  return costs;
}

TEST(StageTimesTest, MeasuresEveryStageOfEveryRank) {
  for (const Layout& layout :
       {Layout{.stages = 3, .schedule = "1F1B"},
        Layout{.stages = 4, .schedule = "Looped", .chunks = 2},
        Layout{.stages = 2, .schedule = "GPipe", .replicas = 2, .sharded = true, .span = 2},
        Layout{.stages = 4, .schedule = "ZB-V", .chunks = 2}}) {
    SCOPED_TRACE(name_of(layout));
    for (const StageCost& cost : costs_of(layout)) {
      EXPECT_GT(cost.forward, 0.0);
      EXPECT_GT(cost.backward_input, 0.0);
      EXPECT_EQ(cost.backward_weight > 0.0, layout.schedule == "ZB-V") << "otherwise both in one";
      EXPECT_GT(cost.update, 0.0);
    }
  }
}

}  // namespace
}  // namespace millrace::training
