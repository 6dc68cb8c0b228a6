// SPDX-License-Identifier: Apache-2.0
//
// Options of the families of networks, and what the IPU trainer trains them with by default.
#include "models/registry.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

run::Run line(std::string_view data, std::string_view rest) {
  return resolve_line(std::string(data) + std::string(rest)).config;
}

struct Defaults {
  std::string_view data;
  std::string_view model;
  std::string_view size;
  std::int64_t image;
  std::int64_t batch_size;
  models::NormKind norm;
  std::int64_t groups;
  double decay;
  std::size_t excludes;
  double sgd_rate;  ///< of one image
  double momentum_rate;
  double epochs;
  double smoothing;
};

/// The table of the trainer's defaults (recipes B.2), as it stands there.
TEST(FamilyDefaultsTest, AreThoseOfTheIpuTrainer) {
  using models::NormKind;
  const std::vector<Defaults> table = {
      {kImageNet, "resnet", "18", 224, 4, NormKind::Group, 32, 1e-4, 2, 0x1p-8, 0x1p-11, 100, 0},
      {kCifar, "resnet", "20", 32, 32, NormKind::Batch, 16, 1e-6, 0, 0x1p-6, 0x1p-6, 160, 0},
      {kImageNet, "resnext", "14", 224, 1, NormKind::Group, 32, 1e-4, 2, 0x1p-8, 0x1p-11, 100, 0},
      {kCifar, "resnext", "11", 32, 8, NormKind::Batch, 16, 1e-6, 0, 0x1p-6, 0x1p-6, 160, 0},
      {kImageNet, "squeezenet", "1.0", 224, 2, NormKind::Group, 32, 1e-4, 2, 0x1p-8, 0x1p-11, 100,
       0},
      {kCifar, "squeezenet", "1.0", 32, 128, NormKind::Group, 32, 1e-6, 0, 0x1p-10, 0x1p-10, 160,
       0},
      {kImageNet, "efficientnet", "B0", 224, 4, NormKind::Group, 4, 1e-5, 2, 0x1p-7, 0x1p-10, 350,
       0.1},
      {kCifar, "efficientnet", "cifar", 32, 8, NormKind::Group, 4, 1e-6, 0, 0x1p-6, 0x1p-6, 300, 0},
  };
  for (const Defaults& d : table) {
    SCOPED_TRACE(std::string(d.model) + " " + std::string(d.data));
    const std::string model = "--model " + std::string(d.model);
    const run::Run config = line(d.data, model);
    EXPECT_EQ(config.model.size, d.size);
    EXPECT_EQ(config.model.image.h, d.image);
    EXPECT_EQ(config.batch_size, d.batch_size);
    EXPECT_EQ(config.model.norm, d.norm);
    EXPECT_EQ(config.model.groups, d.groups);
    EXPECT_EQ(config.optimiser.weight_decay, d.decay);
    EXPECT_EQ(config.optimiser.decay_excludes.size(), d.excludes);
    const auto batch = static_cast<double>(d.batch_size);
    EXPECT_EQ(config.learning_rate.base_rate, d.sgd_rate * batch);
    EXPECT_EQ(line(d.data, model + " --optimiser momentum").learning_rate.base_rate,
              d.momentum_rate * batch);
    EXPECT_EQ(config.iterations, static_cast<std::int64_t>(d.epochs) * config.iterations_per_epoch);
    EXPECT_EQ(config.label_smoothing, d.smoothing);
  }
}

TEST(FamilyDefaultsTest, RmspropAndLarsHaveNoRateWhereTheTrainerHasNone) {
  EXPECT_EQ(line(kImageNet, "--model efficientnet --optimiser RMSprop").learning_rate.base_rate,
            0x1p-14 * 4);
  EXPECT_EQ(line(kCifar, "--optimiser RMSprop").learning_rate.base_rate, 0.5);
  const Failure failure = failure_of([] { (void)line(kImageNet, "--optimiser RMSprop"); });
  EXPECT_EQ(failure.text,
            "--optimiser RMSprop has no default learning rate for resnet on imagenet: give "
            "--base-learning-rate X for 2^X times the total batch, or --abs-learning-rate");
  EXPECT_EQ(line(kImageNet, "--optimiser RMSprop --base-learning-rate -10").learning_rate.base_rate,
            4.0 / 1024);
}

