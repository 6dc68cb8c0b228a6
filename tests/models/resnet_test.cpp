// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"

#include "tests/models/graph_queries.hpp"

namespace millrace::models {
namespace {

ModelOptions cifar(std::string size, std::int64_t classes = 10) {
  ModelOptions options;
  options.size = std::move(size);
  options.classes = classes;
  return options;
}

ModelOptions imagenet(std::string size, std::int64_t classes = 1000) {
  ModelOptions options;
  options.size = std::move(size);
  options.task = Task::ImageNet;
  options.classes = classes;
  options.image = {224, 224, 3};
  options.shortcut = 'B';
  return options;
}

ModelOptions with_block(ModelOptions options, BlockKind block) {
  options.block = block;
  return options;
}

// Trainable parameters of the published tables. RN18 and RN34 have 4,224 more than torchvision's
// 11,689,512 and 21,797,672: the projection of stage 1, as in the IPU trainer. RN50, RN101 and
// RN152 equal torchvision's.
const Count kCounts[] = {
    // ImageNet, 1000 classes
    {"ImageNet10", imagenet("10"), 5'423'016},
    {"ImageNet14", imagenet("14"), 10'064'936},
    {"ImageNet18", imagenet("18"), 11'693'736},
    {"ImageNet26", imagenet("26"), 15'995'176},
    {"ImageNet34", imagenet("34"), 21'801'896},
    {"ImageNet50", imagenet("50"), 25'557'032},
    {"ImageNet101", imagenet("101"), 44'549'160},
    {"ImageNet152", imagenet("152"), 60'192'808},
    // row "HX/TPU also 200 [3,24,36,3]" has no count; timm's resnet200 of the same widths
    {"ImageNet200", imagenet("200"), 64'673'832},
    // 1001 classes
    {"ImageNet50With1001Classes", imagenet("50", 1001), 25'559'081},
    // CIFAR-10
    {"Cifar8", cifar("8"), 75'290},
    {"Cifar11", cifar("11"), 127'642},
    {"Cifar14", cifar("14"), 172'506},
    {"Cifar20", cifar("20"), 269'722},
    {"Cifar29", cifar("29"), 313'114},
    {"Cifar32", cifar("32"), 464'154},
    {"Cifar38", cifar("38"), 405'850},
    {"Cifar44", cifar("44"), 658'586},
    {"Cifar47", cifar("47"), 498'586},
    {"Cifar56", cifar("56"), 591'322},
    {"Cifar56Bottleneck", with_block(cifar("56"), BlockKind::Bottleneck), 591'322},
    {"Cifar56Basic", with_block(cifar("56"), BlockKind::Basic), 853'018},
    {"Cifar65", cifar("65"), 684'058},
    {"Cifar110", cifar("110"), 1'727'962},
    // CIFAR-100: 5,850 more for basic blocks, 23,130 for bottleneck blocks
    {"Cifar100Size11", cifar("11", 100), 127'642 + 23'130},
    {"Cifar100Size20", cifar("20", 100), 269'722 + 5'850},
};

TEST(ResNet, ParametersEqualThePublishedTable) { expect_counts(kCounts); }

// NVIDIA's ResNet-50 asserts the same number: 53 convolutions, 106 gammas and betas, and two for
// fc1.
TEST(ResNet, FiftyHas161TrainableTensors) {
  const Graph graph = build_model(imagenet("50"));
  int tensors = 0;
  int kernels = 0;
  for (const Parameter& p : graph.parameters) {
    tensors += p.trainable() ? 1 : 0;
    kernels += p.trainable() && p.shape.size() == 4 ? 1 : 0;
  }
  EXPECT_EQ(tensors, 161);
  EXPECT_EQ(kernels, 53);
}

// The published figures have two or three digits; ours must round to them.
TEST(ResNet, ForwardMacsRoundToThePublishedFigures) {
  const auto giga = [](const std::string& size) {
    return std::round(static_cast<double>(build_model(imagenet(size)).forward_macs()) / 1e7) / 100;
  };
  EXPECT_DOUBLE_EQ(giga("18"), 1.83);
  EXPECT_DOUBLE_EQ(giga("34"), 3.68);
  EXPECT_DOUBLE_EQ(giga("50"), 4.09);
  EXPECT_DOUBLE_EQ(giga("101"), 7.80);
  const auto mega = [](const std::string& size) {
    return std::round(static_cast<double>(build_model(cifar(size)).forward_macs()) / 1e6);
  };
  EXPECT_EQ(mega("8"), 12);
  EXPECT_EQ(mega("20"), 41);
  EXPECT_EQ(mega("32"), 69);
}

TEST(ResNet, LayersAreNamedAsTheSplitsOfTheRecipes) {
  const Graph graph = build_model(imagenet("50"));
  std::vector<std::string> expected = {"b0"};
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 1; stage <= 4; ++stage) {
    for (int i = 0; i < blocks[stage - 1]; ++i) {
      expected.push_back(fmt::format("b{}/{}", stage, i));
      expected.push_back(fmt::format("b{}/{}/relu", stage, i));
    }
  }
  expected.insert(expected.end(), {"reduce_mean", "fc1", "loss"});
  std::vector<std::string> names;
  for (const Layer& layer : graph.layers) names.push_back(layer.name);
  EXPECT_EQ(names, expected);
}

TEST(ResNet, OpsOfABottleneckBlock) {
  const Graph graph = build_model(imagenet("50"));
  using Names = std::vector<std::string>;
  EXPECT_EQ(op_names(graph, "b0"), (Names{"b0/conv", "b0/norm", "b0/relu", "b0/pool"}));
  EXPECT_EQ(
      op_names(graph, "b3/0"),
      (Names{"b3/0/conv1", "b3/0/norm1", "b3/0/relu1", "b3/0/conv2", "b3/0/norm2", "b3/0/relu2",
             "b3/0/conv3", "b3/0/norm3", "b3/0/shortcut_conv", "b3/0/shortcut_norm", "b3/0/add"}));
  EXPECT_EQ(op_names(graph, "b3/1"),
            (Names{"b3/1/conv1", "b3/1/norm1", "b3/1/relu1", "b3/1/conv2", "b3/1/norm2",
                   "b3/1/relu2", "b3/1/conv3", "b3/1/norm3", "b3/1/add"}));
  EXPECT_EQ(op_names(graph, "b3/1/relu"), Names{"b3/1/relu"});
  EXPECT_EQ(op_names(graph, "reduce_mean"), Names{"reduce_mean"});
  EXPECT_EQ(op_names(graph, "fc1"), Names{"fc1"});
  EXPECT_EQ(op_names(graph, "loss"), Names{"loss"});
  EXPECT_EQ(graph.parameter(graph.op(graph.find("fc1")).parameters[0]).name, "fc1/kernel");
  EXPECT_EQ(graph.parameter(graph.op(graph.find("fc1")).parameters[1]).name, "fc1/bias");
}

TEST(ResNet, OtherImageSizesBuildWithTheSameParameters) {
  ModelOptions options = imagenet("18");
  options.image = {64, 64, 3};
  const Graph small = build_model(options);
  EXPECT_EQ(small.trainable_elements(), 11'693'736);
  EXPECT_EQ(output_of(small, "b4/1/relu"), (Shape{2, 2, 512}));
  for (const Shape image : {Shape{1, 1, 3}, Shape{33, 47, 3}, Shape{225, 97, 3}}) {
    options.image = image;
    EXPECT_EQ(build_model(options).trainable_elements(), 11'693'736);
    ModelOptions tiny = cifar("20");
    tiny.image = image;
    EXPECT_EQ(build_model(tiny).trainable_elements(), 269'722);
  }
  ModelOptions gray = cifar("20");
  gray.image = {28, 28, 1};
  EXPECT_EQ(build_model(gray).trainable_elements(), 269'722 - 2 * 9 * 16);
}

TEST(ResNet, ShortcutAPadsChannelsAtTheEndOrOnBothSides) {
  ModelOptions options = cifar("20");
  EXPECT_EQ(kind_of<ShortcutPad>(build_model(options), "b2/0/shortcut"),
            (ShortcutPad{.stride = {2, 2}, .channels_before = 0, .channels_after = 16}));
  options.shortcut_pad = ShortcutPadSide::Both;
  EXPECT_EQ(kind_of<ShortcutPad>(build_model(options), "b2/0/shortcut"),
            (ShortcutPad{.stride = {2, 2}, .channels_before = 8, .channels_after = 8}));
  EXPECT_EQ(kind_of<ShortcutPad>(build_model(options), "b3/0/shortcut"),
            (ShortcutPad{.stride = {2, 2}, .channels_before = 16, .channels_after = 16}));
}

TEST(ResNet, ShortcutsOfTheOtherTaskWork) {
  ModelOptions options = cifar("20");
  options.shortcut = 'B';
  const Graph projected = build_model(options);
  // 1x1 convolutions and their norms in the first block of each stage, the first included.
  EXPECT_EQ(projected.trainable_elements(),
            269'722 + (16 * 16 + 32) + (16 * 32 + 64) + (32 * 64 + 128));
  EXPECT_TRUE(projected.find("b1/0/shortcut_conv").valid());
  EXPECT_FALSE(projected.find("b1/1/shortcut_conv").valid());

  options = imagenet("18");
  options.shortcut = 'A';
  const Graph padded = build_model(options);
  EXPECT_FALSE(padded.find("b1/0/shortcut").valid());
  EXPECT_EQ(kind_of<ShortcutPad>(padded, "b4/0/shortcut"),
            (ShortcutPad{.stride = {2, 2}, .channels_before = 0, .channels_after = 256}));
  // torchvision's count minus its three projections
  EXPECT_EQ(padded.trainable_elements(),
            11'689'512 - (64 * 128 + 256) - (128 * 256 + 512) - (256 * 512 + 1024));
}

TEST(ResNet, ZeroGammaOnlyWhereTheShortcutIsTheIdentity) {
  for (const NormKind norm : {NormKind::Batch, NormKind::Group}) {
    ModelOptions options = imagenet("50");
    options.norm = norm;
    for (const Parameter& p : build_model(options).parameters) {
      if (p.role != ParameterRole::Gamma) continue;
      const bool last = p.name.ends_with("/norm3/gamma");
      const bool projects = p.name.find("/0/norm3") != std::string::npos;
      const auto expected = last && !projects ? Initialiser::Kind::Zero : Initialiser::Kind::One;
      EXPECT_EQ(p.init.kind, expected) << p.name;
    }
  }
  for (const Parameter& p : build_model(cifar("20")).parameters) {
    if (p.role != ParameterRole::Gamma) continue;
    EXPECT_EQ(p.init.kind, Initialiser::Kind::One) << p.name;
  }
}

TEST(ResNet, InitialisersOfTheRecipe) {
  const Initialiser conv = {Initialiser::Kind::VarianceScaling, 1.0, Initialiser::Fan::In};
  for (const Parameter& p : build_model(imagenet("50")).parameters) {
    if (p.name == "fc1/kernel") {
      EXPECT_EQ(p.init.kind, Initialiser::Kind::GlorotUniform);
    } else if (p.role == ParameterRole::Kernel) {
      EXPECT_EQ(p.init, conv) << p.name;
    } else if (p.role == ParameterRole::Bias) {
      EXPECT_EQ(p.init.kind, Initialiser::Kind::Zero);
    }
  }
}

TEST(ResNet, NormsTakeTheirConstants) {
  ModelOptions options = cifar("20");
  EXPECT_EQ(kind_of<BatchNorm>(build_model(options), "b0/norm"),
            (BatchNorm{.epsilon = 1e-5, .decay = 0.97}));
  options.batch_norm_decay = 0.9;
  options.norm_epsilon = 1e-3;
  EXPECT_EQ(kind_of<BatchNorm>(build_model(options), "b3/2/norm2"),
            (BatchNorm{.epsilon = 1e-3, .decay = 0.9}));
  options.norm = NormKind::Group;
  options.groups = 8;
  EXPECT_EQ(kind_of<GroupNorm>(build_model(options), "b3/2/norm2"),
            (GroupNorm{.groups = 8, .epsilon = 1.53e-5, .order = GroupOrder::Contiguous}));
}

TEST(ResNet, UnknownSizesListTheKnownOnes) {
  refuses(
      cifar("21"),
      "model resnet has no size 21 for CIFAR; sizes: 8, 11, 14, 20, 29, 32, 38, 44, 47, 56, 65, "
      "110");
  refuses(
      cifar("50"),
      "model resnet has no size 50 for CIFAR; sizes: 8, 11, 14, 20, 29, 32, 38, 44, 47, 56, 65, "
      "110");
  refuses(with_block(cifar("29"), BlockKind::Basic),
          "model resnet has no size 29 with basic blocks for CIFAR; sizes: 8, 14, 20, 32, 44, 56, "
          "110");
  refuses(imagenet("20"),
          "model resnet has no size 20 for ImageNet; sizes: 10, 14, 18, 26, 34, 50, 101, 152, 200");
  refuses(
      with_block(imagenet("18"), BlockKind::Bottleneck),
      "model resnet has no size 18 with bottleneck blocks for ImageNet; sizes: 14, 26, 50, 101, "
      "152, 200");
  ModelOptions options = cifar("20");
  options.shortcut = 'C';
  refuses(options, "model resnet has no shortcut type C; types: A, B");
}

}  // namespace
}  // namespace millrace::models
