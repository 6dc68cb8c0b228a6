// SPDX-License-Identifier: Apache-2.0
//
// Precision and updates in whole trainings: steps are skipped everywhere or nowhere, scales settle,
// the first non-finite op is named, checkpoints fit any precision and sharding, and weight decay
// follows the recipes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "tests/support/temporary_directory.hpp"
#include "tests/train/small_run.hpp"
#include "train/session.hpp"

namespace millrace::train {
namespace {

using namespace small;

/// Image `broken` has an infinite pixel.
std::shared_ptr<const io::Dataset> noise(const TrainConfig& config, std::int64_t broken) {
  return std::make_shared<NoiseDataset>(config.model.image, broken);
}

/// A training restored after `before` steps has the same bits and scale as one that was not
/// interrupted, at once and `after` steps later.
void expect_restored_alike(const TrainConfig& config, int before, int after) {
  const comm::World world;
  const test::TemporaryDirectory folder;
  Training whole(config, world);
  whole.steps(before);
  const io::CheckpointReader checkpoint(whole.save(folder.path()));
  Training restored(config, world, nullptr, before);
  restored.session().load(checkpoint);
  EXPECT_EQ(restored.session().scaling(), whole.session().scaling());
  EXPECT_EQ(restored.digest(), whole.digest());
  whole.steps(after);
  restored.steps(after);
  EXPECT_EQ(restored.session().scaling(), whole.session().scaling());
  EXPECT_EQ(restored.digest(), whole.digest());
}

/// Index of the image at this position of the run.
std::int64_t image_at(const TrainConfig& config, std::int64_t position) {
  return io::SampleOrder::shuffled(config.seed, NoiseDataset(config.model.image).size())
      .at(position)
      .index;
}

template <class F>
std::string message_of(ErrorKind kind, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void expect_in(const std::string& text, const std::string& whole) {
  EXPECT_NE(whole.find(text), std::string::npos) << text << " in: " << whole;
}

// ---- skipped steps ------------------------------------------------------------------------------

// The infinite pixel belongs to replica 1. Replica 0 must not change either, including statistics
// and slots.
TEST(SkippedSteps, AnInfinityOfOneReplicaStopsAll) {
  for (const bool sharded : {false, true}) {
    for (const bool narrow : {false, true}) {
      const Layout layout{.stages = 3,
                          .schedule = "1F1B",
                          .type = narrow ? DType::BF16 : DType::F32,
                          .replicas = 2,
                          .narrow = narrow,
                          .sharded = sharded};
      const TrainConfig config = planned(layout);
      const comm::World world;
      // Micro-batch 17 of the run is the first of replica 1 in the third step.
      Training training(config, world, noise(config, image_at(config, 17 * config.batch_size)));
      training.steps(2);
      const std::string before = training.digest();
      EXPECT_EQ(training.session().scaling().skipped, 0);
      EXPECT_TRUE(training.step().skipped) << name_of(layout);
      EXPECT_EQ(training.digest(), before) << name_of(layout);
      training.session().compare_replicas();
      EXPECT_FALSE(training.step().skipped);
      EXPECT_NE(training.digest(), before);
      EXPECT_EQ(training.session().scaling(), (ScalingState{.scale = 128.0, .skipped = 1}));
      training.session().compare_replicas();
    }
  }
}

// With shared statistics, one replica's infinity reaches the others at once.
TEST(SkippedSteps, AnInfinityInSharedStatisticsStopsAll) {
  const TrainConfig config = planned({.stages = 3, .schedule = "1F1B", .replicas = 2, .span = 2});
  const comm::World world;
  Training training(config, world, noise(config, image_at(config, 17 * config.batch_size)));
  training.steps(2);
  const std::string before = training.digest();
  EXPECT_TRUE(training.step().skipped);
  EXPECT_EQ(training.digest(), before);
  EXPECT_FALSE(training.step().skipped);
  training.session().compare_replicas();
}

/// The largest gradient of each unit.
std::vector<double> largest_gradients(Session& session) {
  std::vector<double> result;
  for (const pipeline::Unit& unit : session.units()) {
    const pipeline::Parameters& parameters = unit.run->parameters();
    const auto n = static_cast<std::size_t>(parameters.learning_elements());
    double largest = 0.0;
    for (const float g : parameters.accumulated().first(n))
      largest = std::isfinite(g) ? std::max(largest, std::abs(static_cast<double>(g)))
                                 : std::numeric_limits<double>::infinity();
    result.push_back(largest);
  }
  return result;
}

/// The smallest exponent of a scale at which some gradient of the last, unscaled step would have
/// become infinite on some rank.
std::int64_t exponent_of_overflow(Session& session, const comm::World& world) {
  const std::vector<double> sizes = largest_gradients(session);
  const double largest = *std::max_element(sizes.begin(), sizes.end());
  constexpr double kMost = static_cast<double>(std::numeric_limits<float>::max());
  return -world.maximum(-static_cast<std::int64_t>(std::ceil(std::log2(kMost / largest))));
}

/// Makes the gradient of a kernel 2^5 times as large by shrinking the kernel, which the following
/// norm compensates.
void shrink(Session& session, std::string_view kernel) {
  const models::Graph& graph = session.graph();
  for (const pipeline::Unit& unit : session.units()) {
    const pipeline::Parameters& parameters = unit.run->parameters();
    for (const models::ParameterId id : parameters.ids()) {
      if (graph.parameter(id).name != kernel) continue;
      float* const values = parameters.value(id);
      for (std::int64_t i = 0; i < graph.parameter(id).elements(); ++i) values[i] *= 0x1p-5f;
    }
    parameters.refresh_copies(device::ExecutionSpace{});
  }
}

/// Whether a step was skipped; checks that all ranks agree.
bool skips_together(Training& training, const comm::World& world) {
  const bool skipped = training.step().skipped;
  const bool somewhere = world.maximum(skipped ? 1 : 0) != 0;
  const bool everywhere = world.maximum(skipped ? 0 : 1) == 0;
  EXPECT_EQ(somewhere, everywhere) << "one rank has skipped a step alone";
  return somewhere;
}

/// In turn, each of two stages is the only one with non-finite gradients. Nothing is updated until
/// the scale has fallen; then the training equals that of `steady` with this scale.
void expect_one_stage_to_stop_all(const comm::World& world, const Layout& steady) {
  const Layout cut{.stages = 2, .schedule = "1F1B"};
  for (const auto& [stage, kernel] :
       {std::pair{0, "b0/conv/kernel"}, std::pair{1, "b3/2/conv1/kernel"}}) {
    const auto begin = [&, &kernel = kernel](const Layout& layout, double scale,
                                             std::int64_t first) {
      TrainConfig config = planned(layout);
      config.pipeline.ranks.ranks = world.size();
      config.loss_scaling = {.kind = ScalingKind::Dynamic, .initial = scale};
      auto training = std::make_unique<Training>(config, world, nullptr, first);
      shrink(training->session(), kernel);
      return training;
    };
    const auto unscaled = begin(cut, 1.0, 0);
    unscaled->steps(1);
    const std::int64_t exponent = exponent_of_overflow(unscaled->session(), world);

    const auto scaled = begin(cut, std::ldexp(1.0, static_cast<int>(exponent)), 0);
    Session& session = scaled->session();
    const std::string before = scaled->digest();
    EXPECT_TRUE(skips_together(*scaled, world));
    EXPECT_EQ(scaled->digest(), before);
    const std::vector<double> sizes = largest_gradients(session);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      EXPECT_EQ(std::isinf(sizes[i]), session.units()[i].stage == stage) << kernel << i;

    std::int64_t skipped = 1;
    for (; skips_together(*scaled, world); ++skipped) ASSERT_LT(skipped, kMaxSkippedInRow);
    const auto found = begin(steady, session.scaling().scale, skipped);
    EXPECT_FALSE(skips_together(*found, world));
    EXPECT_EQ(scaled->digest(), found->digest()) << kernel;
    scaled->steps(2);
    found->steps(2);
    EXPECT_EQ(scaled->digest(), found->digest()) << kernel;
  }
}

TEST(SkippedSteps, AnInfinityOfOneStageStopsAll) {
  expect_one_stage_to_stop_all(comm::World{}, {});
}

// ---- dynamic scaling ----------------------------------------------------------------------------

TEST(DynamicScaling, FindsItsLevelFromFarAbove) {
  for (const bool narrow : {false, true}) {
    TrainConfig config = planned({.stages = 2,
                                  .schedule = "ZB-H1",
                                  .type = narrow ? DType::BF16 : DType::F32,
                                  .narrow = narrow});
    config.loss_scaling = {
        .kind = ScalingKind::Dynamic, .initial = 0x1p127, .growth_interval = 2000};
    const comm::World world;
    Training training(config, world);
    int skipped = 0;
    while (training.step().skipped) ASSERT_LT(++skipped, kMaxSkippedInRow);
    EXPECT_GT(skipped, 0);
    const ScalingState found = training.session().scaling();
    EXPECT_EQ(found, (ScalingState{
                         .scale = std::exp2(127 - skipped), .good_steps = 1, .skipped = skipped}));
    training.steps(2);
    // As if the run had started with that scale, after the skipped steps.
    config.loss_scaling = {.initial = found.scale};
    Training steady(config, world, nullptr, skipped);
    steady.steps(3);
    EXPECT_EQ(training.digest(), steady.digest());
  }
}

TEST(DynamicScaling, ContinuesFromACheckpointBitForBit) {
  TrainConfig config = planned({.stages = 2, .schedule = "1F1B"});
  config.loss_scaling = {.kind = ScalingKind::Dynamic, .initial = 0x1p120, .growth_interval = 2};
  expect_restored_alike(config, 3, 6);
}

// ---- the first op -------------------------------------------------------------------------------

/// Fills the memory of all buffers with NaNs.
void poison(Session& session) {
  for (const pipeline::Unit& unit : session.units()) {
    pipeline::BoundProgram& program = unit.run->training();
    for (std::size_t b = 0; b < program.program().buffers.size(); ++b) {
      const pipeline::BufferId id{static_cast<std::int32_t>(b)};
      if (program.region(id) == pipeline::Region::Unused) continue;
      std::memset(program.address(id, {}), 0xff,
                  static_cast<std::size_t>(program.program().buffer(id).bytes));
    }
  }
}

TEST(Exceptions, FindNothingInASoundTraining) {
  for (const bool narrow : {false, true}) {
    for (const auto norm : {models::NormKind::Batch, models::NormKind::Group}) {
      TrainConfig config = planned({.stages = 2,
                                    .schedule = "ZB-H1",
                                    .recompute = narrow,
                                    .type = narrow ? DType::BF16 : DType::F32,
                                    .norm = norm,
                                    .narrow = narrow});
      const comm::World world;
      Training plain(config, world);
      plain.steps(2);
      config.check_exceptions = true;
      Training checked(config, world);
      poison(checked.session());
      checked.steps(2);
      EXPECT_EQ(checked.digest(), plain.digest());
    }
  }
}

TEST(Exceptions, FindNothingInStatisticsThatSpanReplicas) {
  for (const bool recompute : {false, true}) {
    TrainConfig config = planned(
        {.stages = 2, .schedule = "ZB-H1", .recompute = recompute, .replicas = 2, .span = 2});
    const comm::World world;
    Training plain(config, world);
    plain.steps(2);
    config.check_exceptions = true;
    Training checked(config, world);
    poison(checked.session());
    checked.steps(2);
    EXPECT_EQ(checked.digest(), plain.digest());
  }
}

TEST(Exceptions, NameTheFirstOp) {
  TrainConfig config = planned({.stages = 2, .schedule = "1F1B", .replicas = 2});
  config.check_exceptions = true;
  const comm::World world;
  // Micro-batch 3 of the run is number 1 of replica 1.
  Training training(config, world, noise(config, image_at(config, 3 * config.batch_size)));
  const std::string text = message_of(ErrorKind::Numeric, [&] { (void)training.step(); });
  const models::Graph& graph = training.session().graph();
  expect_in(fmt::format("op {} made a number", graph.ops.front().name), text);
  expect_in("of kernel LinearForward", text);
  expect_in("in the forward of micro-batch 1, stage 0, replica 1, iteration 1", text);
}

TEST(Exceptions, NameTheOpOfAGradient) {
  TrainConfig config = planned({.stages = 2, .schedule = "1F1B"});
  config.check_exceptions = true;
  config.loss_scaling.initial = 0x1p127;
  const comm::World world;
  Training training(config, world);
  const std::string text = message_of(ErrorKind::Numeric, [&] { (void)training.step(); });
  expect_in(
      "op fc1 made a number that is not finite: the gradient of fc1/kernel of kernel "
      "LinearBackwardWeight, in the backward input of micro-batch 1, stage 1",
      text);
}

// Statistics of an infinite variance are finite, because its inverse square root is 0.
TEST(Exceptions, NameABatchStatisticThatIsNot) {
  TrainConfig config = planned({.stages = 2, .schedule = "1F1B"});
  config.check_exceptions = true;
  const comm::World world;
  Training training(config, world);
  const pipeline::Parameters& parameters = training.session().units().front().run->parameters();
  const models::ParameterId stem = parameters.ids().front();
  const models::Graph& graph = training.session().graph();
  float* const kernel = parameters.value(stem);
  for (std::int64_t i = 0; i < graph.parameter(stem).elements(); ++i) kernel[i] *= 1e22f;
  parameters.refresh_copies(device::ExecutionSpace{});
  expect_in("the running sum of b0/norm/moving_variance of kernel NormStatistics",
            message_of(ErrorKind::Numeric, [&] { (void)training.step(); }));
}

// With such large scales the gradient sum of each replica is finite, but the total is not.
TEST(Exceptions, NameASumOverReplicas) {
  int seen = 0;
  for (int exponent = 127; exponent > 100; --exponent) {
    TrainConfig config = planned({.stages = 2, .schedule = "1F1B", .replicas = 2});
    config.check_exceptions = true;
    config.loss_scaling.initial = std::ldexp(1.0, exponent);
    const comm::World world;
    Training training(config, world);
    try {
      (void)training.step();
      break;
    } catch (const Error& error) {
      const std::string text = error.what();
      if (text.find("the sum over replicas of the gradient or statistic of ") != std::string::npos)
        ++seen;
    }
  }
  EXPECT_GT(seen, 0);
}

// Scaled by 2^24, gradients exceed float16, whose largest number is 65504. Steps are skipped,
// identically in every layout, until the scale is low enough.
TEST(DynamicScaling, FindsTheRangeOfFloat16InEveryLayout) {
  constexpr int kScalingSteps = 14;
  const comm::World world;
  const auto trained = [&](const Layout& layout) {
    TrainConfig config = planned(layout);
    config.loss_scaling = {.kind = ScalingKind::Dynamic, .initial = 0x1p24};
    Training training(config, world);
    training.steps(kScalingSteps);
    return std::pair(training.session().scaling(), training.digest());
  };
  for (const bool narrow : {false, true}) {
    const auto [scaling, digest] = trained({.type = DType::F16, .narrow = narrow});
    EXPECT_GT(scaling.skipped, 2);
    EXPECT_LT(scaling.skipped, kScalingSteps - 2);
    for (Layout layout : {Layout{.stages = 3, .schedule = "1F1B", .recompute = true},
                          Layout{.stages = 4, .schedule = "ZB-V", .chunks = 2}}) {
      layout.type = DType::F16;
      layout.narrow = narrow;
      const auto [cut_scaling, cut_digest] = trained(layout);
      EXPECT_EQ(cut_scaling, scaling);
      EXPECT_EQ(cut_digest, digest);
    }
  }
}

// ---- checkpoints --------------------------------------------------------------------------------

TEST(NarrowMasters, RestoreBitForBit) {
  for (const DType type : {DType::BF16, DType::F16})
    expect_restored_alike(planned({.stages = 2, .schedule = "1F1B", .type = type, .narrow = true}),
                          2, 2);
}

TEST(NarrowMasters, CheckpointsFitEveryPrecision) {
  const Layout narrow{.type = DType::BF16, .narrow = true};
  const comm::World world;
  const test::TemporaryDirectory folder;
  Training sixteen(planned(narrow), world);
  sixteen.steps(2);
  const io::CheckpointReader from_sixteen(sixteen.save(folder.path() / "16"));
  for (const DType type : {DType::F32, DType::BF16}) {
    Training wide(planned({.type = type}), world);
    wide.session().load(from_sixteen);
    EXPECT_EQ(wide.digest(), sixteen.digest());
  }
  Training wide(planned({.type = DType::BF16}), world);
  wide.steps(2);
  const io::CheckpointReader from_wide(wide.save(folder.path() / "32"));
  sixteen.session().load(from_wide);
  const auto rounded = sixteen.values();
  for (const auto& [name, values] : wide.values()) {
    const bool state = name.find("moving_") != std::string::npos;
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(rounded.at(name)[i], state ? values[i] : rounded_as<bfloat16>(values[i])) << name;
  }
}

TEST(NarrowMasters, StochasticRoundingIsOfTheSeedAndCanBeLeftOut) {
  const Layout layout{.type = DType::BF16, .narrow = true};
  const auto trained = [&](bool stochastic, std::uint64_t seed) {
    TrainConfig config = planned(layout);
    config.stochastic_rounding = stochastic;
    config.seed = seed;
    config.data.augment = false;
    const comm::World world;
    Session session(config, Session::Use::Training, world);
    session.allocate();
    session.initialise(1);
    // The same images for every seed.
    config.seed = 0;
    Session order(config, Session::Use::Training, world);
    const auto data = std::make_shared<NoiseDataset>(config.model.image);
    const Feeds feeds = order.feeder().training(data, 0);
    (void)session.step(feeds, 0, Training::kRate);
    return io::digest(session.tensors().snapshot().tensors());
  };
  EXPECT_EQ(trained(true, 1), trained(true, 1));
  EXPECT_NE(trained(true, 1), trained(true, 2));
  EXPECT_EQ(trained(false, 1), trained(false, 2));
  EXPECT_NE(trained(false, 1), trained(true, 1));
}

TEST(SharedUpdate, CheckpointsKnowNothingOfTheShares) {
  const comm::World world;
  const test::TemporaryDirectory folder;
  Layout layout{.stages = 2,
                .schedule = "1F1B",
                .type = DType::BF16,
                .replicas = 2,
                .rule = UpdateRule::RmsProp,
                .narrow = true,
                .sharded = true};
  Training shared(planned(layout), world);
  shared.steps(2);
  const std::string saved = shared.digest();
  const io::CheckpointReader checkpoint(shared.save(folder.path()));
  shared.steps(2);
  for (const bool sharded : {true, false}) {
    layout.sharded = sharded;
    Training restored(planned(layout), world, nullptr, 2);
    restored.session().load(checkpoint);
    EXPECT_EQ(restored.digest(), saved);
    restored.steps(2);
    EXPECT_EQ(restored.digest(), shared.digest());
    restored.session().compare_replicas();
  }
  for (const std::int32_t replicas : {1, 4}) {
    layout.replicas = replicas;
    layout.sharded = replicas > 1;
    Training restored(planned(layout), world);
    restored.session().load(checkpoint);
    EXPECT_EQ(restored.digest(), saved);
  }
}

TEST(Slots, OfAnotherRuleAreRefused) {
  const comm::World world;
  const test::TemporaryDirectory folder;
  std::map<UpdateRule, std::filesystem::path> saved;
  for (const UpdateRule rule : {UpdateRule::Sgd, UpdateRule::Momentum, UpdateRule::RmsProp}) {
    Training training(planned({.rule = rule}), world);
    saved[rule] = training.save(folder.path() / millrace::name_of(rule));
  }
  const auto load = [&](UpdateRule from, UpdateRule into) {
    const io::CheckpointReader checkpoint(saved[from]);
    Training training(planned({.rule = into}), world);
    training.session().load(checkpoint);
  };
  const auto refused = [&](UpdateRule from, UpdateRule into) {
    return message_of(ErrorKind::Checkpoint, [&] { load(from, into); });
  };
  const std::string missing = refused(UpdateRule::Sgd, UpdateRule::Momentum);
  expect_in("/momentum, which momentum needs; its slots: none", missing);
  const std::string square = refused(UpdateRule::Momentum, UpdateRule::RmsProp);
  expect_in("/mean_square, which RMSprop needs; its slots: momentum.", square);
  const std::string more = refused(UpdateRule::RmsProp, UpdateRule::Momentum);
  expect_in("/mean_square, which momentum does not keep; its slots: mean_square, momentum", more);
  EXPECT_NO_THROW(load(UpdateRule::Momentum, UpdateRule::Lars));
  // Evaluation needs no slots and accepts any.
  const io::CheckpointReader checkpoint(saved[UpdateRule::RmsProp]);
  TrainConfig config = planned({});
  Session evaluation(config, Session::Use::Evaluation, world);
  evaluation.allocate();
  EXPECT_NO_THROW(evaluation.load(checkpoint));
}

// ---- decay --------------------------------------------------------------------------------------

// Two steps of SGD that differ only in weight decay differ by rate x decay x w.
TEST(Decay, FormsAndExclusionsReachTheWeights) {
  const comm::World world;
  const auto values_after = [&](double decay, DecayForm form, int steps) {
    TrainConfig config = planned({.rule = UpdateRule::Sgd});
    config.optimiser.weight_decay = decay;
    config.optimiser.decay_form = form;
    config.optimiser.decay_excludes = {"beta", "gamma", "fc"};
    Training training(config, world);
    training.steps(steps);
    return training.values();
  };
  const auto before = values_after(0.0, DecayForm::HalfSquare, 0);
  const auto plain = values_after(0.0, DecayForm::HalfSquare, 1);
  std::size_t excluded = 0;
  for (const auto& [form, factor] :
       {std::pair{DecayForm::HalfSquare, 0.25}, std::pair{DecayForm::Square, 0.5}}) {
    const auto decayed = values_after(0.25, form, 1);
    for (const auto& [name, values] : before) {
      const bool kernel = name.find("/kernel") != std::string::npos && name.rfind("fc", 0) != 0;
      excluded += kernel ? 0 : 1;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double taken = static_cast<double>(plain.at(name)[i] - decayed.at(name)[i]);
        const double expected =
            kernel ? Training::kRate * factor * static_cast<double>(values[i]) : 0.0;
        ASSERT_NEAR(taken, expected, 1e-6) << name;
      }
    }
  }
  EXPECT_GT(excluded, 0u);
}

TEST(Decay, LarsTakesItsEpsilonFromTheConfiguration) {
  const comm::World world;
  const auto digest = [&](double epsilon) {
    TrainConfig config = planned({.rule = UpdateRule::Lars});
    config.optimiser.epsilon = epsilon;
    Training training(config, world);
    training.steps(1);
    return training.digest();
  };
  EXPECT_EQ(digest(0.0), digest(0.0));
  EXPECT_NE(digest(0.0), digest(1.0));
}

// ---- two processes ------------------------------------------------------------------------------

/// Run by mpirun.
class TwoRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("MILLRACE_TEST_RANKS") == nullptr) GTEST_SKIP() << "needs mpirun";
    ASSERT_EQ(world().size(), 2);
  }
  /// Shared by all tests, as MPI starts once per process.
  static const comm::World& world() {
    static const comm::World shared;
    return shared;
  }
};

