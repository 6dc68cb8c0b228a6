// SPDX-License-Identifier: Apache-2.0
//
// What options of training do to the configuration, and those that say that they do nothing.
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests
using run::LearningRateKind;

run::Run line(std::string_view rest) {
  return resolve_line(std::string(kCifar) + std::string(rest)).config;
}
std::string refusal(std::string_view rest) {
  return failure_of([&] { (void)line(rest); }).text;
}

TEST(OptimiserOptionsTest, ReachTheConfiguration) {
  EXPECT_EQ(line("--optimiser Nesterov").optimiser.kind, UpdateRule::Nesterov);
  EXPECT_EQ(line("--optimiser momentum-rate-inside").optimiser.kind,
            UpdateRule::MomentumRateInside);
  const run::OptimiserConfig rms =
      line("--optimiser RMSprop --rmsprop-decay 0.8 --rmsprop-epsilon 0.01 --momentum 0.7")
          .optimiser;
  EXPECT_EQ(rms.mean_square_decay, 0.8);
  EXPECT_EQ(rms.epsilon, 0.01);
  EXPECT_EQ(rms.momentum, 0.7);
  EXPECT_EQ(line("--optimiser RMSprop").optimiser.epsilon, 1e-3);
  // 1 - 2^-9 x 32
  EXPECT_EQ(line("--optimiser RMSprop --rmsprop-base-decay-exp -9").optimiser.mean_square_decay,
            0.9375);
  expect_in(refusal("--optimiser RMSprop --rmsprop-base-decay-exp -2"),
            {"1 - 2^-2 x a total batch of 32 is -7"});
  const run::OptimiserConfig lars = line(
                                        "--optimiser LARS --lars-eeta 0.002 --lars-epsilon 1e-9 "
                                        "--lars-weight-decay 0.01 --lars-skip-list beta bias")
                                        .optimiser;
  EXPECT_EQ(lars.trust, 0.002);
  EXPECT_EQ(lars.epsilon, 1e-9);
  EXPECT_EQ(lars.weight_decay, 0.01);
  EXPECT_EQ(lars.lars_skips, (std::vector<std::string>{"beta", "bias"}));
  EXPECT_EQ(line("--optimiser LARS").optimiser.epsilon, 0.0);
  EXPECT_EQ(line("--optimiser LARS").optimiser.lars_skips.size(), 3u);
  const run::OptimiserConfig adam =
      line("--optimiser adamw --abs-learning-rate 0.001 --adam-beta1 0.8 --adam-epsilon 1e-6")
          .optimiser;
  EXPECT_EQ(adam.kind, UpdateRule::AdamW);
  EXPECT_EQ(adam.momentum, 0.8);
  EXPECT_EQ(adam.mean_square_decay, 0.999);
  EXPECT_EQ(adam.epsilon, 1e-6);
  EXPECT_EQ(adam.clip_norm, 0.0);
  EXPECT_TRUE(contains(refusal("--optimiser Adam"), "has no default learning rate"));
  EXPECT_EQ(line("--optimiser Adam --abs-learning-rate 0.1 --momentum 0.5").optimiser.momentum,
            0.9);
  EXPECT_EQ(line("--clip-norm 2").optimiser.clip_norm, 2.0);
  const run::OptimiserConfig decay =
      line("--weight-decay-form square --weight-decay-excludes bias").optimiser;
  EXPECT_EQ(decay.decay_form, run::DecayForm::Square);
  EXPECT_EQ(decay.decay_excludes, (std::vector<std::string>{"bias"}));
  EXPECT_TRUE(line("--weight-decay-excludes none").optimiser.decay_excludes.empty());
  EXPECT_TRUE(line("--replicas 2 --ranks 1 --shard-optimizer").optimiser.sharded);
  const run::Run reduced =
      line("--replicas 2 --reduce-precision bf16 --max-cross-replica-buffer-size 9");
  EXPECT_EQ(reduced.reduced_as, DType::BF16);
  EXPECT_EQ(reduced.reduced_at_once, 9);
  expect_in(refusal("--reduce-precision bf16"), {"it needs --replicas"});
}

