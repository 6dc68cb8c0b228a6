// SPDX-License-Identifier: Apache-2.0
//
// What the ranks that are left reach after losses, in the simulator. Prints the table of
// docs/pipelines.md.
#include "partition/spread.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <numeric>

#include "partition/cuts.hpp"
#include "partition/layout.hpp"
#include "tests/partition/nets.hpp"
#include "tests/partition/recycle.hpp"
#include "tests/support/test.hpp"

namespace millrace::partition {
namespace {

using pipeline::Schedule;

/// A run on as many ranks as it has devices.
struct Whole {
  Graph graph;
  std::vector<OpCost> costs;
  PlanRequest request;
  pipeline::PipelinePlan plan;

  [[nodiscard]] std::int32_t devices() const { return plan.ranks.all_devices(); }
  void schedule(std::int32_t replicas, bool split) {
    request.replicas = replicas;
    Schedule compute = generate(request.schedule);
    if (split) split_backwards(compute);
    plan.schedule = with_communication(compute, pipeline::links(graph, plan.ranges));
    const std::int32_t devices = request.schedule.devices;
    plan.ranks = {.devices = devices, .replicas = replicas, .ranks = devices * replicas};
  }
  [[nodiscard]] pipeline::TimeLine step(const pipeline::PipelinePlan& of) const {
    std::vector<pipeline::StageCost> stages;
    for (const OpRange& range : of.ranges)
      stages.push_back(stage_cost(costs, range, Recompute::None));
    return simulate(of, pipeline::links(graph, of.ranges),
                    step_costs(graph, of.ranges, std::move(stages), request));
  }
  /// After the loss of `lost` ranks.
  [[nodiscard]] Spread spread_after(std::int32_t lost, std::vector<double> speeds = {}) const {
    pipeline::PipelinePlan standing = plan;
    standing.ranks.ranks -= lost;
    const std::optional<Spread> found = spread(graph, costs, request, standing, speeds);
    EXPECT_TRUE(found.has_value()) << lost;
    return found.value_or(Spread());
  }
};

/// Stages of 64 equal ops, whose forward takes 1 second and whose backward takes 2, under 1F1B with
/// four micro-batches a stage.
Whole uniform(std::int32_t stages, std::int32_t replicas, bool split = false) {
  constexpr std::int32_t kPieces = 64;
  const std::int32_t ops = stages * kPieces;
  Whole whole;
  models::GraphBuilder b("chain", {4, 4, 4}, 10);
  ValueId x = b.input();
  for (std::int32_t i = 0; i < ops - 1; ++i) {
    b.begin_layer(fmt::format("b{}", i));
    x = i == 0         ? b.conv("", x, {.out_channels = 4})
        : i == ops - 2 ? b.dense("", x, {.units = 10})
                       : b.activation("", x, {});
  }
  b.begin_layer("loss");
  b.softmax_loss("", x);
  whole.graph = std::move(b).build();
  OpCost cost;
  cost.forward = cost.backward_input = cost.backward_weight = 1.0 / kPieces;
  cost.stash_bytes = 1 << 20;
  whole.costs.assign(whole.graph.ops.size(), cost);
  for (std::int32_t s = 0; s < stages; ++s)
    whole.plan.ranges.push_back({s * kPieces, (s + 1) * kPieces});
  whole.request.schedule.devices = stages;
  whole.request.schedule.micro_batches = 4 * stages;
  whole.schedule(replicas, split);
  return whole;
}

Whole resnet_50() {
  Whole whole;
  whole.graph = imagenet_resnet("50");
  whole.request.program.batch = 8;
  whole.request.link = local_link();
  whole.request.schedule.devices = 4;
  whole.request.schedule.micro_batches = 16;
  whole.costs = costs_of(whole.graph, whole.request);
  whole.plan.ranges =
      stages_of(whole.graph, automatic_plan(whole.graph, whole.costs, whole.request, 0).splits);
  whole.schedule(4, false);
  return whole;
}

/// A row: the throughput of what is left, as a share of that of the whole. Returns the first.
double print_row(std::string_view name, const Whole& whole, std::int32_t lost) {
  const Spread found = whole.spread_after(lost);
  const double seconds = whole.step(whole.plan).makespan;
  const double ideal = 1.0 - static_cast<double>(lost) / whole.devices();
  fmt::print(
      "{:<10} lost {:>2} of {:>3}: {:>3} stages, {:.3f}; in proportion {:.3f}, with whole "
      "devices {:.3f}\n",
      name, lost, whole.devices(), found.splits.size() + 1, seconds / found.seconds, ideal,
      seconds / found.standing);
  return seconds / found.seconds;
}

/// All numbers of lost ranks up to an eighth, or some of them where there are many.
std::vector<std::int32_t> losses(std::int32_t devices) {
  const bool all = devices <= 32 || std::getenv("MILLRACE_LONG_TESTS") != nullptr;
  if (!all) return {1, 8, 16, 27, 32};
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(devices / 8));
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

TEST(SpreadTest, WhatIsLeftComputesInProportion) {
  for (const auto& [stages, replicas, split] : std::initializer_list<std::tuple<int, int, bool>>{
           {4, 4, false}, {4, 4, true}, {8, 4, false}, {8, 4, true}, {32, 8, false}}) {
    const Whole whole = uniform(stages, replicas, split);
    const std::string name = fmt::format("{} x {}{}", stages, replicas, split ? " split" : "");
    for (const std::int32_t lost : losses(whole.devices()))
      EXPECT_GE(print_row(name, whole, lost), 1.0 - static_cast<double>(lost) / whole.devices())
          << name << ", " << lost;
  }
}

// Both hold at most 1.35 times as much on a device as before the loss, besides the share of those
// that are lost. ReCycle takes back an update when a gradient of a later stage is not finite;
// without that, its steps do not overlap.
TEST(SpreadTest, IsAsFastAsReCycle) {
  for (const auto& [stages, replicas] :
       std::initializer_list<std::pair<int, int>>{{4, 4}, {8, 4}, {32, 8}}) {
    const Whole whole = uniform(stages, replicas);
    const std::int32_t devices = whole.devices();
    const double seconds = whole.step(whole.plan).makespan;
    for (const std::int32_t lost : losses(devices)) {
      const double held = 1.35 * stages * devices / (devices - lost);
      Recycle recycle({stages, replicas, 4 * stages, lost, static_cast<std::int32_t>(held)});
      const std::vector<std::int32_t> ends = recycle.ends(4);
      const double own = whole.spread_after(lost).seconds;
      fmt::print("{} x {} lost {:>2}: {:.3f}; ReCycle {:.3f}, {:.3f} with staggered updates\n",
                 stages, replicas, lost, seconds / own, seconds / ends[0],
                 seconds / (ends[3] - ends[2]));
      EXPECT_LE(own, ends[0]) << stages << " x " << replicas << ", " << lost;
    }
  }
}

TEST(SpreadTest, ResNet50) {
  const Whole whole = resnet_50();
  for (std::int32_t lost = 1; lost <= 4; ++lost)
    EXPECT_GE(print_row("ResNet-50", whole, lost), 1.0 - lost / 16.0) << lost;
}

// Each rank has a part of the line, and holds about as much as before and as much more as it
// computes more.
TEST(SpreadTest, RanksHaveEqualParts) {
  for (const Whole& whole : {uniform(4, 4), resnet_50()}) {
    const Spread found = whole.spread_after(1);
    EXPECT_TRUE(splits_backward(found.order));
    const pipeline::PipelinePlan plan = plan_of(whole.graph, found, 4);
    EXPECT_EQ(plan.ranks.ranks, 15);
    EXPECT_TRUE(plan.is_joint());
    const pipeline::TimeLine line = whole.step(plan);
    const double mean = std::accumulate(line.busy.begin(), line.busy.end(), 0.0) / 15.0;
    EXPECT_LE(std::ranges::max(line.busy), 1.15 * mean);
    EXPECT_LE(std::ranges::max(line.stash_bytes),
              1.35 * 16.0 / 15.0 * std::ranges::max(whole.step(whole.plan).stash_bytes));
    EXPECT_NEAR(line.makespan, found.seconds, 0.03 * found.seconds)
        << "stages as one are an estimate";
  }
}

TEST(SpreadTest, SlowRanksHaveLess) {
  const Whole whole = uniform(2, 2);
  const Spread found = whole.spread_after(1, {1.0, 0.5, 1.0});
  const pipeline::TimeLine line = whole.step(plan_of(whole.graph, found, 2));
  EXPECT_NEAR(line.busy[1], 0.5 * line.busy[0], 0.05 * line.busy[0]);
  EXPECT_NEAR(line.busy[2], line.busy[0], 0.05 * line.busy[0]);
  EXPECT_LT(found.standing, 1.2 * whole.spread_after(1).standing) << "it has one device, not two";
  const std::vector<double> speeds = {1.0, 0.5, 1.0};
  EXPECT_NEAR(
      seconds_of(whole.graph, whole.costs, whole.request, plan_of(whole.graph, found, 2), speeds),
      found.seconds, 0.03 * found.seconds);
}

TEST(SpreadTest, WhatIsEvenStays) {
  const Whole whole = uniform(4, 2);
  EXPECT_FALSE(spread(whole.graph, whole.costs, whole.request, whole.plan).has_value());
}

}  // namespace
}  // namespace millrace::partition