// Only rank 1's images contain the infinity. The ranks agree, and sharded weights end the same as
// unsharded ones.
TEST_F(TwoRanks, AgreeOnWhatIsSkippedAndShareTheUpdate) {
  std::map<std::string, std::vector<std::vector<float>>> ends;
  for (const bool over_stages : {false, true}) {
    for (const bool sharded : {false, true}) {
      if (over_stages && sharded) continue;
      TrainConfig config = planned({.stages = 2,
                                    .schedule = "1F1B",
                                    .type = DType::BF16,
                                    .replicas = over_stages ? 1 : 2,
                                    .narrow = true,
                                    .sharded = sharded});
      config.pipeline.ranks.ranks = 2;
      const std::int64_t broken =
          image_at(config, 17 * config.batch_size);  // third step, replica 1 of two
      const bool mine = over_stages ? world().rank() == 0 : world().rank() == 1;
      Training training(config, world(), noise(config, mine ? broken : -1));
      training.steps(2);
      const auto before = training.values();
      EXPECT_TRUE(training.step().skipped) << "rank " << world().rank();
      EXPECT_TRUE(training.values() == before) << "rank " << world().rank();
      EXPECT_FALSE(training.step().skipped) << "rank " << world().rank();
      training.session().compare_replicas();
      EXPECT_EQ(training.session().scaling().skipped, 1);
      for (const auto& [name, values] : training.values())
        if (!over_stages) ends[name].push_back(values);
    }
  }
  // Unsharded, rank 0 saves everything; sharded, all weights and some slots.
  for (const auto& [name, values] : ends) {
    ASSERT_LE(values.size(), 2u) << name;
    EXPECT_TRUE(values.back() == values.front()) << name;
  }
}

// The stages are on different ranks. The reference is cut as well, because one replica in one stage
// cannot span two ranks.
TEST_F(TwoRanks, WaitForTheOnlyStageWithAnInfinity) {
  expect_one_stage_to_stop_all(world(), {.stages = 2, .schedule = "1F1B"});
}

}  // namespace
}  // namespace millrace::train
