// SPDX-License-Identifier: Apache-2.0
#include "partition/balance.hpp"

#include <random>

#include "core/text.hpp"
#include "partition/cuts.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "tests/partition/nets.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::partition {
namespace {

std::vector<OpCost> random_costs(std::size_t ops, std::mt19937& random) {
  std::uniform_real_distribution<double> seconds(0.1, 2.0);
  std::vector<OpCost> costs(ops);
  for (OpCost& cost : costs) {
    cost.forward = seconds(random);
    cost.backward_input = seconds(random);
    cost.backward_weight = seconds(random);
    cost.stash_bytes = static_cast<std::int64_t>(1 + random() % 100);
    cost.parameter_bytes = static_cast<std::int64_t>(random() % 100);
    cost.boundary_bytes = static_cast<std::int64_t>(random() % 20);
  }
  return costs;
}

std::vector<OpId> every_cut(std::size_t ops) {
  std::vector<OpId> cuts;
  for (std::size_t i = 1; i < ops; ++i) cuts.push_back(OpId{static_cast<std::int32_t>(i)});
  return cuts;
}

/// Visits all choices of cuts.
template <class Visit>
void for_each_choice(const std::vector<OpId>& cuts, std::size_t ops, std::size_t stages,
                     Visit&& visit) {
  std::vector<bool> chosen(cuts.size(), false);
  std::fill(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(stages - 1), true);
  do {
    std::vector<OpRange> ranges;
    std::int32_t first = 0;
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      if (!chosen[i]) continue;
      ranges.push_back({first, cuts[i].value});
      first = cuts[i].value;
    }
    ranges.push_back({first, static_cast<std::int32_t>(ops)});
    visit(ranges);
  } while (std::prev_permutation(chosen.begin(), chosen.end()));
}

/// Memory from costs alone: weights and gradients, and the stash of 4 - stage micro-batches.
StageMemory additive_memory(std::span<const OpCost> costs) {
  return [costs](OpRange range, std::int32_t stage) {
    std::int64_t slot = border_bytes(costs, range, Recompute::None);
    std::int64_t parameters = 0;
    for (std::int32_t op = range.first; op < range.last; ++op) {
      slot += costs[static_cast<std::size_t>(op)].stash_bytes;
      parameters += costs[static_cast<std::size_t>(op)].parameter_bytes;
    }
    return 2 * parameters + (4 - stage) * slot;
  };
}

double bound_of(const BalanceRequest& request, const std::vector<OpRange>& ranges) {
  std::vector<pipeline::StageCost> stages;
  stages.reserve(ranges.size());
  for (const OpRange range : ranges)
    stages.push_back(stage_cost(request.costs, range, request.recompute));
  return pipeline::lower_bound_seconds(stages, request.micro_batches,
                                       request.backward == Backward::Split);
}

std::int64_t largest(const StageMemory& memory, const std::vector<OpRange>& ranges) {
  std::int64_t most = 0;
  for (std::size_t s = 0; s < ranges.size(); ++s)
    most = std::max(most, memory(ranges[s], static_cast<std::int32_t>(s)));
  return most;
}

/// Bounds of the choices that fit, ascending, and the smallest memory of any choice.
struct Tried {
  std::vector<double> bounds;
  std::int64_t least_memory = std::numeric_limits<std::int64_t>::max();
};
Tried try_all(const BalanceRequest& request) {
  Tried tried;
  for_each_choice(request.cuts, request.costs.size(), static_cast<std::size_t>(request.stages),
                  [&](const std::vector<OpRange>& ranges) {
                    if (request.memory) {
                      const std::int64_t bytes = largest(request.memory, ranges);
                      tried.least_memory = std::min(tried.least_memory, bytes);
                      if (bytes > request.memory_limit) return;
                    }
                    tried.bounds.push_back(bound_of(request, ranges));
                  });
  std::sort(tried.bounds.begin(), tried.bounds.end());
  return tried;
}

void expect_best(const BalanceRequest& request, const std::vector<double>& bounds) {
  const std::vector<Balance> plans = balance(request);
  ASSERT_EQ(plans.size(), std::min(bounds.size(), request.plans));
  std::set<std::vector<std::int32_t>> seen;
  for (std::size_t k = 0; k < plans.size(); ++k) {
    EXPECT_NEAR(plans[k].bound, bounds[k], 1e-9 * bounds[k]);
    EXPECT_NEAR(plans[k].bound, bound_of(request, plans[k].stages), 1e-9 * bounds[k]);
    std::vector<std::int32_t> ends;
    for (const OpRange range : plans[k].stages) ends.push_back(range.last);
    EXPECT_TRUE(seen.insert(ends).second) << "the same plan twice";
  }
}

