// SPDX-License-Identifier: Apache-2.0
//
// The layout never changes the result. Every case trains the same network on the same images for
// five steps in some layout within this process. It must give the same bits as one stage: losses,
// weights, running statistics, velocities.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "device/arena.hpp"
#include "io/checkpoint.hpp"
#include "partition/layout.hpp"
#include "partition/spread.hpp"
#include "pipeline/memory_plan.hpp"
#include "tests/support/covering.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/train/outcome.hpp"

namespace millrace::training {
namespace {

using namespace small;
using pipeline::StagePlacement;

const Outcome& reference(const Layout& like, std::int64_t steps = kSteps) {
  const Layout one = {.type = like.type,
                      .norm = like.norm,
                      .rule = like.rule,
                      .narrow = like.narrow,
                      .family = like.family,
                      .trained = like.trained,
                      .batch = like.batch};
  using Key = std::tuple<DType, models::NormKind, UpdateRule, bool, Family,
                         std::vector<std::string>, std::int64_t, std::int64_t>;
  static std::map<Key, Outcome> known;
  const Key key{one.type,   one.norm,    one.rule,  one.narrow,
                one.family, one.trained, one.batch, steps};
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, train(one, steps)).first->second;
}

void expect_same(const Layout& layout, std::int64_t steps = kSteps) {
  expect_same(train(layout, steps), reference(layout, steps), name_of(layout));
}

/// Stages, their order, and whether they recompute.
struct Cut {
  std::int32_t stages;
  std::string_view schedule;
  std::int32_t chunks = 1;
  bool recompute = false;
};
Layout in_stages(Layout layout, const Cut& cut) {
  layout.stages = cut.stages;
  layout.schedule = cut.schedule;
  layout.chunks = cut.chunks;
  layout.recompute = cut.recompute;
  return layout;
}
Layout sharded(Layout layout) {
  layout.sharded = true;
  return layout;
}

bool possible(const Layout& layout) {
  const StagePlacement placement = pipeline::schedule_rule(layout.schedule).placement;
  if (placement == StagePlacement::V && layout.chunks != 2) return false;
  if (placement == StagePlacement::Free && layout.chunks != 1) return false;
  return layout.stages % layout.chunks == 0;
}

std::vector<Layout> all_layouts() {
  std::vector<Layout> layouts;
  for (const std::int32_t stages : {1, 2, 3, 4, 8})
    for (const pipeline::ScheduleRule& rule : pipeline::schedule_rules())
      for (const std::int32_t chunks : {1, 2})
        for (const bool recompute : {false, true})
          for (const DType type : {DType::F32, DType::BF16, DType::F16})
            for (const auto norm : {models::NormKind::Batch, models::NormKind::Group}) {
              const Layout layout{stages, rule.name, chunks, recompute, type, norm, 1};
              if (possible(layout)) layouts.push_back(layout);
            }
  return layouts;
}

test::Choices choices(const Layout& l) {
  return {
      l.stages,
      static_cast<int>(&pipeline::schedule_rule(l.schedule) - pipeline::schedule_rules().data()),
      l.chunks,
      l.recompute ? 1 : 0,
      static_cast<int>(l.type),
      static_cast<int>(l.norm)};
}

TEST(LawTest, EveryPairOfChoicesGivesTheBitsOfOneStage) {
  const std::vector<Layout> all = all_layouts();
  std::vector<test::Choices> factors;
  factors.reserve(all.size());
  for (const Layout& layout : all) factors.push_back(choices(layout));
  const std::vector<std::size_t> chosen = test::covering_array(factors);
  fmt::print("{} of {} layouts\n", chosen.size(), all.size());
  EXPECT_LE(chosen.size(), 100u);
  for (const std::size_t i : chosen) expect_same(all[i]);
}

// The lists of PyTorch's schedule classes, as schedule_test.cpp reads them.
TEST(LawTest, SchedulesOfPyTorchGiveTheBitsOfOneStage) {
  const fs::path folder = fs::path(MILLRACE_SOURCE_DIR) / "tests/golden/pytorch/schedules";
  int lists = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    const bool one_stage = file.starts_with("GPipe") || file.starts_with("1F1B");
    for (const std::int32_t devices : {2, 4}) {
      if (!file.ends_with(fmt::format("-{}-{}.csv", devices, kMicroBatches))) continue;
      std::ifstream stream(entry.path());
      const Layout layout{.stages = one_stage ? devices : 2 * devices,
                          .schedule = one_stage ? "1F1B" : "Looped",
                          .chunks = one_stage ? 1 : 2,
                          .type = DType::BF16,
                          .actions = {std::istreambuf_iterator<char>(stream), {}}};
      SCOPED_TRACE(file);
      expect_same(layout);
      ++lists;
    }
  }
  EXPECT_EQ(lists, 14);
}