TEST(ScheduleOptionsTest, ReachTheConfiguration) {
  EXPECT_EQ(line("--abs-learning-rate 0.3").learning_rate.base_rate, 0.3);
  // What is said when a training diverges.
  const auto rate = [](const std::string& rest) {
    return respelled(std::string(run::field_of_rate(line(rest))),
                     train_options(std::string(kCifar) + rest));
  };
  EXPECT_EQ(rate(""), "--base-learning-rate");
  EXPECT_EQ(rate("--lr 0.3"), "--lr");
  EXPECT_EQ(rate("--lr-schedule polynomial_decay_lr"), "--poly-lr-initial-lr");
  EXPECT_EQ(run::field_of_warmup(line("--warmup-iterations 9")), "`warmup-iterations`");
  const run::LearningRateConfig exponential =
      line("--lr-schedule exponential --lr-decay-rate 0.9 --lr-drops 10").learning_rate;
  EXPECT_EQ(exponential.kind, LearningRateKind::Exponential);
  EXPECT_EQ(exponential.decay, 0.9);
  EXPECT_EQ(exponential.drops, 10);
  EXPECT_EQ(line("--lr-schedule exponential").learning_rate.drops, 146);
  const run::Run poly = line("--lr-schedule polynomial_decay_lr --epochs 10");
  EXPECT_EQ(poly.learning_rate.base_rate, 0.0012);
  EXPECT_EQ(poly.learning_rate.end_rate, 1e-4);
  EXPECT_EQ(poly.learning_rate.power, 1.0);
  EXPECT_EQ(poly.learning_rate.warmup_iterations, 0);
  const run::Run gradual = line(
      "--lr-schedule gradual-warmup --abs-learning-rate 4.8 --initial-learning-rate 0.1 "
      "--iterations 4680 --warmup-iterations 260");
  EXPECT_DOUBLE_EQ(rate_at(gradual, 130), 2.45);
  const run::Run lars = line("--lr-schedule lars-polynomial --lr-horizon-epochs 38 --epochs 40");
  EXPECT_EQ(lars.learning_rate.power, 2.0);
  EXPECT_EQ(lars.learning_rate.end_rate, 1e-4);
  EXPECT_EQ(lars.learning_rate.horizon, 38 * 1562);
  const run::Run pieces = line(
      "--lr-schedule piecewise --learning-rate-epochs 2,4 --epochs 6 --warmup linear "
      "--learning-rate-decay 0.5 --abs-learning-rate 1");
  EXPECT_EQ(pieces.learning_rate.cuts, (std::vector<std::int64_t>{3124, 6248}));
  EXPECT_EQ(pieces.learning_rate.factors, (std::vector<double>{1.0, 0.5, 0.25}));
  EXPECT_EQ(pieces.learning_rate.warmup, run::WarmupForm::Linear);
  EXPECT_EQ(line("--epochs 90 --max-iterations 10").iterations, 10);
  EXPECT_EQ(line("--epochs 90 --max-iterations 10").learning_rate.horizon, 90 * 1562);
  EXPECT_EQ(line("--lr-horizon 99").learning_rate.horizon, 99);
  expect_in(refusal("--lr-schedule polynomial_decay_lr --warmup-epochs 2"),
            {"--warmup-epochs has no effect here"});
}

TEST(ImageTypeTest, IsBytesWhereTheDeviceHasMemoryOfItsOwn) {
  const auto on_device = [](const char* options) {
    return resolve_line(std::string(kCifar) + options, {.cores = 2, .copies_images = true})
        .config.data.image_type;
  };
  EXPECT_EQ(on_device(""), DType::U8);
  EXPECT_EQ(on_device("--hostside-norm"), std::nullopt);
  EXPECT_EQ(on_device("--data-loader-image-type float16"), DType::F16);
  EXPECT_EQ(line("").data.image_type, std::nullopt);
}