TEST(FamilyOptionsTest, ReachTheModel) {
  const models::ModelOptions residual =
      line(kImageNet,
           "--model-size 50 --resnet-version 2 --padding torch --stage-one-shortcut identity "
           "--initialisers keras-applications --classes 1001 --groups 16 --groups-order strided "
           "--norm-epsilon 1e-6")
          .model;
  EXPECT_EQ(residual.residual.version, models::ResNetVersion::V2);
  EXPECT_EQ(residual.padding, models::PaddingRule::Torch);
  EXPECT_EQ(residual.residual.stage_one, models::StageOneShortcut::Identity);
  EXPECT_EQ(residual.residual.initialisers, models::InitialiserSet::KerasApplications);
  EXPECT_EQ(residual.classes, 1001);
  EXPECT_EQ(residual.group_order, models::GroupOrder::Strided);
  EXPECT_EQ(residual.group_norm_epsilon, 1e-6);
  const models::ModelOptions next =
      line(kCifar,
           "--model resnext --model-size 29 --widenet --convolution-groups 16 --group-dim 8 "
           "--squeeze-excitation")
          .model;
  EXPECT_EQ(next.resnext.widening, models::Widening::Widenet);
  EXPECT_EQ(next.resnext.groups, 16);
  EXPECT_EQ(next.resnext.group_dim, 8);
  EXPECT_EQ(next.resnext.squeeze_excitation, models::SqueezeExcitation::On);
  EXPECT_EQ(line(kCifar, "--model squeezenet --use-bypass").model.squeezenet.bypass,
            models::Bypass::Simple);
  const models::EfficientNetOptions efficient =
      line(kImageNet,
           "--model EfficientNet --dropout-rate 0.25 --block-survival-prob 0.7 --no-se --use-relu "
           "--expand-ratio 4 --group-dim 16 --depth-divisor 16 --top-width 0 --width-coefficient "
           "1.5 --depth-coefficient 1.25 --norm-epsilon 1e-2")
          .model.efficientnet;
  EXPECT_EQ(efficient.dropout_rate, 0.25);
  EXPECT_EQ(efficient.block_survival, 0.7);
  EXPECT_EQ(efficient.squeeze_excitation, models::SqueezeExcitation::Off);
  EXPECT_EQ(efficient.activation, Activation::Relu);
  EXPECT_EQ(efficient.expand_ratio, 4);
  EXPECT_EQ(efficient.group_dim, 16);
  EXPECT_EQ(efficient.depth_divisor, 16);
  EXPECT_EQ(efficient.top_width, 0);
  EXPECT_EQ(efficient.width, 1.5);
  EXPECT_EQ(efficient.depth, 1.25);
  EXPECT_EQ(efficient.norm_epsilon, 1e-2);
}

TEST(FamilyOptionsTest, ImageSizesOfEfficientNetFollowEverySpelling) {
  const std::string model = "--model efficientnet --model-size ";
  for (const char* size : {"B3", "b3", "3"})
    EXPECT_EQ(line(kImageNet, model + size).model.image.h, 300) << size;  // A.5
  EXPECT_EQ(line(kImageNet, model + "7 --image-size 64").model.image.h, 64);
}

/// Every option of a family is refused by the others, saying whose it is.
TEST(FamilyOptionsTest, AreRefusedByOtherFamilies) {
  int refused = 0;
  for (const Field& spec : field_table()) {
    for (const models::Family& family : models::families()) {
      const std::string_view name = family.name;
      if (spec.families == 0 || (spec.families & family_named(name)) != 0) continue;
      const std::string value = spec.type == ValueType::Flag ? "true"
                                : spec.type == ValueType::Choice
                                    ? split_list(spec.value_name, '|').front()
                                : spec.type == ValueType::Integer ? "1"
                                                                  : "0.5";
      const std::string option = "--" + std::string(spec.name);
      const Failure failure = failure_of(
          [&] { (void)line(kCifar, fmt::format("--model {} {}={}", name, option, value)); });
      EXPECT_EQ(failure.kind, ErrorKind::Usage);
      EXPECT_EQ(
          failure.text,
          fmt::format("{} is an option of other networks: it needs --model {}, but the model is {}",
                      option, describe_families(spec.families), name));
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(ModelNumbersTest, MayBeAsLargeAsTheRangesSay) {
  const run::Run deep =
      line(kImageNet, "--model efficientnet --image-size 32 --depth-coefficient 16 --top-width 0");
  EXPECT_EQ(deep.model.efficientnet.depth, 16.0);
  const run::Run wide =
      line(kImageNet, "--model efficientnet --width-coefficient 16 --expand-ratio 64");
  EXPECT_GT(parameters_of(wide), std::int64_t{5'000'000'000});
}

}  // namespace
}  // namespace millrace::cli