class FamilyLawTest : public testing::TestWithParam<Family> {};

// Grouped and depthwise convolutions, squeeze-and-excite, concatenations, dropout, drop-connect.
TEST_P(FamilyLawTest, LayoutsGiveTheBitsOfOneStage) {
  for (const DType type : {DType::F32, DType::BF16})
    for (const Cut& cut :
         {Cut{3, "1F1B", 1, true}, Cut{8, "Looped", 2}, Cut{4, "ZB-V", 2, true}, Cut{5, "Grouped"}})
      expect_same(in_stages({.type = type, .family = GetParam()}, cut));
}

// Masks depend on positions in the global batch. Replicas therefore draw the same masks as one
// pipeline, and the first loss, before weights differ by rounding, is the same.
TEST_P(FamilyLawTest, ReplicasDrawTheSameMasks) {
  const Layout one{.family = GetParam()};
  const Layout layout{.stages = 2, .schedule = "1F1B", .replicas = 2, .family = GetParam()};
  const Layout other{
      .stages = 4, .schedule = "ZB-H1", .recompute = true, .replicas = 2, .family = GetParam()};
  EXPECT_EQ(train(layout).digest, train(other).digest);
  EXPECT_EQ(train(layout, 1).losses, train(one, 1).losses);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyLawTest,
                         testing::Values(Family::ResNeXt, Family::SqueezeNet, Family::EfficientNet),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Stochastic rounding of 16-bit masters is keyed by name, step and element, so that cuts, orders
// and recomputation do not change it.
TEST(LawTest, EveryUpdateRuleGivesTheBitsOfOneStage) {
  for (const OptimiserRow& row : kOptimisers) {
    expect_same({.stages = 4, .schedule = "1F1B", .rule = row.rule});
    expect_same({.stages = 4,
                 .schedule = "ZB-H1",
                 .recompute = true,
                 .type = DType::BF16,
                 .rule = row.rule,
                 .narrow = true});
  }
}

// Replicas sum in a different order, so they are compared with the same replicas without sharding.
TEST(LawTest, SharingOutTheUpdateChangesNoBit) {
  for (const bool narrow : {false, true}) {
    for (const OptimiserRow& row : kOptimisers) {
      const Layout layout{.stages = 2,
                          .schedule = "1F1B",
                          .type = DType::BF16,
                          .replicas = 4,
                          .rule = row.rule,
                          .narrow = narrow};
      const Outcome whole = train(layout, 2);
      const Outcome shared = train(sharded(layout), 2);
      EXPECT_EQ(shared.digest, whole.digest) << name_of(layout);
      EXPECT_EQ(shared.losses, whole.losses) << name_of(layout);
      if (row.slots.empty()) continue;
      EXPECT_LT(shared.arena_bytes, whole.arena_bytes);
    }
  }
}

/// Filters that leave different parts of the network without anything to train: all but the last
/// layer, both ends of a block's shortcut, only norms, half of an op's parameters, and the
/// parameters of one stage of four.
const std::vector<std::vector<std::string>>& filters() {
  static const std::vector<std::vector<std::string>> all = {
      {"fc1"}, {"b0/", "b2/1/conv1"}, {"gamma"}, {"fc1/bias", "b3/0/norm2/beta"}, {"b2/0/conv2"}};
  return all;
}

TEST(LawTest, FrozenParametersGiveTheBitsOfOneStage) {
  for (const std::vector<std::string>& trained : filters()) {
    for (const auto& [stages, schedule, chunks] : {std::tuple{4, "Grouped", 1},
                                                   {4, "1F1B", 1},
                                                   {3, "ZB-H1", 1},
                                                   {8, "Looped", 2},
                                                   {8, "ZB-V", 2}})
      expect_same({.stages = stages, .schedule = schedule, .chunks = chunks, .trained = trained});
    expect_same({.stages = 4,
                 .schedule = "1F1B",
                 .recompute = true,
                 .type = DType::BF16,
                 .norm = models::NormKind::Group,
                 .trained = trained});
  }
  // Only one operand of a concatenation or of a product, or only a later part, is trained.
  expect_same({.stages = 4,
               .schedule = "1F1B",
               .family = Family::SqueezeNet,
               .trained = {"fire4/expand3x3", "fc10"}});
  for (const char* part : {"SE/reduce", "SE/expand", "c/norm"})
    expect_same(
        {.stages = 5, .schedule = "1F1B", .family = Family::EfficientNet, .trained = {part}});
}

// Trained parameters get the same gradients as without a filter, frozen ones stay the same, and
// running statistics change as usual.
TEST(LawTest, OnlyWhatTheFilterNamesMoves) {
  const auto after_a_step = [&](const std::vector<std::string>& trained, std::int64_t steps) {
    run::Run config = planned({.stages = 2, .trained = trained});
    config.optimiser.weight_decay = 0.1;
    const comm::World world;
    Training training(config, world);
    training.steps(steps);
    return training.values();
  };
  const auto before = after_a_step({}, 0);
  const auto whole = after_a_step({}, 1);
  for (const std::vector<std::string>& trained : filters()) {
    const auto tensors = after_a_step(trained, 1);
    const auto is_named = [&](const std::string& name) {
      return std::any_of(trained.begin(), trained.end(), [&](const std::string& part) {
        return name.find(part) != std::string::npos;
      });
    };
    for (const auto& entry : before) {
      const std::string& name = entry.first;
      const bool state = name.find("moving_") != std::string::npos;
      const bool moves = state || is_named(name);
      if (name.ends_with("/momentum") && !moves) {
        EXPECT_FALSE(tensors.contains(name)) << name;
        continue;
      }
      ASSERT_TRUE(tensors.contains(name)) << name;
      EXPECT_EQ(tensors.at(name), moves ? whole.at(name) : entry.second) << name;
    }
  }
}

std::size_t calls_of(const Session& session, pipeline::KernelKind kind) {
  std::size_t sum = 0;
  for (const pipeline::LocalStage& unit : session.units())
    for (const auto& phase : unit.state->training().program().calls)
      sum += static_cast<std::size_t>(
          std::count_if(phase.begin(), phase.end(),
                        [&](const pipeline::Call& call) { return call.kind == kind; }));
  return sum;
}

// The backward pass ends at the first trained parameter, and no gradients are sent beyond it.
TEST(LawTest, NothingIsComputedOrSentForFrozenStages) {
  using pipeline::ActionKind;
  using pipeline::KernelKind;
  const Layout layout{.stages = 4, .schedule = "1F1B", .trained = {"fc1"}};
  const run::Run config = planned(layout, run::ValidationMode::All);
  const comm::World world;
  const Session session(config, Session::Use::Training, world);
  EXPECT_EQ(calls_of(session, KernelKind::LinearBackwardWeight), 1u);
  EXPECT_EQ(calls_of(session, KernelKind::LinearBackwardInput), 0u);
  EXPECT_EQ(calls_of(session, KernelKind::NormBackwardReduce), 0u);
  EXPECT_EQ(calls_of(session, KernelKind::GlobalPoolBackward), 0u);
  for (const auto& list : config.pipeline.schedule.lists)
    for (const pipeline::Action& action : list)
      EXPECT_TRUE(action.kind != ActionKind::SendGradient &&
                  action.kind != ActionKind::ReceiveGradient);
  Layout whole = layout;
  whole.trained = {};
  EXPECT_LT(session.arena_bytes(), train(whole, 1).arena_bytes / 2);
}

// Gradients are clipped by the norm of all of them together: of every stage, and once per replica.
TEST(LawTest, ClippingGivesTheBitsOfOneStage) {
  const Layout one{.rule = UpdateRule::AdamW, .clip_norm = 0.5};
  const Outcome expected = train(one);
  EXPECT_NE(expected.digest, train({.rule = UpdateRule::AdamW}).digest) << "0.5 is too large";
  EXPECT_EQ(train(in_stages(one, {4, "V-Half", 2})).digest, expected.digest);
  Layout replicas = one;
  replicas.replicas = 4;
  EXPECT_EQ(train(in_stages(sharded(replicas), {3, "1F1B"})).digest, train(replicas).digest);
}

class AveragesLawTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Masters, AveragesLawTest, testing::Values(false, true),
                         [](const auto& with) { return with.param ? "Narrow" : "Float32"; });

