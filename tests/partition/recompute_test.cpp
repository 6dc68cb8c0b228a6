// SPDX-License-Identifier: Apache-2.0
#include "partition/recompute.hpp"

#include "partition/cuts.hpp"
#include "partition/plan.hpp"
#include "pipeline/memory_plan.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "tests/partition/nets.hpp"
#include "tests/support/test.hpp"

namespace millrace::partition {
namespace {

using models::OpId;
using pipeline::ChosenSegments;

struct RecomputationTest : testing::Test {
  Graph graph = cifar_resnet("8");
  OpRange all = pipeline::whole(graph);
  pipeline::ProgramOptions options = [] {
    pipeline::ProgramOptions o;
    o.batch = 32;
    return o;
  }();
  std::vector<OpCost> costs = analytic_costs(graph, 32, DType::F32, cpu_model(DType::F32));

  [[nodiscard]] std::int64_t bytes(const ChosenSegments& chosen, pipeline::Slots slots) const {
    return program_bytes(graph, all, with_chosen(options, chosen), slots);
  }
  [[nodiscard]] double seconds(const ChosenSegments& chosen) const {
    const pipeline::ProgramOptions with = with_chosen(options, chosen);
    return stage_cost(costs, all, with).backward_input -
           stage_cost(costs, all, options).backward_input;
  }
  /// The fewest seconds of all sets of all segments that fit.
  [[nodiscard]] double fewest_seconds(std::int64_t most, pipeline::Slots slots) const {
    double best = std::numeric_limits<double>::infinity();
    for (const std::vector<OpId>& cuts : pipeline::segment_cuts(graph, all)) {
      std::vector<OpId> begins = {OpId{0}};
      begins.insert(begins.end(), cuts.begin(), cuts.end());
      for (std::size_t set = 0; set < (std::size_t{1} << begins.size()); ++set) {
        ChosenSegments chosen{cuts, {}};
        for (std::size_t i = 0; i < begins.size(); ++i)
          if (((set >> i) & 1) != 0) chosen.kept.push_back(begins[i]);
        if (bytes(chosen, slots) <= most) best = std::min(best, seconds(chosen));
      }
    }
    return best;
  }
};

TEST_F(RecomputationTest, RepeatsNothingThatFits) {
  for (const pipeline::Slots slots : {pipeline::Slots{1, 1, 0}, pipeline::Slots{3, 1, 2}}) {
    const std::int64_t most = program_bytes(graph, all, options, slots);
    const Recomputation chosen = choose_recomputation(graph, costs, all, options, slots, most);
    EXPECT_EQ(chosen.seconds, 0.0);
    EXPECT_LE(chosen.bytes, most);
    EXPECT_TRUE(pipeline::repeated_segments(all, with_chosen(options, chosen.chosen)).empty());
  }
}

TEST_F(RecomputationTest, IsTheCheapestThatFits) {
  for (const pipeline::Slots slots : {pipeline::Slots{1, 1, 0}, pipeline::Slots{3, 1, 2}}) {
    const std::int64_t before = program_bytes(graph, all, options, slots);
    for (const double share : {0.9, 0.75, 0.65}) {
      const auto most = static_cast<std::int64_t>(share * static_cast<double>(before));
      const Recomputation chosen = choose_recomputation(graph, costs, all, options, slots, most);
      const double fewest = fewest_seconds(most, slots);
      if (fewest == std::numeric_limits<double>::infinity()) continue;
      EXPECT_LE(chosen.bytes, most) << share;
      EXPECT_EQ(chosen.bytes, bytes(chosen.chosen, slots)) << share;
      EXPECT_GT(chosen.seconds, 0.0) << share;
      EXPECT_NEAR(chosen.seconds, seconds(chosen.chosen), 1e-12) << share;
      EXPECT_NEAR(chosen.seconds, fewest, 1e-12) << share;
    }
  }
}

TEST_F(RecomputationTest, NeedsTheLeastIfNothingFits) {
  const pipeline::Slots slots{1, 1, 0};
  const Recomputation chosen = choose_recomputation(graph, costs, all, options, slots, 1);
  pipeline::ProgramOptions segments = options;
  segments.recompute = Recompute::Stage;
  EXPECT_LE(chosen.bytes,
            program_bytes(graph, all, with_segments(graph, all, segments, slots), slots));
}

// A stage that holds one micro-batch does not repeat its last segment.
TEST_F(RecomputationTest, CostsOnlyWhatIsRepeated) {
  pipeline::ProgramOptions again = options;
  again.recompute = Recompute::Stage;
  const pipeline::StageCost none = stage_cost(costs, all, options);
  const pipeline::StageCost whole = stage_cost(costs, all, again);
  EXPECT_NEAR(whole.backward_input, none.backward_input + none.forward, 1e-12);
  again.segments = {graph.find("b2/0"), graph.find("b3/0")};
  again.repeats_last_segment = false;
  double repeated = 0.0;
  for (std::size_t op = 0; op < graph.find("b3/0").at(); ++op) repeated += costs[op].forward;
  const pipeline::StageCost two = stage_cost(costs, all, again);
  EXPECT_NEAR(two.backward_input, none.backward_input + repeated, 1e-12);
  EXPECT_LT(two.stash_bytes, none.stash_bytes);
  EXPECT_GT(two.stash_bytes, whole.stash_bytes) << "borders, and what is kept";
}

TEST(PlanMemoryTest, IsThatOfTheSizer) {
  const Graph graph = cifar_resnet("8");
  const std::vector<OpCost> costs = analytic_costs(graph, 4, DType::F32, cpu_model(DType::F32));
  PlanRequest request;
  request.program.batch = 4;
  request.schedule.devices = 2;
  request.schedule.micro_batches = 4;
  request.sizer = [](OpRange range, const pipeline::ProgramOptions&, pipeline::Slots slots) {
    return std::int64_t{1000} * (range.last - range.first) + slots.stash;
  };
  const std::vector<Plan> plans = best_plans(graph, costs, request, {});
  const Plan& plan = plans.front();
  const std::vector<OpRange> stages = stages_of(graph, plan.splits);
  ASSERT_EQ(plan.memory.size(), 2u);
  for (std::size_t s = 0; s < 2; ++s)
    EXPECT_EQ(plan.memory[s] / 1000, stages[s].last - stages[s].first);
}

}  // namespace
}  // namespace millrace::partition
