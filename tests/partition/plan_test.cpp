// SPDX-License-Identifier: Apache-2.0
#include "partition/plan.hpp"

#include <fmt/format.h>

#include "partition/balance.hpp"
#include "partition/cuts.hpp"
#include "pipeline/schedule/render.hpp"
#include "tests/partition/nets.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/xml.hpp"

namespace millrace::partition {
namespace {

using Names = std::vector<std::string>;

PlanRequest request(std::string_view kind, std::int32_t devices, std::int32_t micro_batches) {
  PlanRequest r;
  r.program.batch = 4;
  r.program.type = DType::BF16;
  r.schedule.name = kind;
  r.schedule.devices = devices;
  r.schedule.micro_batches = micro_batches;
  r.cost_model = "test";
  return r;
}

std::vector<OpCost> costs_of(const Graph& graph) {
  return analytic_costs(graph, 4, DType::BF16, cpu_model(DType::BF16));
}

/// A plan of two stages with numbers that are easy to read.
Plan small_plan() {
  Plan plan;
  plan.model = "resnet-8";
  plan.batch = 2;
  plan.type = DType::F32;
  plan.micro_batches = 4;
  plan.schedule = "1F1B";
  plan.splits = {"b2/0/relu"};
  plan.device_of = {0, 1};
  plan.costs = {
      {.forward = 0.001, .backward_input = 0.0015, .backward_weight = 0.0005, .stash_bytes = 1000},
      {.forward = 0.0005, .backward_input = 0.0003, .backward_weight = 0.0002, .stash_bytes = 500}};
  plan.memory = {2'500'000, 900'000};
  plan.seconds = 0.0145;
  plan.bound = 0.012;
  plan.bubble = 1.0 / 3.0;
  plan.cost_model = "by hand";
  plan.processes = {{.rank = 0,
                     .devices = {{.replica = 0,
                                  .device = 0,
                                  .state = 1,
                                  .activations = 2,
                                  .kernels = 3,
                                  .sums = 4,
                                  .images = 5},
                                 {.replica = 0, .device = 1, .state = 6}},
                     .base = 7,
                     .margin = 8,
                     .messages = 9,
                     .loader = 10,
                     .checkpoints = 11,
                     .other = 12}};
  return plan;
}

void expect_equal(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.batch, b.batch);
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.micro_batches, b.micro_batches);
  EXPECT_EQ(a.schedule, b.schedule);
  EXPECT_EQ(a.splits, b.splits);
  EXPECT_EQ(a.device_of, b.device_of);
  EXPECT_EQ(a.memory, b.memory);
  EXPECT_EQ(a.seconds, b.seconds);
  EXPECT_EQ(a.bound, b.bound);
  EXPECT_EQ(a.bubble, b.bubble);
  EXPECT_EQ(a.cost_model, b.cost_model);
  EXPECT_EQ(a.processes, b.processes);
  ASSERT_EQ(a.costs.size(), b.costs.size());
  for (std::size_t s = 0; s < a.costs.size(); ++s) {
    EXPECT_EQ(a.costs[s].forward, b.costs[s].forward);
    EXPECT_EQ(a.costs[s].backward_input, b.costs[s].backward_input);
    EXPECT_EQ(a.costs[s].backward_weight, b.costs[s].backward_weight);
    EXPECT_EQ(a.costs[s].update, b.costs[s].update);
    EXPECT_EQ(a.costs[s].stash_bytes, b.costs[s].stash_bytes);
  }
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

// ---- search

TEST(PlanTest, PlansAreSortedByTimeAndRespectTheirBounds) {
  const Graph graph = imagenet_resnet("50");
  const std::vector<OpCost> costs = costs_of(graph);
  for (const auto kind : {"1F1B", "GPipe", "ZB-H1"}) {
    const std::vector<Plan> plans = best_plans(graph, costs, request(kind, 4, 12), {});
    ASSERT_GE(plans.size(), 32u);
    for (std::size_t k = 0; k < plans.size(); ++k) {
      EXPECT_GE(plans[k].seconds, plans[k].bound * (1 - 1e-12));
    }
    EXPECT_TRUE(std::is_sorted(plans.begin(), plans.end(),
                               [](const Plan& a, const Plan& b) { return a.seconds < b.seconds; }));
    EXPECT_LT(plans.front().seconds, 1.25 * plans.front().bound);
    EXPECT_EQ(plans.front().schedule, kind);
    EXPECT_EQ(plans.front().splits.size(), 3u);
    EXPECT_NO_THROW((void)stages_of(graph, plans.front().splits));
  }
}

// Simulates all choices of four stages between layers: none may be more than 1 % faster.
TEST(PlanTest, TheBestOfAllPlansIsAmongThoseTried) {
  const Graph graph = cifar_resnet("20");
  const std::vector<OpCost> costs = costs_of(graph);
  const PlanRequest r = request("1F1B", 4, 8);
  Search all;
  all.candidates = 5000;
  const std::vector<Plan> every = best_plans(graph, costs, r, all);
  EXPECT_EQ(every.size(), 1330u) << "3 of 21 boundaries";
  const std::vector<Plan> tried = best_plans(graph, costs, r, {});
  EXPECT_LE(tried.front().seconds, 1.01 * every.front().seconds);
}

// With cuts between the ops of a deep network, the plans with the 32 best bounds hardly differ, and
// 1F1B does not reach those bounds.
TEST(PlanTest, EvenStagesAreTriedAsWell) {
  const Graph graph = imagenet_resnet("50");
  const std::vector<OpCost> costs = costs_of(graph);
  const PlanRequest r = request("1F1B", 4, 16);
  BalanceRequest by_bound;
  by_bound.costs = costs;
  by_bound.cuts = op_cuts(graph);
  by_bound.stages = 4;
  by_bound.micro_batches = 16;
  Search fine;
  fine.cuts = by_bound.cuts;
  const Plan best = best_plans(graph, costs, r, fine).front();
  for (const Balance& choice : balance(by_bound))
    EXPECT_LT(best.seconds, 0.99 * make_plan(graph, costs, choice.stages, r).seconds);
  EXPECT_LE(best.seconds, best_plans(graph, costs, r, {}).front().seconds);
}

TEST(PlanTest, APlanHasTheTimeAndMemoryOfItsStages) {
  const Graph graph = cifar_resnet("20");
  const std::vector<OpCost> costs = costs_of(graph);
  PlanRequest r = request("1F1B", 2, 4);
  r.update = UpdateRule::Momentum;
  const std::vector<OpRange> stages = stages_of(graph, Names{"b2/0/relu"});
  const Plan plan = make_plan(graph, costs, stages, r);
  EXPECT_EQ(plan.splits, Names{"b2/0/relu"});
  EXPECT_EQ(plan.device_of, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(plan.costs[1].forward, stage_cost(costs, stages[1], Recompute::None).forward);
  pipeline::ProgramOptions options;
  options.batch = 4;
  options.type = DType::BF16;
  pipeline::Slots slots;
  slots.weight = 0;
  slots.stash = 2;  // of 1F1B on the first of two stages
  EXPECT_EQ(plan.memory[0], stage_bytes(graph, stages[0], options, slots, UpdateRule::Momentum));
  // Messages cost time.
  r.link = {.latency = 0.01, .bytes_per_second = 1e9};
  EXPECT_GT(make_plan(graph, costs, stages, r).seconds, plan.seconds + 0.02);
}

TEST(PlanTest, SecondsOfStagesCanBeMeasuredOnes) {
  const Graph graph = cifar_resnet("20");
  PlanRequest two = request("GPipe", 2, 4);
  two.link = {.latency = 0.0};
  const pipeline::Schedule compute = pipeline::generate(two.schedule);
  Plan plan = best_plans(graph, costs_of(graph), two, {}).front();
  const std::vector<pipeline::StageCost> before = plan.costs;
  const pipeline::StageCost each = {
      .forward = 1.0, .backward_input = 1.5, .backward_weight = 0.5, .update = 0.25};
  set_seconds(plan, graph, two, compute, std::vector{each, each});
  // (m + s - 1) (f + b), and the update.
  EXPECT_DOUBLE_EQ(plan.seconds, 5 * 3.0 + 0.25);
  EXPECT_DOUBLE_EQ(plan.bubble, 1.0 - 12.25 / 15.25);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(plan.costs[s].update, 0.25) << "not estimated if it was measured";
    EXPECT_EQ(plan.costs[s].stash_bytes, before[s].stash_bytes);
  }
}

TEST(PlanTest, MemoryLimitsThePlans) {
  const Graph graph = cifar_resnet("20");
  const std::vector<OpCost> costs = costs_of(graph);
  const PlanRequest r = request("1F1B", 4, 8);
  const auto most = [](const Plan& plan) {
    return *std::max_element(plan.memory.begin(), plan.memory.end());
  };
  const Plan free = best_plans(graph, costs, r, {}).front();
  Search search;
  search.memory_limit = most(free) - 1;
  const Plan limited = best_plans(graph, costs, r, search).front();
  EXPECT_LE(most(limited), search.memory_limit);
  EXPECT_GE(limited.seconds, free.seconds);

  // The message names a limit that works.
  search.memory_limit = 1000;
  const std::string message =
      message_of(ErrorKind::Config, [&] { (void)best_plans(graph, costs, r, search); });
  ASSERT_TRUE(message.starts_with("no choice of cuts fits 4 stages into 1.00 kB (1000 bytes) each"))
      << message;
  const std::int64_t least = std::stoll(message.substr(message.rfind('(') + 1));
  search.memory_limit = least;
  EXPECT_EQ(most(best_plans(graph, costs, r, search).front()), least);
  --search.memory_limit;
  EXPECT_THROW((void)best_plans(graph, costs, r, search), Error);
}

TEST(PlanTest, StagesThatShareADeviceFitTogether) {
  const Graph graph = cifar_resnet("20");
  const std::vector<OpCost> costs = costs_of(graph);
  PlanRequest r = request("Looped", 2, 4);
  r.schedule.chunks = 2;
  const Plan plan = best_plans(graph, costs, r, {}).front();
  EXPECT_EQ(plan.device_of, (std::vector<std::int32_t>{0, 1, 0, 1}));
  const std::int64_t device =
      std::max(plan.memory[0] + plan.memory[2], plan.memory[1] + plan.memory[3]);
  Search search;
  search.memory_limit = device;
  const std::vector<Plan> within = best_plans(graph, costs, r, search);
  EXPECT_EQ(within.front().splits, plan.splits);
  for (const Plan& p : within) {
    EXPECT_LE(p.memory[0] + p.memory[2], device);
    EXPECT_LE(p.memory[1] + p.memory[3], device);
  }
  // Every stage fits alone; no two fit together.
  search.memory_limit = *std::max_element(plan.memory.begin(), plan.memory.end());
  expect_error(ErrorKind::Config, {"none of the plans tried fits into devices of"},
               [&] { (void)best_plans(graph, costs, r, search); });
}

// ---- text

TEST(PlanTest, PrintsOneLinePerStage) {
  const std::string expected =
      "resnet-8: 2 stages on 2 devices, schedule 1F1B, 4 micro-batches of 2 in float32\n"
      "stage  device  layers             forward ms  backward ms    time  parameters  bytes out"
      "   memory\n"
      "0      0       b0 .. b2/0               1.00         2.00  75.0 %      19,088    65.5 kB"
      "  2.50 MB\n"
      "1      1       b2/0/relu .. loss        0.50         0.50  25.0 %      56,202"
      "              900 kB\n"
      "step 14.50 ms (lower bound 12.00 ms); the devices wait 33.3 % of the time; costs: by hand\n";
  EXPECT_EQ(to_text(small_plan(), cifar_resnet("8")), expected);
}

TEST(PlanTest, TheTableOfCutsHasOneLinePerSplit) {
  const Graph graph = cifar_resnet("8");
  std::vector<OpCost> costs = analytic_costs(graph, 2, DType::F32, {"calls", 1e300, 1e300, 1.0});
  for (OpCost& cost : costs) cost.stash_bytes = 1000;
  const std::string expected =
      "For a micro-batch of 2 in float32:\n"
      "split      bytes crossing  time before  parameters before  stash before\n"
      "b1/0/relu          131 kB       34.8 %              5,136       9.00 kB\n";
  const std::string text = cut_table(graph, costs, 2, DType::F32);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_EQ(text.substr(0, expected.size()), expected);
}

// ---- JSON

TEST(PlanTest, JsonRoundTrips) {
  const Graph graph = imagenet_resnet("50");
  const std::vector<OpCost> costs = costs_of(graph);
  const PlanRequest r = request("1F1B", 4, 12);
  for (const Plan& plan : best_plans(graph, costs, r, {}))
    expect_equal(parse_plan(to_json(plan), "plan.json"), plan);
  expect_equal(parse_plan(to_json(small_plan()), "plan.json"), small_plan());
  std::string noted = to_json(small_plan());
  noted.insert(1, "\"notes\": [\"an upper bound\"],");
  expect_equal(parse_plan(noted, "plan.json"), small_plan());
  // Plans of earlier versions have another name for the margin, or do not list processes.
  expect_equal(
      parse_plan(replaced(to_json(small_plan()), "\"margin\"", "\"library\""), "plan.json"),
      small_plan());
  Plan earlier = small_plan();
  earlier.processes.clear();
  const std::string text = replaced(to_json(earlier), ",\n  \"processes\": []", "");
  expect_equal(parse_plan(text, "plan.json"), earlier);
}

TEST(PlanTest, RefusesJsonThatIsNotAPlan) {
  const std::string good = to_json(small_plan());
  const auto refuses = [&](const std::string& what, const std::string& by,
                           const std::string& message) {
    expect_error(ErrorKind::Config, "plan.json: " + message,
                 [&] { (void)parse_plan(replaced(good, what, by), "plan.json"); });
  };
  refuses("\"model\": \"resnet-8\",", "", "model is missing");
  refuses("\"resnet-8\"", "8", "model is not a string");
  refuses("\"batch_size\": 2", "\"batch_size\": 0",
          "batch_size is 0, expected a whole number from 1");
  refuses("\"batch_size\": 2", "\"batch_size\": 2.5",
          "batch_size is 2.5, expected a whole number from 1");
  refuses("\"micro_batches\": 4", "\"micro_batches\": 4000000000",
          "micro_batches is 4000000000, expected a whole number from 1 to 2147483647");
  refuses("\"float32\"", "\"uint8\"", "type is uint8, expected float32, bfloat16 or float16");
  refuses("\"b2/0/relu\"", "7", "splits has an entry that is not a string");
  refuses("\"b2/0/relu\"", "", "stages has 2 entries, but there are 0 splits; expected one more");
  refuses("\"seconds\": 0.0145", "\"seconds\": \"soon\"",
          "seconds is \"soon\", expected a number from 0");
  refuses("\"device\": 1", "\"device\": -1",
          "stages[1]: device is -1, expected a whole number from 0 to 2147483647");
  refuses("\"forward\": 0.001", "\"forwards\": 0.001", "stages[0]: forward is missing");
  refuses("\"schedule\"", "\"pipelines\": 2, \"schedule\"", "pipelines is not a key of a plan");
  refuses("\"schedule\"", "\"split\": 2, \"schedule\"",
          "split is not a key of a plan; did you mean splits?");
  refuses("millrace plan", "other plan", "format is other plan, expected millrace plan");
  refuses("\"version\": 1", "\"version\": 2", "version is 2, expected a whole number from 1 to 1");
  expect_error(ErrorKind::Config, "plan.json: invalid or incomplete JSON at byte 11",
               [] { (void)parse_plan("{\"model\": ", "plan.json"); });
  expect_error(ErrorKind::Config, "plan.json: is not an object",
               [] { (void)parse_plan("[]", "plan.json"); });
}

// ---- drawing

TEST(PlanLimitTest, RefusesNumbersAndSizesOutOfRange) {
  const auto refuses = [](const std::string& text, const std::string& message) {
    expect_error(ErrorKind::Config, message, [&] { (void)parse_plan(text, "plan.json"); });
  };
  refuses("{\"seconds\": 1e400}", "plan.json: invalid or incomplete JSON at byte 17");
  refuses(std::string(200, '['), "plan.json: is not a plan: values are nested more than 100 deep");
  std::string many = "[";
  for (int i = 0; i < 1'000'000; ++i) many += "1,";
  refuses(many, "plan.json: is not a plan: a list or object has more than 131072 items");
}

TEST(PlanTest, DrawsOneBarPerStage) {
  Plan plan = small_plan();
  plan.model = "a<b> & \"c\"";
  const std::string svg = to_svg(plan);
  EXPECT_EQ(test::problem_of_xml(svg), "");
  test::expect_in(svg, {"a&lt;b&gt; &amp; &quot;c&quot;, 1F1B: step 14.50 ms", ">0 from images<",
                        ">1 from b2/0/relu<", ">3.00 ms<"});
  // The longest stage fills the width: a third of it forward, half of it input gradients.
  test::expect_in(svg, {"width=\"160.00\" height=\"20.00\"", "width=\"320.00\" height=\"20.00\""});
}

TEST(PlanTest, KnowsWhenABackwardPassCompletesGradients) {
  const Graph graph = imagenet_resnet("50");
  const OpRange all = stages_of(graph, {}).front();
  const auto sums = [&](std::int64_t most_bytes) {
    PlanRequest request;
    request.reduce = {.most_bytes = most_bytes, .type = DType::BF16};
    return step_costs(graph, {&all, 1}, {pipeline::StageCost{}}, request).gradient_sums.at(0);
  };
  const std::vector<pipeline::GradientSum> eighths = sums(0);
  double bytes = 0.0;
  for (const pipeline::GradientSum& sum : eighths) bytes += sum.bytes;
  EXPECT_EQ(bytes, 2 * 25'557'032.0);
  EXPECT_GE(eighths.size(), 8u);
  EXPECT_TRUE(std::ranges::is_sorted(eighths, std::greater{}, &pipeline::GradientSum::left));
  // The last layer, and the last convolution between norms: 2 + 51 of 4,089 million products.
  EXPECT_EQ(eighths.front().bytes, 2 * (2'049'000 + 2048 * 514.0 + 2 * 512));
  EXPECT_NEAR(eighths.front().left, 1.0 - 53.4 / 4089.0, 1e-3);
  EXPECT_EQ(eighths.back().left, 0.0);
  EXPECT_EQ(sums(1'000'000'000).size(), 1u);
}

TEST(PlanTest, DrawsTheScheduleInTheSameColors) {
  const Plan plan = small_plan();
  for (const bool split : {false, true}) {
    pipeline::ScheduleRequest wanted;
    wanted.name = split ? "ZB-H1" : "1F1B";
    wanted.devices = 2;
    wanted.micro_batches = 12;
    pipeline::Costs costs;
    costs.stages = plan.costs;
    const pipeline::TimeLine step = simulate(generate(wanted), pipeline::chain(2), costs);
    const std::string svg = to_svg(plan, step);
    EXPECT_EQ(test::problem_of_xml(svg), "");
    EXPECT_NE(svg.find(">F11</text>"), std::string::npos) << "the last micro-batch";
    test::expect_not_in(to_svg(plan), {"class=\"device\""});
    for (const auto kind : {pipeline::ActionKind::Forward, pipeline::ActionKind::Backward,
                            pipeline::ActionKind::BackwardInput}) {
      const std::string fill = fmt::format("fill=\"{}\"", pipeline::look_of(kind).colour);
      const bool bars = draw_stages(plan, step).body.find(fill) != std::string::npos;
      const bool boxes = svg.find(fill, svg.find("class=\"device\"")) != std::string::npos;
      EXPECT_EQ(bars, boxes) << fill;
    }
  }
}

}  // namespace
}  // namespace millrace::partition
