// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"
#include "tests/models/graph_queries.hpp"

namespace millrace::models {
namespace {

using Names = std::vector<std::string>;

ModelOptions cifar(std::string_view size, std::int64_t classes = 10) {
  return options_of("resnet", Task::Cifar, size, classes);
}

ModelOptions imagenet(std::string_view size, std::int64_t classes = 1000) {
  return options_of("resnet", Task::ImageNet, size, classes);
}

ModelOptions with_block(ModelOptions options, BlockKind block) {
  options.block = block;
  return options;
}

/// Options that select the ResNet of another trainer.
ModelOptions identity_in_stage_one(std::string_view size) {
  return with(imagenet(size),
              [](ModelOptions& o) { o.residual.stage_one = StageOneShortcut::Identity; });
}

ModelOptions version2(std::string_view size) {
  return with(imagenet(size), [](ModelOptions& o) { o.residual.version = ResNetVersion::V2; });
}

Graph built_with(InitialiserSet set, std::string_view size) {
  return build_model(with(imagenet(size), [&](ModelOptions& o) { o.residual.initialisers = set; }));
}

/// Names of the gammas that start at zero, the others at one.
Names zero_gammas(const Graph& graph) {
  Names names;
  for (const Parameter& p : graph.parameters) {
    if (p.role != ParameterRole::Gamma || p.init.kind == Initialiser::Kind::One) continue;
    EXPECT_EQ(p.init.kind, Initialiser::Kind::Zero) << p.name;
    names.push_back(p.name);
  }
  return names;
}

// Trainable parameters of the published tables. RN18 and RN34 have 4,224 more than torchvision's
// 11,689,512 and 21,797,672: the projection of stage 1, as in the IPU trainer. RN50, RN101 and
// RN152 equal torchvision's.
const Published kPublished[] = {
    // ImageNet, 1000 classes
    {"ImageNet10", imagenet("10"), 5'423'016},
    {"ImageNet14", imagenet("14"), 10'064'936},
    {"ImageNet18", imagenet("18"), 11'693'736, 1.83},
    {"ImageNet26", imagenet("26"), 15'995'176},
    {"ImageNet34", imagenet("34"), 21'801'896, 3.68},
    {"ImageNet50", imagenet("50"), 25'557'032, 4.09},
    {"ImageNet101", imagenet("101"), 44'549'160, 7.80},
    {"ImageNet152", imagenet("152"), 60'192'808},
    // row "HX/TPU also 200 [3,24,36,3]" has no count; timm's resnet200 of the same widths
    {"ImageNet200", imagenet("200"), 64'673'832},
    // 1001 classes
    {"ImageNet50With1001Classes", imagenet("50", 1001), 25'559'081},
    // CIFAR-10
    {"Cifar8", cifar("8"), 75'290, 0.012, 0.0005},
    {"Cifar11", cifar("11"), 127'642},
    {"Cifar14", cifar("14"), 172'506},
    {"Cifar20", cifar("20"), 269'722, 0.041, 0.0005},
    {"Cifar29", cifar("29"), 313'114},
    {"Cifar32", cifar("32"), 464'154, 0.069, 0.0005},
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
    // torchvision's
    {"Identity18", identity_in_stage_one("18"), 11'689'512},
    {"Identity34", identity_in_stage_one("34"), 21'797'672},
    {"Identity50", identity_in_stage_one("50"), 25'557'032},
    {"Identity101", identity_in_stage_one("101"), 44'549'160},
    {"Identity152", identity_in_stage_one("152"), 60'192'808},
    // The recipes give no count. These are the trainable parameters that keras.applications reports
    // for ResNet50V2, 101V2 and 152V2. Without biases (19,008, 36,416 and 51,776) they equal v1.5
    // minus the norms of the four projections (2 * (256 + 512 + 1024 + 2048)).
    {"Version2Size50", version2("50"), 25'568'360},
    {"Version2Size101", version2("101"), 44'577'896},
    {"Version2Size152", version2("152"), 60'236'904},
};

TEST(ResNet, ParametersAndMacsEqualThePublishedTable) { expect_published(kPublished); }

// NVIDIA's ResNet-50 asserts the same number: 53 convolutions, 106 gammas and betas, and two for
// fc1.
TEST(ResNet, FiftyHas161TrainableTensors) {
  const Graph graph = build_model(imagenet("50"));
  const auto count = [&](const auto& counts) {
    return std::count_if(graph.parameters.begin(), graph.parameters.end(), counts);
  };
  EXPECT_EQ(count([](const Parameter& p) { return p.trainable(); }), 161);
  EXPECT_EQ(count([](const Parameter& p) { return p.shape.size() == 4; }), 53);
}

TEST(ResNet, LayersAreNamedAsTheSplitsOfTheRecipes) {
  std::string expected = "b0";
  for (const auto& [stage, blocks] : {std::pair{1, 3}, {2, 4}, {3, 6}, {4, 3}})
    for (int i = 0; i < blocks; ++i) expected += fmt::format(" b{0}/{1} b{0}/{1}/relu", stage, i);
  EXPECT_EQ(layer_names(build_model(imagenet("50"))), expected + " reduce_mean fc1 loss");
}

TEST(ResNet, OpsOfABottleneckBlock) {
  const Graph graph = build_model(imagenet("50"));
  EXPECT_EQ(op_names(graph, "b0"), "conv norm relu pool");
  EXPECT_EQ(op_names(graph, "b3/0"),
            "conv1 norm1 relu1 conv2 norm2 relu2 conv3 norm3 shortcut_conv shortcut_norm add");
  EXPECT_EQ(op_names(graph, "b3/1"), "conv1 norm1 relu1 conv2 norm2 relu2 conv3 norm3 add");
  for (const char* alone : {"b3/1/relu", "reduce_mean", "fc1", "loss"})
    EXPECT_EQ(op_names(graph, alone), alone);
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
  const auto channels = [&](std::string_view shortcut) {
    const ShortcutPad pad = kind_of<ShortcutPad>(build_model(options), shortcut);
    EXPECT_EQ(pad.stride, (Extent{2, 2}));
    return std::pair(pad.channels_before, pad.channels_after);
  };
  using Channels = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(channels("b2/0/shortcut"), Channels(0, 16));
  options.shortcut_pad = ShortcutPadSide::Both;
  EXPECT_EQ(channels("b2/0/shortcut"), Channels(8, 8));
  EXPECT_EQ(channels("b3/0/shortcut"), Channels(16, 16));
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
  Names expected;
  for (const auto& [stage, blocks] : {std::pair{1, 3}, {2, 4}, {3, 6}, {4, 3}})
    for (int i = 1; i < blocks; ++i)
      expected.push_back(fmt::format("b{}/{}/norm3/gamma", stage, i));
  for (const NormKind norm : {NormKind::Batch, NormKind::Group})
    EXPECT_EQ(
        zero_gammas(build_model(with(imagenet("50"), [&](ModelOptions& o) { o.norm = norm; }))),
        expected);
  EXPECT_EQ(zero_gammas(build_model(cifar("20"))), Names());
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
  for (const char* size : {"21", "50"})
    refuses(cifar(size), fmt::format("model resnet has no size {} for CIFAR; sizes: 8, 11, 14, 20, "
                                     "29, 32, 38, 44, 47, 56, 65, 110",
                                     size));
  refuses(with_block(cifar("29"), BlockKind::Basic),
          "model resnet has no size 29 with basic blocks for CIFAR; sizes: 8, 14, 20, 32, 44, 56, "
          "110");
  refuses(imagenet("20"),
          "model resnet has no size 20 for ImageNet; sizes: 10, 14, 18, 26, 34, 50, 101, 152, 200");
  refuses(
      with_block(imagenet("18"), BlockKind::Bottleneck),
      "model resnet has no size 18 with bottleneck blocks for ImageNet; sizes: 14, 26, 50, 101, "
      "152, 200");
  refuses(with(cifar("20"), [](ModelOptions& o) { o.shortcut = 'C'; }),
          "model resnet has no shortcut type C; types: A, B");
}

// ---- variants -----------------------------------------------------------------------------------

TEST(ResNetVariants, IdentityInStageOneNeedsMatchingShapes) {
  const Graph basic = build_model(identity_in_stage_one("18"));
  EXPECT_EQ(reads(basic, "b1/0/add", 1), "b0/pool");
  EXPECT_TRUE(basic.find("b2/0/shortcut_conv").valid());
  EXPECT_TRUE(build_model(identity_in_stage_one("50")).find("b1/0/shortcut_conv").valid());
}

TEST(ResNetVariants, PaddingRules) {
  const auto pads = [](PaddingRule rule) {
    const Graph graph =
        build_model(with(imagenet("50"), [&](ModelOptions& o) { o.padding = rule; }));
    EXPECT_EQ(output_of(graph, "b0/pool"), (Shape{56, 56, 64}));
    EXPECT_EQ(output_of(graph, "b4/2/relu"), (Shape{7, 7, 2048}));
    EXPECT_EQ(kind_of<Conv>(graph, "b2/1/conv2").pad, same(1));
    return std::vector<Padding>{kind_of<Conv>(graph, "b0/conv").pad,
                                kind_of<Pool>(graph, "b0/pool").pad,
                                kind_of<Conv>(graph, "b2/0/conv2").pad};
  };
  using Pads = std::vector<Padding>;
  const Padding after = {0, 1, 0, 1};
  EXPECT_EQ(pads(PaddingRule::Ipu), (Pads{same(3), after, same(1)}));
  EXPECT_EQ(pads(PaddingRule::Torch), (Pads{same(3), same(1), same(1)}));
  EXPECT_EQ(pads(PaddingRule::Same), (Pads{{2, 3, 2, 3}, after, after}));
  EXPECT_EQ(pads(PaddingRule::Keras), (Pads{same(3), after, after}));
}

// The table of initializers, one expectation per row.
TEST(ResNetVariants, InitialisersOfEachTrainer) {
  using Kind = Initialiser::Kind;
  const Initialiser fan_in = {Kind::VarianceScaling, 1.0, Initialiser::Fan::In};
  const Initialiser he_in = {Kind::VarianceScaling, 2.0, Initialiser::Fan::In};
  const Initialiser he_out = {Kind::VarianceScaling, 2.0, Initialiser::Fan::Out};
  const Initialiser glorot = {.kind = Kind::GlorotUniform};
  const Initialiser narrow = {.kind = Kind::Normal, .scale = 0.01};
  const auto expect = [](InitialiserSet set, const Initialiser& conv, const Initialiser& dense) {
    const Graph graph = built_with(set, "50");
    EXPECT_EQ(start_of(graph, "b0/conv/kernel"), conv);
    EXPECT_EQ(start_of(graph, "b2/0/shortcut_conv/kernel"), conv);
    EXPECT_EQ(start_of(graph, "fc1/kernel"), dense);
    EXPECT_EQ(start_of(graph, "fc1/bias").kind, Kind::Zero);
  };
  expect(InitialiserSet::Ipu, fan_in, glorot);
  expect(InitialiserSet::Nvidia, he_out, he_out);
  expect(InitialiserSet::NvidiaFanIn, he_in, he_in);
  expect(InitialiserSet::Habana, fan_in, glorot);
  expect(InitialiserSet::HabanaKeras, he_in, narrow);
  expect(InitialiserSet::Surfsara, fan_in, narrow);
  expect(InitialiserSet::KerasApplications, glorot, glorot);
}

TEST(ResNetVariants, ZeroGammasOfEachTrainer) {
  EXPECT_EQ(built_with(InitialiserSet::Ipu, "50"), build_model(imagenet("50")));
  EXPECT_EQ(zero_gammas(built_with(InitialiserSet::Surfsara, "50")).size(), 16u);
  const Names basic = zero_gammas(built_with(InitialiserSet::Surfsara, "18"));
  ASSERT_EQ(basic.size(), 8u);
  EXPECT_EQ(basic.front(), "b1/0/norm2/gamma");
  for (const InitialiserSet set :
       {InitialiserSet::Nvidia, InitialiserSet::NvidiaFanIn, InitialiserSet::Habana,
        InitialiserSet::HabanaKeras, InitialiserSet::KerasApplications}) {
    EXPECT_EQ(zero_gammas(built_with(set, "50")), Names());
  }
}

TEST(ResNetVersion2, NormAndReluComeFirst) {
  const Graph graph = build_model(version2("50"));
  EXPECT_EQ(op_names(graph, "b0"), "conv pool");
  EXPECT_EQ(op_names(graph, "b3/1"), "norm1 relu1 conv1 norm2 relu2 conv2 norm3 relu3 conv3 add");
  EXPECT_EQ(op_names(graph, "post"), "norm relu");
  EXPECT_FALSE(graph.find("b3/1/relu").valid());
  EXPECT_EQ(reads(graph, "b3/0/shortcut_conv"), "b3/0/relu1");
  EXPECT_EQ(reads(graph, "b3/1/add", 1), "b3/0/add");
  EXPECT_EQ(reads(graph, "post"), "b4/2/add");
}

TEST(ResNetVersion2, StridesInTheLastBlockOfAStage) {
  const Graph graph = build_model(version2("50"));
  EXPECT_EQ(kind_of<Conv>(graph, "b1/2/conv2").stride, (Extent{2, 2}));
  EXPECT_EQ(kind_of<ShortcutPad>(graph, "b1/2/shortcut"), (ShortcutPad{.stride = {2, 2}}));
  EXPECT_EQ(kind_of<Conv>(graph, "b2/0/conv2").stride, (Extent{1, 1}));
  EXPECT_FALSE(graph.find("b4/2/shortcut").valid());
  EXPECT_EQ(output_of(graph, "b1/1/add"), (Shape{56, 56, 256}));
  EXPECT_EQ(output_of(graph, "b1/2/add"), (Shape{28, 28, 256}));
  EXPECT_EQ(output_of(graph, "post/relu"), (Shape{7, 7, 2048}));
}

TEST(ResNetVersion2, BiasesWhereNoNormFollows) {
  const Graph graph = build_model(version2("50"));
  EXPECT_TRUE(kind_of<Conv>(graph, "b0/conv").bias);
  EXPECT_TRUE(kind_of<Conv>(graph, "b1/0/conv3").bias);
  EXPECT_TRUE(kind_of<Conv>(graph, "b1/0/shortcut_conv").bias);
  EXPECT_FALSE(kind_of<Conv>(graph, "b1/0/conv1").bias);
  EXPECT_FALSE(kind_of<Conv>(graph, "b1/0/conv2").bias);
  EXPECT_TRUE(zero_gammas(graph).empty());
}

TEST(ResNetVersion2, RefusesWhatItDoesNotHave) {
  refuses(version2("18"),
          "model resnet has no size 18 in version 2 for ImageNet; sizes: 50, 101, 152");
  refuses(with_block(version2("50"), BlockKind::Basic),
          "model resnet has no basic blocks in version 2; blocks: bottleneck");
  refuses(with(version2("50"), [](ModelOptions& o) { o.task = Task::Cifar; }),
          "model resnet has no version 2 for CIFAR; versions: 1.5");
}

}  // namespace
}  // namespace millrace::models