TEST(BalanceTest, EqualsBruteForce) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t ops = 4 + random() % 9;
    const std::vector<OpCost> costs = random_costs(ops, random);
    BalanceRequest request;
    request.costs = costs;
    request.cuts = every_cut(ops);
    request.stages = static_cast<std::int32_t>(1 + random() % 4);
    request.micro_batches = static_cast<std::int32_t>(1 + random() % 16);
    request.recompute = random() % 2 == 0 ? Recompute::None : Recompute::Stage;
    request.backward = random() % 2 == 0 ? Backward::Joined : Backward::Split;
    expect_best(request, try_all(request).bounds);
  }
}

TEST(BalanceTest, EqualsBruteForceUnderALimitOfMemory) {
  std::mt19937 random(4);
  int limited = 0;
  int refused = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t ops = 5 + random() % 8;
    const std::vector<OpCost> costs = random_costs(ops, random);
    BalanceRequest request;
    request.costs = costs;
    request.cuts = every_cut(ops);
    request.stages = static_cast<std::int32_t>(2 + random() % 3);
    request.micro_batches = 8;
    request.memory = additive_memory(costs);
    request.memory_limit = static_cast<std::int64_t>(400 + random() % 1200);
    const Tried tried = try_all(request);
    if (tried.bounds.empty()) {
      ++refused;
      expect_error(
          ErrorKind::Config,
          "no choice of cuts fits " + std::to_string(request.stages) + " stages into " +
              human_bytes(request.memory_limit) + " (" + std::to_string(request.memory_limit) +
              " bytes) each; the smallest limit that works is " + human_bytes(tried.least_memory) +
              " (" + std::to_string(tried.least_memory) + " bytes)",
          [&] { (void)balance(request); });
      request.memory_limit = tried.least_memory;
      EXPECT_FALSE(balance(request).empty()) << "the smallest limit does not work";
      continue;
    }
    BalanceRequest without = request;
    without.memory = nullptr;
    if (tried.bounds.front() > try_all(without).bounds.front()) ++limited;
    expect_best(request, tried.bounds);
  }
  EXPECT_GT(limited, 10) << "the limit must matter";
  EXPECT_GT(refused, 10);
}

TEST(BalanceTest, BoundsOfEqualStagesAreThePublishedTimes) {
  const std::vector<pipeline::StageCost> stages(
      4, {.forward = 1.0, .backward_input = 1.0, .backward_weight = 1.0});
  EXPECT_EQ(pipeline::lower_bound_seconds(stages, 8, false), 33.0) << "1F1B";
  EXPECT_EQ(pipeline::lower_bound_seconds(stages, 8, true), 27.0) << "ZB-H1";
}

TEST(BalanceTest, CutsOnlyAtTheGivenOps) {
  std::mt19937 random(5);
  const std::vector<OpCost> costs = random_costs(12, random);
  BalanceRequest request;
  request.costs = costs;
  request.cuts = {OpId{3}, OpId{4}, OpId{9}};
  request.stages = 3;
  request.micro_batches = 4;
  const std::vector<Balance> plans = balance(request);
  EXPECT_EQ(plans.size(), 3u);
  for (const Balance& plan : plans)
    for (std::size_t s = 1; s < 3; ++s)
      EXPECT_NE(std::find(request.cuts.begin(), request.cuts.end(), OpId{plan.stages[s].first}),
                request.cuts.end());
}

// One op takes nearly all the time, so every bound is the same. The rest must be divided evenly.
TEST(BalanceTest, OfEqualBoundsTheEvenestComesFirst) {
  std::vector<OpCost> costs(7);
  for (OpCost& cost : costs) cost.forward = 1.0;
  costs[0].forward = 100.0;
  BalanceRequest request;
  request.costs = costs;
  request.cuts = every_cut(7);
  request.stages = 3;
  request.micro_batches = 10;
  const std::vector<OpRange> expected = {{0, 1}, {1, 4}, {4, 7}};
  EXPECT_EQ(balance(request).front().stages, expected);
}

TEST(BalanceTest, RefusesMoreStagesThanCutsAllow) {
  const std::vector<OpCost> costs(4);
  BalanceRequest request;
  request.costs = costs;
  request.cuts = {OpId{1}, OpId{2}};
  request.stages = 4;
  expect_error(ErrorKind::Config, "4 stages need 3 cuts, but the network has only 2 possible cuts",
               [&] { (void)balance(request); });
}