TEST_P(AveragesLawTest, MovingAveragesGiveTheBitsOfOneStage) {
  Layout layout{.type = DType::BF16, .narrow = GetParam(), .ema_decay = 0.9};
  const std::string expected = train(layout).digest;
  for (const Cut& cut : {Cut{4, "1F1B", 1, true}, Cut{8, "Looped", 2}, Cut{3, "ZB-H1"}})
    EXPECT_EQ(train(in_stages(layout, cut)).digest, expected) << cut.schedule;
  layout.replicas = 4;
  EXPECT_EQ(train(in_stages(sharded(layout), {3, "1F1B"})).digest, train(layout).digest);
}

// After update n: average -= (average - value) x (1 - d), d = min(D, (1 + n) / (10 + n)), and at
// first the initial values.
// 16-bit weights are averaged in float32, and the averages rounded only where they are weights.
TEST_P(AveragesLawTest, MovingAveragesFollowTheFormula) {
  constexpr double kDecay = 0.25;
  const comm::World world;
  Layout layout = {.stages = 2, .trained = {"b2", "fc1"}, .ema_decay = kDecay};
  if (GetParam()) layout.type = DType::BF16;
  layout.narrow = GetParam();
  run::Run config = planned(layout, run::ValidationMode::All);
  Training training(config, world);
  const auto average_name = [](const std::string& name) { return name + "/ema"; };
  std::map<std::string, std::vector<float>> expected;
  for (const models::Parameter& p : training.session().graph().parameters)
    if (p.learns() || !p.trainable()) expected[p.name] = training.values().at(p.name);
  EXPECT_FALSE(training.values().contains(average_name("b0/conv/kernel"))) << "frozen";
  for (int n = 1; n <= 4; ++n) {
    (void)training.step();
    const auto now = training.values();
    const float part = 1.0f - static_cast<float>(std::min(kDecay, (1.0 + n) / (10.0 + n)));
    for (auto& [name, average] : expected) {
      for (std::size_t i = 0; i < average.size(); ++i)
        average[i] -= (average[i] - now.at(name)[i]) * part;
      ASSERT_EQ(now.at(average_name(name)), average) << name << " after update " << n;
    }
  }
  // In place of the weights and back.
  const auto before = training.values();
  const auto set = std::make_shared<NoiseDataset>(config.model.image, -1, kValidationImages);
  const double own = training.validate(set).loss;
  training.session().exchange_averages();
  const auto in_place = training.values();
  for (auto [name, average] : expected) {
    if (GetParam() && name.find("/moving_") == std::string::npos)
      for (float& x : average) x = to_float(store_as<bfloat16>(x));
    ASSERT_EQ(in_place.at(name), average) << name;
  }
  EXPECT_NE(training.validate(set).loss, own);
  training.session().exchange_averages();
  EXPECT_EQ(training.values(), before);
  EXPECT_EQ(training.validate(set).loss, own);
}

