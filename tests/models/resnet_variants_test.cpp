// SPDX-License-Identifier: Apache-2.0
//
// Options that select the ResNet of another trainer; resnet_test.cpp tests the defaults.
#include "models/registry.hpp"
#include "tests/models/graph_queries.hpp"

namespace millrace::models {
namespace {

ModelOptions imagenet(std::string size) {
  ModelOptions options = default_options("resnet", Task::ImageNet);
  options.size = std::move(size);
  options.norm = NormKind::Batch;
  return options;
}

ModelOptions version2(std::string size) {
  ModelOptions options = imagenet(std::move(size));
  options.residual.version = ResNetVersion::V2;
  return options;
}

ModelOptions with_initialisers(InitialiserSet set, ModelOptions options) {
  options.residual.initialisers = set;
  return options;
}

/// Names of the gammas that start at zero.
std::vector<std::string> zero_gammas(const Graph& graph) {
  std::vector<std::string> names;
  for (const Parameter& p : graph.parameters) {
    const bool zero = p.init.kind == Initialiser::Kind::Zero;
    if (p.role == ParameterRole::Gamma && zero) names.push_back(p.name);
  }
  return names;
}

// "RN18 ... (torchvision 11,689,512)", "RN34 ... (tv 21,797,672)", "RN50 25,557,032 (= tv)".
TEST(ResNetVariants, IdentityInStageOneGivesTorchvisionsCounts) {
  const auto count = [](const std::string& size) {
    ModelOptions options = imagenet(size);
    options.residual.stage_one = StageOneShortcut::Identity;
    return build_model(options).trainable_elements();
  };
  EXPECT_EQ(count("18"), 11'689'512);
  EXPECT_EQ(count("34"), 21'797'672);
  EXPECT_EQ(count("50"), 25'557'032);
  EXPECT_EQ(count("101"), 44'549'160);
  EXPECT_EQ(count("152"), 60'192'808);
}

TEST(ResNetVariants, IdentityInStageOneNeedsMatchingShapes) {
  ModelOptions options = imagenet("18");
  options.residual.stage_one = StageOneShortcut::Identity;
  const Graph basic = build_model(options);
  EXPECT_EQ(reads(basic, "b1/0/add", 1), "b0/pool");
  EXPECT_TRUE(basic.find("b2/0/shortcut_conv").valid());
  options.size = "50";
  EXPECT_TRUE(build_model(options).find("b1/0/shortcut_conv").valid());
}

TEST(ResNetVariants, PaddingRules) {
  const auto pads = [](PaddingRule rule) {
    ModelOptions options = imagenet("50");
    options.padding = rule;
    const Graph graph = build_model(options);
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
    const Graph graph = build_model(with_initialisers(set, imagenet("50")));
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
  const auto zeros = [](InitialiserSet set, const std::string& size) {
    return zero_gammas(build_model(with_initialisers(set, imagenet(size))));
  };
  EXPECT_EQ(zeros(InitialiserSet::Ipu, "50").size(), 16u - 4u);  // blocks minus projections
  EXPECT_EQ(zeros(InitialiserSet::Surfsara, "50").size(), 16u);
  const std::vector<std::string> basic = zeros(InitialiserSet::Surfsara, "18");
  ASSERT_EQ(basic.size(), 8u);
  EXPECT_EQ(basic.front(), "b1/0/norm2/gamma");
  for (const InitialiserSet set :
       {InitialiserSet::Nvidia, InitialiserSet::NvidiaFanIn, InitialiserSet::Habana,
        InitialiserSet::HabanaKeras, InitialiserSet::KerasApplications}) {
    EXPECT_TRUE(zeros(set, "50").empty());
  }
}

// The recipes give no count. These are the trainable parameters that keras.applications reports for
// ResNet50V2, 101V2 and 152V2. Without biases (19,008, 36,416 and 51,776) they equal v1.5 minus the
// norms of the four projections (2 * (256 + 512 + 1024 + 2048)).
TEST(ResNetVersion2, CountsAreThoseOfKeras) {
  EXPECT_EQ(build_model(version2("50")).trainable_elements(), 25'568'360);
  EXPECT_EQ(build_model(version2("101")).trainable_elements(), 44'577'896);
  EXPECT_EQ(build_model(version2("152")).trainable_elements(), 60'236'904);
}

TEST(ResNetVersion2, NormAndReluComeFirst) {
  const Graph graph = build_model(version2("50"));
  using Names = std::vector<std::string>;
  EXPECT_EQ(op_names(graph, "b0"), (Names{"b0/conv", "b0/pool"}));
  EXPECT_EQ(op_names(graph, "b3/1"),
            (Names{"b3/1/norm1", "b3/1/relu1", "b3/1/conv1", "b3/1/norm2", "b3/1/relu2",
                   "b3/1/conv2", "b3/1/norm3", "b3/1/relu3", "b3/1/conv3", "b3/1/add"}));
  EXPECT_EQ(op_names(graph, "post"), (Names{"post/norm", "post/relu"}));
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
  ModelOptions options = version2("50");
  options.block = BlockKind::Basic;
  refuses(options, "model resnet has no basic blocks in version 2; blocks: bottleneck");
  options = version2("50");
  options.task = Task::Cifar;
  refuses(options, "model resnet has no version 2 for CIFAR; versions: 1.5");
}

}  // namespace
}  // namespace millrace::models
