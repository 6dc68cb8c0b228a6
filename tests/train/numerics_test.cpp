// SPDX-License-Identifier: Apache-2.0
//
// Precision and updates in whole trainings: steps are skipped everywhere or nowhere, scales settle,
// the first non-finite op is named, checkpoints fit any precision and sharding, and weight decay
// follows the recipes.
#include <fmt/format.h>

#include "device/arena.hpp"
#include "device/queues.hpp"
#include "tests/support/device_floats.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/two_ranks.hpp"
#include "tests/train/small_run.hpp"
#include "train/session.hpp"

namespace millrace::training {
namespace {

using namespace small;

/// Image `broken` has an infinite pixel.
std::shared_ptr<const io::Dataset> noise(const run::Run& config, std::int64_t broken) {
  return std::make_shared<NoiseDataset>(config.model.image, broken);
}

/// A training restored after `before` steps has the same bits and scale as one that was not
/// interrupted, at once and `after` steps later.
void expect_restored_alike(const run::Run& config, int before, int after) {
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
std::int64_t image_at(const run::Run& config, std::int64_t position) {
  return io::SampleOrder::shuffled(config.seed, NoiseDataset(config.model.image).size())
      .at(position)
      .index;
}

// ---- skipped steps ------------------------------------------------------------------------------

// The infinite pixel belongs to replica 1. Replica 0 must not change either, including statistics
// and slots. With shared statistics the infinity reaches the others at once.
TEST(SkippedSteps, AnInfinityOfOneReplicaStopsAll) {
  const Layout one{.stages = 3, .schedule = "1F1B", .replicas = 2};
  std::vector<Layout> layouts(5, one);
  layouts[1].sharded = true;
  layouts[2].span = 2;
  for (const std::size_t narrow : {3u, 4u}) {
    layouts[narrow].type = DType::BF16;
    layouts[narrow].narrow = true;
  }
  layouts[4].sharded = true;
  for (const Layout& layout : layouts) {
    const run::Run config = planned(layout);
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

// ---- a host ahead of the device ----------------------------------------------------------------

// Random masks, moving averages, corrections by the number of updates, and a skipped step, of which
// the host does not know yet when it queues the next.
TEST(GoingAhead, ChangesNothing) {
  for (const bool narrow : {false, true}) {
    run::Run config = planned({.type = DType::BF16,
                               .rule = UpdateRule::Adam,
                               .narrow = narrow,
                               .family = Family::EfficientNet,
                               .batch = narrow ? 16 : 2,  // one micro-batch, or eight
                               .ema_decay = 0.9});
    config.loss_scaling = {
        .kind = run::ScalingKind::Dynamic, .initial = 128.0, .growth_interval = 2};
    const comm::World world;
    const auto data = noise(config, image_at(config, 3 * config.total_batch()));
    Training ahead(config, world, data);
    EXPECT_EQ(ahead.session().goes_ahead(), device::kHasGraphs && !device::kHostReadable);
    const std::vector<StepResult> results = ahead.steps_ahead(6);
    Training steps(config, world, data);
    for (const StepResult& result : results) {
      const StepResult expected = steps.step();
      EXPECT_EQ(std::bit_cast<std::uint64_t>(result.metrics.loss),  // one is no number
                std::bit_cast<std::uint64_t>(expected.metrics.loss));
      EXPECT_EQ(result.metrics.top1, expected.metrics.top1);
      EXPECT_EQ(result.skipped, expected.skipped);
    }
    EXPECT_EQ(ahead.session().scaling(), steps.session().scaling());
    EXPECT_EQ(ahead.session().scaling().skipped, 1);
    EXPECT_EQ(ahead.digest(), steps.digest());
  }
}

// ---- dynamic scaling ----------------------------------------------------------------------------

TEST(DynamicScaling, FindsItsLevelFromFarAbove) {
  for (const bool narrow : {false, true}) {
    run::Run config = planned({.stages = 2,
                               .schedule = "ZB-H1",
                               .type = narrow ? DType::BF16 : DType::F32,
                               .narrow = narrow});
    config.loss_scaling = {
        .kind = run::ScalingKind::Dynamic, .initial = 0x1p127, .growth_interval = 2000};
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
  run::Run config = planned({.stages = 2, .schedule = "1F1B"});
  config.loss_scaling = {
      .kind = run::ScalingKind::Dynamic, .initial = 0x1p120, .growth_interval = 2};
  expect_restored_alike(config, 3, 6);
}

// ---- the first op -------------------------------------------------------------------------------

/// Fills the memory of all buffers with NaNs.
void poison(Session& session) {
  for (const pipeline::LocalStage& unit : session.units()) {
    pipeline::BoundProgram& program = unit.state->training();
    for (std::size_t b = 0; b < program.program().buffers.size(); ++b) {
      const pipeline::BufferId id{static_cast<std::int32_t>(b)};
      if (program.region(id) == pipeline::Region::Unused) continue;
      const std::vector<std::byte> ones(
          static_cast<std::size_t>(program.program().buffer(id).bytes), std::byte{0xff});
      device::copy_to_device(program.address(id, {}), ones.data(), std::ssize(ones));
    }
  }
}

TEST(Exceptions, FindNothingInASoundTraining) {
  const Layout plain{.stages = 2, .schedule = "ZB-H1"};
  std::vector<Layout> layouts(5, plain);
  layouts[1].norm = models::NormKind::Group;
  layouts[2].recompute = layouts[2].narrow = true;
  layouts[2].type = DType::BF16;
  layouts[3].replicas = layouts[3].span = 2;
  layouts[4] = layouts[3];
  layouts[4].recompute = true;
  for (const Layout& layout : layouts) {
    run::Run config = planned(layout);
    const comm::World world;
    Training unchecked(config, world);
    unchecked.steps(2);
    config.check_exceptions = true;
    Training checked(config, world);
    poison(checked.session());
    checked.steps(2);
    EXPECT_EQ(checked.digest(), unchecked.digest()) << name_of(layout);
  }
}

// A checked training runs kernel by kernel. An unchecked one repeats launches where the device
// keeps them: a value that changes from step to step must not be kept with them.
TEST(Exceptions, ChangeNothingWhereMasksAndScalesChange) {
  run::Run config = planned(
      {.stages = 2, .schedule = "1F1B", .type = DType::F16, .family = Family::EfficientNet});
  config.loss_scaling = {
      .kind = run::ScalingKind::Dynamic, .initial = 1024.0, .growth_interval = 2};
  const comm::World world;
  Training unchecked(config, world);
  unchecked.steps(4);
  EXPECT_NE(unchecked.session().scaling().scale, 1024.0);
  config.check_exceptions = true;
  Training checked(config, world);
  checked.steps(4);
  EXPECT_EQ(checked.digest(), unchecked.digest());
}

TEST(Exceptions, NameTheOpOfAGradient) {
  run::Run config = planned({.stages = 2, .schedule = "1F1B"});
  config.check_exceptions = true;
  config.loss_scaling.initial = 0x1p127;
  const comm::World world;
  Training training(config, world);
  expect_error(ErrorKind::Numeric,
               {"op fc1 made a number that is not finite: the gradient of fc1/kernel of kernel "
                "LinearBackwardWeight, in the backward input of micro-batch 1, stage 1"},
               [&] { (void)training.step(); });
}

// Statistics of an infinite variance are finite, because its inverse square root is 0.
TEST(Exceptions, NameABatchStatisticThatIsNot) {
  run::Run config = planned({.stages = 2, .schedule = "1F1B"});
  config.check_exceptions = true;
  const comm::World world;
  Training training(config, world);
  const pipeline::Parameters& parameters = training.session().units().front().state->parameters();
  const models::ParameterId stem = parameters.ids().front();
  const models::Graph& graph = training.session().graph();
  std::vector<float> kernel =
      test::read_floats(parameters.value(stem), graph.parameter(stem).elements());
  for (float& x : kernel) x *= 1e22f;
  test::write_floats(parameters.value(stem), kernel);
  parameters.refresh_copies(device::ExecutionSpace{});
  expect_error(ErrorKind::Numeric,
               {"the running sum of b0/norm/moving_variance of kernel NormStatistics"},
               [&] { (void)training.step(); });
}

// With such large scales the gradient sum of each replica is finite, but the total is not.
TEST(Exceptions, NameASumOverReplicas) {
  int seen = 0;
  for (int exponent = 127; exponent > 100; --exponent) {
    run::Run config = planned({.stages = 2, .schedule = "1F1B", .replicas = 2});
    config.check_exceptions = true;
    config.loss_scaling.initial = std::ldexp(1.0, exponent);
    const comm::World world;
    Training training(config, world);
    const std::string text = message_of(ErrorKind::Numeric, [&] { (void)training.step(); });
    if (text.empty()) break;
    if (text.find("the sum over replicas of the gradient or statistic of ") != std::string::npos)
      ++seen;
  }
  EXPECT_GT(seen, 0);
}

// Scaled by 2^24, gradients exceed float16, whose largest number is 65504. Steps are skipped,
// identically in every layout, until the scale is low enough.
TEST(DynamicScaling, FindsTheRangeOfFloat16InEveryLayout) {
  constexpr int kScalingSteps = 14;
  const comm::World world;
  const auto trained = [&](const Layout& layout) {
    run::Run config = planned(layout);
    config.loss_scaling = {.kind = run::ScalingKind::Dynamic, .initial = 0x1p24};
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

TEST(NarrowMasters, StochasticRoundingCanBeLeftOut) {
  const auto trained = [](bool stochastic) {
    run::Run config = planned({.type = DType::BF16, .narrow = true});
    config.stochastic_rounding = stochastic;
    const comm::World world;
    Training training(config, world);
    training.steps(1);
    return training.digest();
  };
  EXPECT_NE(trained(false), trained(true));
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
  std::map<UpdateRule, fs::path> saved;
  for (const UpdateRule rule : {UpdateRule::Sgd, UpdateRule::Momentum, UpdateRule::RmsProp}) {
    Training training(planned({.rule = rule}), world);
    saved[rule] = training.save(folder.path() / millrace::name_of(rule));
  }
  const auto load = [&](UpdateRule from, UpdateRule into) {
    const io::CheckpointReader checkpoint(saved[from]);
    Training training(planned({.rule = into}), world);
    training.session().load(checkpoint);
  };
  const auto refuses = [&](UpdateRule from, UpdateRule into, const std::string& part) {
    expect_error(ErrorKind::Checkpoint, {part}, [&] { load(from, into); });
  };
  refuses(UpdateRule::Sgd, UpdateRule::Momentum,
          "/momentum, which momentum needs; its slots: none");
  refuses(UpdateRule::Momentum, UpdateRule::RmsProp,
          "/mean_square, which RMSprop needs; its slots: momentum.");
  refuses(UpdateRule::RmsProp, UpdateRule::Momentum,
          "/mean_square, which momentum does not keep; its slots: mean_square, momentum");
  EXPECT_NO_THROW(load(UpdateRule::Momentum, UpdateRule::Lars));
  // Evaluation needs no slots and accepts any.
  const io::CheckpointReader checkpoint(saved[UpdateRule::RmsProp]);
  run::Run config = planned({});
  Session evaluation(config, Session::Use::Evaluation, world);
  evaluation.allocate();
  EXPECT_NO_THROW(evaluation.load(checkpoint));
}

// ---- decay --------------------------------------------------------------------------------------

// Two steps of SGD that differ only in weight decay differ by rate x decay x w.
TEST(Decay, FormsAndExclusionsReachTheWeights) {
  const comm::World world;
  const auto values_after = [&](double decay, run::DecayForm form, int steps) {
    run::Run config = planned({.rule = UpdateRule::Sgd});
    config.optimiser.weight_decay = decay;
    config.optimiser.decay_form = form;
    config.optimiser.decay_excludes = {"beta", "gamma", "fc"};
    Training training(config, world);
    training.steps(steps);
    return training.values();
  };
  const auto before = values_after(0.0, run::DecayForm::HalfSquare, 0);
  const auto plain = values_after(0.0, run::DecayForm::HalfSquare, 1);
  std::size_t excluded = 0;
  for (const auto& [form, factor] :
       {std::pair{run::DecayForm::HalfSquare, 0.25}, std::pair{run::DecayForm::Square, 0.5}}) {
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

// ---- two processes ------------------------------------------------------------------------------

using test::TwoRanks;

// Only rank 1's images contain the infinity. The ranks agree, and sharded weights end the same as
// unsharded ones.
TEST_F(TwoRanks, AgreeOnWhatIsSkippedAndShareTheUpdate) {
  std::map<std::string, std::vector<std::vector<float>>> ends;
  for (const bool over_stages : {false, true}) {
    for (const bool sharded : {false, true}) {
      if (over_stages && sharded) continue;
      run::Run config = planned({.stages = 2,
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

}  // namespace
}  // namespace millrace::training
