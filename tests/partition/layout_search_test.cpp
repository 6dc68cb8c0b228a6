// SPDX-License-Identifier: Apache-2.0
#include "partition/layout_search.hpp"

#include "partition/cuts.hpp"
#include "partition/layout.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "tests/partition/nets.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::partition {
namespace {

PlanRequest base_request() {
  PlanRequest request;
  request.program.type = DType::F32;
  request.update = UpdateRule::Momentum;
  request.link = local_link();
  return request;
}

/// The fastest way to train on these devices, so many of them a pipeline: all micro-batches and
/// schedules, each with cuts wherever they are best.
double fastest_of_all(const Graph& graph, const LayoutSearch& search, std::int32_t stages) {
  double best = std::numeric_limits<double>::infinity();
  PlanRequest request = base_request();
  request.replicas = search.devices / stages;
  const std::int64_t share = search.total_batch / request.replicas;
  for (std::int64_t batch = 1; batch <= share; ++batch) {
    if (share % batch != 0) continue;
    request.program.batch = batch;
    const auto costs = estimated_costs(graph, request.program, request.device);
    for (const pipeline::ScheduleRule& rule : pipeline::schedule_rules()) {
      const bool free = rule.placement == pipeline::StagePlacement::Free;
      if (stages == 1 && !free) continue;
      request.schedule = {.name = std::string(rule.name),
                          .devices = stages,
                          .chunks = free ? 1 : 2,
                          .micro_batches = static_cast<std::int32_t>(share / batch),
                          .device_of = {}};
      best = std::min(best, automatic_plan(graph, costs, request, 0).seconds);
    }
  }
  return best;
}

// In each row, not the first alone: people compare them.
TEST(LayoutSearchTest, NoLayoutIsFasterThanThatOfItsRow) {
  const Graph graph = cifar_resnet("20");
  const LayoutSearch search{.devices = 4, .total_batch = 64};
  const std::vector<FoundLayout> found = search_layouts(graph, base_request(), search);
  for (const FoundLayout& layout : found)
    EXPECT_LE(layout.plan.seconds,
              1.005 * fastest_of_all(graph, search, layout.request.schedule.devices))
        << layout.request.schedule.devices;
  ASSERT_EQ(found.size(), 3u) << "one, two and four stages";
  for (const FoundLayout& layout : found) {
    EXPECT_EQ(layout.plan.batch * layout.plan.micro_batches * layout.request.replicas, 64);
    EXPECT_EQ(layout.request.schedule.devices * layout.request.replicas, 4);
    EXPECT_GE(layout.plan.seconds, found.front().plan.seconds);
    const StepParts& parts = layout.parts;
    EXPECT_NEAR(parts.compute + parts.bubble + parts.messages + parts.reduce + parts.update,
                layout.plan.seconds, 1e-9);
    EXPECT_EQ(layout.request.replicas > 1, parts.reduce > 0.0);
  }
}

TEST(LayoutSearchTest, EveryLayoutFitsInMemory) {
  const Graph graph = imagenet_resnet("50");
  LayoutSearch search{.devices = 4, .total_batch = 32};
  const auto free = search_layouts(graph, base_request(), search);
  const auto alone = std::find_if(free.begin(), free.end(), [](const FoundLayout& layout) {
    return layout.request.schedule.devices == 1;
  });
  ASSERT_NE(alone, free.end());
  search.memory_limit = largest_device(alone->plan) / 2;
  const auto limited = search_layouts(graph, base_request(), search);
  for (const FoundLayout& layout : limited)
    EXPECT_LE(largest_device(layout.plan), search.memory_limit);
  EXPECT_GE(limited.front().plan.seconds, free.front().plan.seconds);

  search.memory_limit = 10'000'000;
  expect_error(ErrorKind::Config,
               {"no layout of 4 devices fits into 10.0 MB a device; the smallest found needs "},
               [&] { (void)search_layouts(graph, base_request(), search); });
}

// What is measured besides the stages counts. Nothing that fits is refused, and nothing slower is
// preferred: a limit that a layout just fits into leads to one that is as fast.
TEST(LayoutSearchTest, MeasuredLayoutsUseTheMemory) {
  const Graph graph = cifar_resnet("20");
  LayoutSearch search{.devices = 2, .total_batch = 128};
  constexpr std::int64_t kRest = 70'000'000;
  search.assumed_rest = 10'000'000;
  search.varies = 1'500'000;
  search.measure = [](const FoundLayout& layout) { return largest_device(layout.plan) + kRest; };
  for (const std::int64_t stages : {20'000'000, 40'000'000, 120'000'000}) {
    search.memory_limit = stages + kRest + search.varies;
    const FoundLayout found = search_layouts(graph, base_request(), search).front();
    EXPECT_EQ(found.with_process, largest_device(found.plan) + kRest);
    EXPECT_LE(found.with_process + search.varies, search.memory_limit);
    const LayoutSearch known{.devices = 2, .total_batch = 128, .memory_limit = stages};
    EXPECT_EQ(found.plan.seconds,
              search_layouts(graph, base_request(), known).front().plan.seconds);
  }
}

// Where nothing but a slow wire joins the replicas, their gradients cost more than the messages of
// a pipeline; where it is fast, replicas have no bubble.
TEST(LayoutSearchTest, TheLinkDecidesBetweenReplicasAndStages) {
  const Graph graph = imagenet_resnet("50");
  const LayoutSearch search{.devices = 2, .total_batch = 32};
  PlanRequest request = base_request();
  request.link = {.latency = 1e-6, .bytes_per_second = 100e9};
  EXPECT_EQ(search_layouts(graph, request, search).front().request.replicas, 2);
  request.link = {.latency = 1e-6, .bytes_per_second = 0.03e9};
  const auto slow = search_layouts(graph, request, search);
  EXPECT_EQ(slow.front().request.replicas, 1);
  EXPECT_NE(to_text(slow, {.images = 1000, .epochs = 90}).find("more for all-reduce"),
            std::string::npos);
}

TEST(LayoutSearchTest, ABatchThatCannotBeDividedIsRefused) {
  const LayoutSearch search{.devices = 64, .total_batch = 1};
  expect_error(ErrorKind::Config, {"1 images an update have no layout on 64 devices"},
               [&] { (void)search_layouts(cifar_resnet("8"), base_request(), search); });
}

TEST(LayoutSearchTest, AShareWithoutGoodDivisorsTakesManyMicroBatches) {
  for (const auto& [total, batch] : {std::pair{1021, 1}, {65536, 512}, {2 * 1021, 2}}) {
    const LayoutSearch search{.devices = 1, .total_batch = total};
    const auto found = search_layouts(cifar_resnet("8"), base_request(), search);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].plan.batch, batch);
    EXPECT_EQ(found[0].plan.batch * found[0].plan.micro_batches, total);
  }
}