TEST(NumericsOptionsTest, ReachTheConfiguration) {
  const run::Run half = line("--precision 16.16 --no-stochastic-rounding");
  EXPECT_EQ(half.precision, (Precision{DType::BF16, DType::BF16}));
  EXPECT_FALSE(half.stochastic_rounding);
  EXPECT_TRUE(line("--precision 16.16").stochastic_rounding);
  EXPECT_EQ(line("--loss-scaling dynamic").loss_scaling.kind, run::ScalingKind::Dynamic);
  EXPECT_EQ(line("--loss-scaling dynamic").loss_scaling.initial, 32768.0);
  EXPECT_EQ(line("--loss-scaling 0.5").loss_scaling.initial, 0.5);
  EXPECT_EQ(line("--half fp16").precision, (Precision{DType::F16, DType::F32}));
  EXPECT_EQ(line("--half fp16 --precision 16.16").precision, (Precision{DType::F16, DType::F16}));
  EXPECT_TRUE(line("--fp-exceptions").check_exceptions);
  EXPECT_EQ(line("--label-smoothing 0.1 --label-smoothing-form all-classes").smoothing,
            run::SmoothingForm::AllClasses);
  EXPECT_EQ(line("--no-hostside-norm").data.image_type, DType::U8);
  EXPECT_EQ(line("--eight-bit-io").data.image_type, DType::U8);
  EXPECT_EQ(line("--hostside-norm").data.image_type, std::nullopt);
  EXPECT_EQ(line("--data-loader-image-type uint8").data.image_type, DType::U8);
  EXPECT_EQ(line("--data-loader-image-type float32").data.image_type, DType::F32);
  EXPECT_EQ(line("--data-loader-image-type bfloat16").data.image_type, DType::BF16);
  EXPECT_EQ(line("--data-loader-image-type float16").data.image_type, DType::F16);
  expect_in(refusal("--data-loader-image-type float16 --no-hostside-norm"), {"exclude each other"});
  EXPECT_EQ(line("--max-cpus 3").data.max_cpus, 3);
  EXPECT_TRUE(contains(refusal("--randaugment 2,9"), "--randaugment has no effect here"));
  EXPECT_EQ(line("--mixup-alpha 0.2").data.mixing.mixup_alpha, 0.2);
  EXPECT_EQ(line("--mixup-alpha 0.2").data.mixing.form, run::MixingForm::Rolled);
  EXPECT_EQ(line("--cutmix-lambda 0.8 --mixing-form reversed").data.mixing.form,
            run::MixingForm::Reversed);
  EXPECT_TRUE(contains(refusal("--batch-size 1 --mixup-alpha 0.2"), "choose at least 2"));
  EXPECT_EQ(line("--init-path some/run").init_path, "some/run");
  EXPECT_EQ(line("--variable-filter fc1").trained_filters, (std::vector<std::string>{"fc1"}));
  EXPECT_TRUE(contains(refusal("--variable-filter fc9"), "no trainable parameter of resnet"));
  EXPECT_EQ(line("--batch-norm --BN-span 2 --replicas 4 --ranks 1").model.batch_norm_span, 2);
  EXPECT_TRUE(contains(refusal("--BN-span 3 --replicas 4 --ranks 1"), "spans of 3"));
}

TEST(TraceOptionsTest, ReachTheConfiguration) {
  using run::TraceDetail;
  EXPECT_EQ(line("--trace a.json").trace_last, 10);
  EXPECT_EQ(line("--trace a.json").trace_detail, TraceDetail::Actions);
  EXPECT_EQ(line("--trace a.json --trace-kernels").trace_detail, TraceDetail::Kernels);
  EXPECT_TRUE(line("--gc-profile NO_PROFILE").trace.empty());
  EXPECT_EQ(line("--gc-profile DEVICE_PROFILE").trace_detail, TraceDetail::Updates);
  EXPECT_EQ(line("--gc-profile").trace_detail, TraceDetail::Actions);
  EXPECT_EQ(line("--gc-profile TILE_PROFILE").trace_detail, TraceDetail::Kernels);
  EXPECT_EQ(line("--gc-profile").trace, "trace.json");
  EXPECT_EQ(line("--gc-profile").trace_last, 1);
  EXPECT_EQ(line("--gc-profile --profile-steps 5,8").trace_last, 8);
  EXPECT_TRUE(contains(refusal("--trace-kernels"), "it needs --trace FILE or --gc-profile"));
  EXPECT_TRUE(contains(refusal("--trace a.svg --trace-kernels"), "drawings do not show kernels"));
  expect_in(refusal("--gc-profile TILE_PROFILE --fp-exceptions"),
            {"kernels cannot be traced with --fp-exceptions"});
}