// By hand: clipping to norm c an update that is the gradient itself moves the weights by c.
TEST(LawTest, ClippingBoundsTheNorm) {
  const auto moved = [](double clip_norm) {
    run::Run config = planned({.rule = UpdateRule::Sgd, .clip_norm = clip_norm});
    config.optimiser.weight_decay = 0.0;
    const comm::World world;
    Training training(config, world);
    const auto values = [&] {
      std::map<std::string, std::vector<float>> all = training.values();
      for (const models::Parameter& p : training.session().graph().parameters)
        if (!p.trainable()) all.erase(p.name);
      return all;
    };
    const auto before = values();
    (void)training.step(1.0);
    double square = 0.0;
    for (const auto& [name, now] : values())
      for (std::size_t i = 0; i < now.size(); ++i) {
        const double difference =
            static_cast<double>(now[i]) - static_cast<double>(before.at(name)[i]);
        square += difference * difference;
      }
    return std::sqrt(square);
  };
  const double norm = moved(0.0);
  EXPECT_NEAR(moved(norm / 4.0), norm / 4.0, 1e-5 * norm);
  EXPECT_NEAR(moved(2.0 * norm), norm, 1e-12 * norm) << "smaller ones stay as they are";
}

TEST(LawTest, FullProduct) {
  if (std::getenv("MILLRACE_LONG_TESTS") == nullptr) GTEST_SKIP() << "a long test";
  for (const Layout& layout : all_layouts()) expect_same(layout);
}