TEST(BalanceTest, BalancesAResidualNetWithinMemory) {
  const Graph graph = imagenet_resnet("50");
  const std::vector<OpCost> costs = analytic_costs(graph, 4, DType::BF16, cpu_model(DType::BF16));
  BalanceRequest request;
  request.costs = costs;
  request.cuts = op_cuts(graph);
  request.stages = 4;
  request.micro_batches = 16;
  const Balance free = balance(request).front();
  EXPECT_NEAR(free.bound,
              16.75 * stage_cost(costs, pipeline::whole(graph), Recompute::None).forward * 3 / 4,
              0.1 * free.bound);
  pipeline::ProgramOptions options;
  options.batch = 4;
  options.type = DType::BF16;
  std::vector<pipeline::Slots> slots(4);
  for (std::size_t s = 0; s < 4; ++s) slots[s].stash = static_cast<int>(4 - s);
  request.memory =
      exact_memory(std::make_shared<StageBytes>(graph, options, UpdateRule::Momentum), slots);
  const std::int64_t needed = largest(request.memory, free.stages);
  request.memory_limit = needed - 1;
  request.cuts = filtered_cuts(graph, {});
  const Balance limited = balance(request).front();
  EXPECT_LT(largest(request.memory, limited.stages), needed);
  EXPECT_EQ(request.memory(limited.stages[2], 2),
            stage_bytes(graph, limited.stages[2], options, slots[2], UpdateRule::Momentum));
}

// ---- shards

StageMemory sequential_memory(const Graph& graph) {
  pipeline::ProgramOptions options;
  options.batch = 4;
  return exact_memory(std::make_shared<StageBytes>(graph, options, UpdateRule::Sgd),
                      std::vector<pipeline::Slots>(8));
}

TEST(ShardTest, NeedsTheLeastMemoryOfAllChoices) {
  const Graph graph = cifar_resnet("20");
  const StageMemory memory = sequential_memory(graph);
  for (std::int32_t shards = 1; shards <= 4; ++shards) {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    double squares = std::numeric_limits<double>::infinity();
    const auto squares_of = [&](const std::vector<OpRange>& ranges) {
      double sum = 0.0;
      for (const OpRange range : ranges) {
        const auto bytes = static_cast<double>(memory(range, 0));
        sum += bytes * bytes;
      }
      return sum;
    };
    for_each_choice(filtered_cuts(graph, {}), graph.ops.size(), static_cast<std::size_t>(shards),
                    [&](const std::vector<OpRange>& ranges) {
                      const std::int64_t bytes = largest(memory, ranges);
                      if (bytes > least) return;
                      squares = bytes < least ? squares_of(ranges)
                                              : std::min(squares, squares_of(ranges));
                      least = bytes;
                    });
    const std::vector<OpRange> stages = shard_by_memory(graph, shards, {}, memory);
    EXPECT_EQ(std::ssize(stages), shards);
    EXPECT_EQ(largest(memory, stages), least);
    EXPECT_EQ(squares_of(stages), squares);
  }
}

TEST(ShardTest, FiltersBoundariesByTheNamesOnEitherSide) {
  const Graph graph = cifar_resnet("8");
  const auto names = [&](const LayerFilter& filter) {
    std::vector<std::string> result;
    for (const OpId cut : filtered_cuts(graph, filter)) result.push_back(cut_name(graph, cut));
    return result;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({}).size(), graph.layers.size() - 1);
  EXPECT_EQ(names({{"b2"}, {}}), (Names{"b2/0", "b2/0/relu", "b3/0"}));
  EXPECT_EQ(names({{"b2", "fc"}, {"relu"}}), (Names{"fc1", "loss"}));
  EXPECT_EQ(names({{}, {"b", "loss"}}), (Names{"fc1"}));
}

TEST(ShardTest, RefusesAFilterThatLeavesTooFewCuts) {
  const Graph graph = cifar_resnet("8");
  expect_error(ErrorKind::Config,
               "`shards` 4 needs 3 cuts between layers, but `sharding-include-filter` and "
               "`sharding-exclude-filter` leave 2 in resnet-8: fc1, loss",
               [&] {
                 (void)shard_by_memory(graph, 4, {{"fc"}, {}}, sequential_memory(graph));
               });
  expect_error(ErrorKind::Config,
               "`shards` 40 needs 39 cuts between layers, but there are only 9 in resnet-8: b1/0, "
               "b1/0/relu, b2/0, b2/0/relu, b3/0, b3/0/relu, reduce_mean, fc1, loss",
               [&] { (void)shard_by_memory(graph, 40, {}, sequential_memory(graph)); });
}

}  // namespace
}  // namespace millrace::partition