TEST(OutputOptionsTest, ReachTheConfiguration) {
  const run::Run averaged = line("--weight-avg-N 2 5 --weight-avg-exp 0.9,0.99");
  EXPECT_EQ(averaged.averaging.last_epochs, (std::vector<std::int64_t>{2, 5}));
  EXPECT_EQ(averaged.averaging.decays, (std::vector<double>{0.9, 0.99}));
  EXPECT_EQ(averaged.max_checkpoints_to_keep, 0);
  EXPECT_TRUE(contains(refusal("--weight-avg-N 1.5"), "not a whole number"));
  EXPECT_FALSE(line("").tensorboard);
  EXPECT_TRUE(line("--enable-tensorboard").tensorboard);
  EXPECT_EQ(line("--enable-tensorboard").summary_every, 0);
  EXPECT_TRUE(line("--summary-every 7").tensorboard);
  EXPECT_EQ(line("--summary-every 7").summary_every, 7);
  EXPECT_EQ(line("").verbosity, run::Verbosity::Normal);
  EXPECT_EQ(line("-q").verbosity, run::Verbosity::Quiet);
  EXPECT_EQ(line("--verbose").verbosity, run::Verbosity::Verbose);
  EXPECT_EQ(line("--batches-per-step 10").log_every, 10);
  const Resolution both = resolve_line(std::string(kCifar) + "--batches-per-step 10 --log-freq 7");
  EXPECT_EQ(both.config.log_every, 7);
  EXPECT_EQ(both.notices,
            (std::vector<std::string>{
                "--batches-per-step has no effect here: --log-freq sets the interval"}));
}

/// The count of options without effect is that of the table; each says so once, and none changes
/// the run.
TEST(IdleOptionsTest, SayWhyAndChangeNothing) {
  const run::Run plain = line("");
  int idle = 0;
  for (const Field& spec : field_table()) {
    if (spec.idle.empty()) continue;
    ++idle;
    const std::string value = spec.type == ValueType::Flag ? "true"
                              : spec.type == ValueType::Choice
                                  ? split_list(spec.value_name, '|').front()
                                  : "1";
    const Resolution resolution = resolve_line(fmt::format("{}--{}={}", kCifar, spec.name, value));
    EXPECT_EQ(resolution.notices, (std::vector<std::string>{fmt::format(
                                      "--{} has no effect here: {}", spec.name, spec.idle)}));
    EXPECT_EQ(resolution.config, plain) << spec.name;
  }
  EXPECT_EQ(idle, 9);
}

TEST(NondeterministicOptionTest, HasAnEffectOnlyWhereCudnnComputes) {
  const std::string given = std::string(kCifar) + "--allow-nondeterministic";
  const Resolution plain = resolve_line(kCifar, {.cores = 2, .has_cudnn = true});
  const Resolution varies = resolve_line(given, {.cores = 2, .has_cudnn = true});
  EXPECT_FALSE(plain.config.allow_nondeterministic);
  EXPECT_FALSE(contains(to_toml(plain.config), "nondeterministic"));
  EXPECT_TRUE(varies.config.allow_nondeterministic);
  EXPECT_TRUE(contains(to_toml(varies.config), "allow-nondeterministic = true"));
  EXPECT_EQ(varies.notices, plain.notices);
  const Resolution none = resolve_line(given);
  EXPECT_EQ(none.config, line(""));  // and nothing of it is recorded
  std::vector<std::string> expected = plain.notices;
  expected.insert(expected.begin(),
                  "--allow-nondeterministic has no effect here: cuDNN does not compute in this "
                  "build, whose kernels always sum in the same order");
  EXPECT_EQ(none.notices, expected);
}

// It changes arithmetic, not mathematics: as --threads-per-device.
TEST(NondeterministicOptionTest, MayChangeOnRestore) {
  const MachineFacts machine{.cores = 2, .has_cudnn = true};
  const Patch recorded = parse_config(
      to_toml(resolve_line(std::string(kCifar) + "--allow-nondeterministic", machine).config),
      "c.toml");
  const auto continued = [&](std::string_view rest) {
    const Patch given = load_options(Command::Restore, words(rest), 0, environment_of({}));
    const Patch options = continued_options(given, recorded);
    return resolve(options, published_facts(options), machine).config.allow_nondeterministic;
  };
  EXPECT_TRUE(continued(""));
  EXPECT_FALSE(continued("--allow-nondeterministic=false"));
}