TEST(LawTest, RecomputationSavesMemory) {
  const Layout keeps{.stages = 4, .schedule = "Grouped"};
  Layout recomputes = keeps;
  recomputes.recompute = true;
  EXPECT_LT(train(recomputes).arena_bytes, train(keeps).arena_bytes * 2 / 3);
}

// What --recompute auto chooses: any segments, repeated or kept. Batch statistics move once.
TEST(LawTest, ChosenSegmentsChangeNoBits) {
  for (const Layout& layout : {Layout{}, Layout{.stages = 2, .schedule = "ZB-H1"},
                               Layout{.stages = 2, .schedule = "1F1B", .type = DType::BF16}}) {
    const Outcome expected = train(layout);
    for (const int which : {0, 1, 2}) {
      Layout chosen = layout;
      chosen.chooses = [which](const models::Graph& graph, pipeline::OpRange range) {
        const std::vector<models::OpId> cuts = pipeline::segment_cuts(graph, range).back();
        pipeline::ChosenSegments segments{cuts, {}};
        for (std::size_t i = static_cast<std::size_t>(which); i < cuts.size(); i += 3)
          segments.kept.push_back(cuts[i]);
        return segments;
      };
      expect_same(train(chosen), expected, name_of(chosen));
    }
  }
}

/// The layout spread over three ranks, whose work one rank does.
pipeline::PipelinePlan spread_over_three(const Layout& layout) {
  const run::Run config = planned(layout);
  const models::Graph graph = network_of(config);
  partition::PlanRequest request;
  request.program.batch = layout.batch;
  request.replicas = layout.replicas;
  pipeline::PipelinePlan standing = config.pipeline;
  standing.ranks.ranks = 3;
  partition::Spread found =
      spread(graph, costs_of(graph, request), request, standing).value_or(partition::Spread());
  EXPECT_EQ(found.shares.size(), 3u);
  const pipeline::PipelinePlan three = plan_of(graph, found, layout.replicas);
  const auto links = pipeline::links(graph, three.ranges);
  std::vector<pipeline::Action> one;
  for (const pipeline::Entry& entry :
       event_order(found.order, links_of_units(links, three.schedule.stages, layout.replicas)))
    one.push_back(found.order.at(entry));
  found.order.lists = {one};
  found.order.device_of.assign(found.order.device_of.size(), 0);
  found.shares = {found.order.stages};
  return plan_of(graph, found, layout.replicas);
}