TEST(LayoutSearchTest, ReplicasCanDivideTheOptimizerState) {
  PlanRequest request = base_request();
  request.update = UpdateRule::Adam;
  LayoutSearch search{.devices = 2, .total_batch = 2};
  const auto bytes = [&] {
    for (const FoundLayout& layout : search_layouts(cifar_resnet("8"), request, search))
      if (layout.request.replicas == 2) return largest_device(layout.plan);
    return std::int64_t{0};
  };
  const std::int64_t whole = bytes();
  search.shards_optimizer = true;
  EXPECT_LT(bytes(), whole);
}

// ---- auto

TEST(ChosenScheduleTest, MoreDevicesThanCutsAreRefused) {
  PlanRequest request = base_request();
  request.schedule = {
      .name = "1F1B", .devices = 1000, .chunks = 1, .micro_batches = 8, .device_of = {}};
  const Graph graph = cifar_resnet("8");
  const auto costs = estimated_costs(graph, request.program, request.device);
  expect_error(ErrorKind::Config, {"1000 stages need 999 cuts, but the network has only"},
               [&] { (void)choose_schedule(graph, costs, request, 0); });
}

class ChooseScheduleTest : public testing::TestWithParam<std::int64_t> {};

TEST_P(ChooseScheduleTest, AutoIsNeverWorseThanTheBestNamedSchedule) {
  const Graph graph = imagenet_resnet("18");
  PlanRequest request = base_request();
  request.program.batch = 2;
  request.schedule = {
      .name = "1F1B", .devices = 3, .chunks = 1, .micro_batches = 8, .device_of = {}};
  const auto costs = estimated_costs(graph, request.program, request.device);
  const ScheduleChoice choice = choose_schedule(graph, costs, request, GetParam());
  if (GetParam() > 0) {
    EXPECT_LE(largest_device(choice.plan), GetParam());
  }
  int compared = 0;
  for (const pipeline::ScheduleRule& rule : pipeline::schedule_rules()) {
    const bool free = rule.placement == pipeline::StagePlacement::Free;
    const bool loop = rule.placement == pipeline::StagePlacement::Loop;
    request.schedule.name = rule.name;
    for (const std::int32_t chunks : {free ? 1 : 2, loop ? 4 : free ? 1 : 2}) {
      request.schedule.chunks = chunks;
      try {
        const Plan named = automatic_plan(graph, costs, request, GetParam());
        EXPECT_LE(choice.plan.seconds, 1.0011 * named.seconds) << rule.name << ' ' << chunks;
        ++compared;
      } catch (const Error&) {  // does not fit
      }
    }
  }
  EXPECT_GE(compared, GetParam() > 0 ? 2 : 12);
}

INSTANTIATE_TEST_SUITE_P(Memory, ChooseScheduleTest, testing::Values(0, 120'000'000, 200'000'000));

TEST(AutomaticScheduleTest, SplitsTheBackwardWhereThatIsFaster) {
  const Graph graph = imagenet_resnet("18");
  PlanRequest request = base_request();
  request.schedule = {
      .name = "ZB-H1", .devices = 4, .chunks = 1, .micro_batches = 6, .device_of = {}};
  const auto costs = estimated_costs(graph, request.program, request.device);
  const Plan named = best_plans(graph, costs, request, {}).front();
  const std::vector<OpRange> stages = stages_of(graph, named.splits);
  const pipeline::Schedule automatic = automatic_schedule(
      graph, stages, step_costs(graph, stages, named.costs, request), request.schedule);
  EXPECT_LE(make_plan(graph, costs, stages, request, automatic).seconds, 1.0011 * named.seconds);
  EXPECT_TRUE(splits_backward(automatic));
}

}  // namespace
}  // namespace millrace::partition