TEST(ScratchCapsTest, AreSharesOfTheMemoryOfADevice) {
  EXPECT_EQ(line("").scratch_caps, std::vector<std::int64_t>{});
  EXPECT_EQ(line("--available-memory-proportion 0.25 --device-memory 1MB").scratch_caps,
            std::vector<std::int64_t>{250'000});
  EXPECT_EQ(line("--shards 2 --gradients-to-accumulate 2 --pipeline-splits b2/0 "
                 "--available-memory-proportion 0.1 0.2 0.3 0.4 --device-memory 1000")
                .scratch_caps,
            (std::vector<std::int64_t>{100, 200, 300, 400}));
}

TEST(DeviceNumbersTest, AreOneForEachDeviceOrTheFirstOfARow) {
  const std::string two =
      "--shards 2 --gradients-to-accumulate 2 --pipeline-splits b2/0 --threads-per-device 1 "
      "--select-ipus ";
  EXPECT_EQ(line("--select-ipus AUTO").device_numbers, std::vector<int>{});
  EXPECT_EQ(line("--threads-per-device 1 --select-ipus 1").device_numbers, std::vector<int>{1});
  EXPECT_EQ(line("--threads-per-device 1 --select-ipus 1 0").device_numbers, std::vector<int>{1});
  EXPECT_EQ(line(two + "1 0").device_numbers, (std::vector<int>{1, 0}));
  EXPECT_EQ(line(two + "0").device_numbers, (std::vector<int>{0, 1}));
}

TEST(ShardingFilterTest, HasNoEffectOnAPipelineAndSaysSo) {
  const std::string filter = " --sharding-exclude-filter b1 --sharding-include-filter relu";
  const std::string stages = "--shards 2 --pipeline-depth 4";
  const std::string tail =
      " has no effect here: it is for automatic sharding with one micro-batch; a pipeline is cut "
      "at --pipeline-splits or by --plan";
  for (const char* splits : {" --pipeline-splits b2/0/relu", " --pipeline-splits auto"}) {
    const Resolution plain = resolve_line(std::string(kCifar) + stages + splits);
    const Resolution filtered = resolve_line(std::string(kCifar) + stages + splits + filter);
    EXPECT_EQ(filtered.config.splits, plain.config.splits);
    for (const char* name : {"--sharding-include-filter", "--sharding-exclude-filter"})
      EXPECT_EQ(std::ranges::count(filtered.notices, name + tail), 1) << name;
    EXPECT_EQ(filtered.notices.size(), plain.notices.size() + 2);
    EXPECT_FALSE(contains(to_toml(filtered.config), "sharding"));
  }
  // Where nothing is pipelined it has its effect.
  const Resolution sharded =
      resolve_line(std::string(kCifar) + "--shards 2 --sharding-exclude-filter b1 b2");
  for (const std::string& notice : sharded.notices) EXPECT_FALSE(contains(notice, "filter"));
}

TEST(ValidationBatchTest, IsNoLargerThanTheNumberOfImages) {
  const auto resolved = [](const std::string& rest, std::int64_t images) {
    const Patch options = train_options(std::string(kCifar) + rest);
    DatasetFacts facts = published_facts(options);
    facts.validation_size = images;
    return resolve(options, facts, {.cores = 4});
  };
  // The same for any number of replicas, because its results are.
  for (const char* replicas : {"", " --replicas 3 --ranks 1"}) {
    const Resolution capped = resolved("--valid-batch-size 100000" + std::string(replicas), 100);
    EXPECT_EQ(capped.config.validation_batch_size, 100);
    EXPECT_EQ(std::ranges::count(
                  capped.notices,
                  "--valid-batch-size 100000 is reduced to 100, the number of validation images"),
              1);
  }
  const Resolution whole = resolved("--valid-batch-size 100", 100);
  EXPECT_EQ(whole.config.validation_batch_size, 100);
  EXPECT_TRUE(whole.notices.empty());
  // Nobody asked for a number: nothing to say.
  const Resolution usual = resolved("--batch-size 256", 100);
  EXPECT_EQ(usual.config.validation_batch_size, 100);
  EXPECT_TRUE(usual.notices.empty());
}

}  // namespace
}  // namespace millrace::cli