TEST(LawTest, AJointOrderGivesTheBitsOfAllOthers) {
  for (const char* const schedule : {"1F1B", "ZB-H1"})
    for (const bool shares : {false, true}) {
      const Layout layout{.stages = 2, .schedule = schedule, .replicas = 2, .sharded = shares};
      const pipeline::PipelinePlan plan = spread_over_three(layout);
      EXPECT_EQ(plan.schedule.stages, 3);
      expect_same(train(layout, kSteps, nullptr, false, plan), train(layout), name_of(layout));
    }
}

// Summing over replicas changes only the rounding.
TEST(LawTest, ReplicasAgreeToRoundingAndWithThemselves) {
  const Outcome one = train({}, 1);
  for (const std::int32_t replicas : {2, 4}) {
    const Layout layout{.stages = 2, .schedule = "1F1B", .replicas = replicas};
    const Layout other{.stages = 4, .schedule = "ZB-H1", .replicas = replicas};
    const std::string digest = train(layout).digest;
    EXPECT_EQ(digest, train(layout).digest) << replicas;
    EXPECT_EQ(digest, train(other).digest) << replicas;
    const Outcome first = train(layout, 1);
    ASSERT_EQ(first.weights.size(), one.weights.size());
    EXPECT_LT(relative_difference(first.weights, one.weights), 1e-6) << replicas;
    EXPECT_EQ(first.losses, one.losses) << "the first loss is of the same weights";
  }
}

// Every bucket of gradients is added up by itself, while the backward pass goes on. In 16 bits the
// bits are others, but as few replicas or stages know of each other.
TEST(LawTest, GradientsAreAddedUpInBucketsOfAnySize) {
  constexpr std::int64_t kAll = 1 << 30;
  for (const DType type : {DType::F32, DType::BF16}) {
    Layout layout{.replicas = 4, .reduced_at_once = kAll, .reduced_as = type};
    const Outcome whole = train(layout, 2);
    for (const std::int64_t bytes : {1, 20'000})
      for (const Cut& cut : {Cut{1, "Sequential"}, Cut{3, "1F1B"}, Cut{2, "ZB-H1"},
                             Cut{.stages = 1, .schedule = "Sequential", .recompute = true}}) {
        layout.reduced_at_once = bytes;
        for (const Layout& each : {in_stages(layout, cut), in_stages(sharded(layout), cut)}) {
          const Outcome outcome = train(each, 2);
          EXPECT_EQ(outcome.digest, whole.digest) << name_of(each) << ", " << bytes << " bytes";
          EXPECT_GT(outcome.sums_within_backward, whole.sums_within_backward) << name_of(each);
        }
      }
  }
  const Outcome expected = train({.replicas = 2}, 1);
  const Outcome actual = train({.replicas = 2, .reduced_as = DType::BF16}, 1);
  EXPECT_NE(actual.digest, expected.digest);
  EXPECT_LT(relative_difference(actual.weights, expected.weights), 1e-2);
}

TEST(SpanLawTest, BucketsLieBetweenExchangesOfStatistics) {
  const Layout layout{.replicas = 4, .span = 2};
  Layout buckets = in_stages(layout, {2, "1F1B"});
  buckets.reduced_at_once = 10'000;
  EXPECT_EQ(train(buckets, 2).digest, train(layout, 2).digest);
}

// Replicas that share their statistics train like fewer replicas with larger micro-batches:
// weights, velocities and running statistics.
TEST(SpanLawTest, ReplicasTrainAsOneOfAllTheirSamples) {
  for (const auto& [replicas, span] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{4, 4}}) {
    const Layout apart{.replicas = replicas, .span = span};
    const Layout joined{.replicas = replicas / span, .batch = 2 * span};
    const Outcome actual = train(apart, 1);
    const Outcome expected = train(joined, 1);
    ASSERT_EQ(actual.weights.size(), expected.weights.size());
    EXPECT_NEAR(actual.losses[0], expected.losses[0], 1e-5 * expected.losses[0]);
    EXPECT_LT(relative_difference(actual.weights, expected.weights), 1e-5) << name_of(apart);
    const Outcome alone = train({.replicas = replicas}, 1);
    EXPECT_GT(relative_difference(alone.weights, expected.weights), 1e-4) << name_of(apart);
    // Rounding errors grow from step to step.
    const std::vector<double> losses = train(apart).losses;
    const std::vector<double> larger = train(joined).losses;
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], larger[i], 1e-2 * larger[i]) << name_of(apart) << ", step " << i;
  }
}

TEST(SpanLawTest, SixteenBitReplicasTrainAsOneOfAllTheirSamples) {
  const Outcome actual = train({.type = DType::BF16, .replicas = 2, .span = 2}, 1);
  const Outcome expected = train({.type = DType::BF16, .batch = 4}, 1);
  const Outcome alone = train({.type = DType::BF16, .replicas = 2}, 1);
  EXPECT_NEAR(actual.losses[0], expected.losses[0], 5e-4 * expected.losses[0]);
  // Tolerance for rounding to 8 bits, and the difference that statistics of half the samples would
  // make.
  EXPECT_LT(relative_difference(actual.weights, expected.weights),
            0.3 * relative_difference(alone.weights, expected.weights));
}

TEST(SpanLawTest, LayoutsGiveTheBitsOfOneStage) {
  for (const auto& [type, span] : {std::pair{DType::F32, 2}, {DType::BF16, 4}}) {
    const Layout one{.type = type, .replicas = 4, .span = span};
    const Outcome expected = train(one);
    for (const Cut& cut : {Cut{3, "1F1B", 1, true}, Cut{8, "Looped", 2}, Cut{4, "ZB-V", 2, true},
                           Cut{2, "ZB-H1"}, Cut{5, "Grouped", 1, true}, Cut{4, "GPipe"}}) {
      const Layout layout = in_stages(one, cut);
      expect_same(train(layout), expected, name_of(layout));
    }
  }
}

// Frozen norms, with and without trained parameters after them.
TEST(SpanLawTest, FrozenParametersGiveTheBitsOfOneStage) {
  for (const std::vector<std::string>& trained : filters()) {
    const Layout one{.replicas = 2, .trained = trained, .span = 2};
    EXPECT_EQ(train(in_stages(one, {4, "1F1B"})).digest, train(one).digest) << name_of(one);
  }
}

TEST(SpanLawTest, GroupsThatDoNotComeOutAreRefused) {
  const Layout layout{.replicas = 2, .span = 4};
  expect_error(ErrorKind::Config, {"span 4 replicas, which does not divide the 2"},
               [&] { (void)train(layout, 1); });
}

TEST(LawTest, AReplicaWithOtherWeightsIsFound) {
  const comm::World world;
  Training training(planned({.stages = 2, .schedule = "1F1B", .replicas = 2}), world);
  Session& session = training.session();
  EXPECT_NO_THROW(session.compare_replicas());
  for (const pipeline::LocalStage& unit : session.units()) {
    if (unit.replica != 1 || unit.stage != 1) continue;
    const std::span<const std::byte> trained = unit.state->parameters().trained();
    std::byte last = {};
    device::copy_to_host(&last, &trained.back(), 1);
    last ^= std::byte{1};
    device::copy_to_device(const_cast<std::byte*>(&trained.back()), &last, 1);
  }
  expect_error(ErrorKind::Peer, {"stage 1: replica 1"}, [&] { session.compare_replicas(); });
}

// ---- two threads --------------------------------------------------------------------------------
//
// Everything above holds for any number of threads and is run at two threads by hand (law_whole).
// Every change is tested on those layouts in which threads divide the rows of a kernel differently;
// a schedule only orders calls on one host thread. Two steps of few micro-batches are enough to
// exercise gradients, slots and statistics. On a busy machine, threads that wait for each other
// take fifty times as long as one.

constexpr std::int64_t kFewSteps = 2;
constexpr std::int64_t kLargeBatch = 4;

/// The choices that the kernels of a layout's stages depend on.
test::Choices kernel_choices(const Layout& l) {
  return {l.stages, l.recompute ? 1 : 0, static_cast<int>(l.type), static_cast<int>(l.norm)};
}

TEST(TwoThreadsTest, EveryPairOfKernelsGivesTheBitsOfOneStage) {
  std::map<test::Choices, std::vector<Layout>> alike;
  for (const Layout& layout : all_layouts()) alike[kernel_choices(layout)].push_back(layout);
  // One of several layouts with the same kernels, each time with another schedule.
  std::vector<Layout> candidates;
  std::vector<test::Choices> factors;
  for (const auto& [factor, layouts] : alike) {
    candidates.push_back(layouts[candidates.size() % layouts.size()]);
    candidates.back().batch = kLargeBatch;
    factors.push_back(factor);
  }
  for (const std::size_t i : test::covering_array(factors)) expect_same(candidates[i], kFewSteps);
}

// Eight images of 16 x 16 have enough tiles for Winograd's kernels, smaller batches have not.
TEST(TwoThreadsTest, WinogradsKernelsGiveTheBitsOfOneStage) {
  for (const DType type : {DType::F32, DType::BF16})
    expect_same({.stages = 2, .schedule = "1F1B", .recompute = true, .type = type, .batch = 8},
                kFewSteps);
}

class TwoThreadsFamilyTest : public testing::TestWithParam<std::pair<Family, DType>> {};

TEST_P(TwoThreadsFamilyTest, GivesTheBitsOfOneStage) {
  const auto& [family, type] = GetParam();
  expect_same({.stages = 5,
               .schedule = "1F1B",
               .recompute = true,
               .type = type,
               .family = family,
               .batch = kLargeBatch},
              kFewSteps);
}

// Uses each of their ops in one type; the tests of ops cover both types.
INSTANTIATE_TEST_SUITE_P(Families, TwoThreadsFamilyTest,
                         testing::Values(std::pair{Family::ResNeXt, DType::F16},
                                         std::pair{Family::SqueezeNet, DType::BF16},
                                         std::pair{Family::EfficientNet, DType::BF16}),
                         [](const auto& test) { return std::string(name_of(test.param.first)); });

TEST(TwoThreadsTest, SharesOfARoundedUpdateGiveTheBitsOfTheWhole) {
  const Layout layout{.stages = 2,
                      .schedule = "1F1B",
                      .type = DType::BF16,
                      .replicas = 2,
                      .rule = UpdateRule::Lars,
                      .narrow = true,
                      .batch = kLargeBatch};
  EXPECT_EQ(train(sharded(layout), kFewSteps).digest, train(layout, kFewSteps).digest);
}

TEST(TwoThreadsTest, StatisticsOfReplicasGiveTheBitsOfOneStage) {
  const Layout one{.type = DType::BF16, .replicas = 2, .span = 2, .batch = kLargeBatch};
  EXPECT_EQ(train(in_stages(one, {5, "Grouped", 1, true}), kFewSteps).digest,
            train(one, kFewSteps).digest);
}

// The digest changes with another step or other images.
TEST(LawTest, DigestTellsTrainingsApart) {
  std::set<std::string> digests;
  for (const auto norm : {models::NormKind::Batch, models::NormKind::Group})
    for (const DType type : {DType::F32, DType::BF16})
      digests.insert(reference({.type = type, .norm = norm}).digest);
  EXPECT_EQ(digests.size(), 4u);
}

}  // namespace
}  // namespace millrace::training
