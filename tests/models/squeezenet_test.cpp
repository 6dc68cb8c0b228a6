// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"
#include "tests/models/graph_queries.hpp"

namespace millrace::models {
namespace {

const ModelOptions kImageNet = options_of("squeezenet", Task::ImageNet);
const ModelOptions kCifar = options_of("squeezenet", Task::Cifar);
const ModelOptions kBypassed =
    with(kImageNet, [](ModelOptions& o) { o.squeezenet.bypass = Bypass::Simple; });

// row "Params 1,244,448 imagenet; 742,708 cifar-10; 835,048 cifar-100"
const Published kPublished[] = {
    {"ImageNet", kImageNet, 1'244'448},
    {"Bypassed", kBypassed, 1'244'448},
    {"Cifar10", kCifar, 742'708},
    {"Cifar100", options_of("squeezenet", Task::Cifar, "", 100), 835'048},
};

TEST(SqueezeNet, ParametersEqualThePublishedCounts) { expect_published(kPublished); }

TEST(SqueezeNet, LayersAreNamedAsInThePublishedNet) {
  const std::string body =
      "conv1 pool1 fire2 fire3 fire4 pool4 fire5 fire6 fire7 fire8 pool8 fire9 drop9 ";
  EXPECT_EQ(layer_names(build_model(kImageNet)), body + "conv10 pool10 loss");
  EXPECT_EQ(layer_names(build_model(kCifar)), body + "fc10 loss");
}

TEST(SqueezeNet, BypassAddsTheInputOfEverySecondModule) {
  const Graph graph = build_model(kBypassed);
  EXPECT_EQ(count_of<Add>(build_model(kImageNet)), 0);
  EXPECT_EQ(count_of<Add>(graph), 4);
  EXPECT_EQ(reads(graph, "fire3/add", 0), "fire3/concat");
  EXPECT_EQ(reads(graph, "fire3/add", 1), "fire2/concat");
  EXPECT_EQ(reads(graph, "fire5/add", 1), "pool4");
  EXPECT_EQ(reads(graph, "fire7/add", 1), "fire6/concat");
  EXPECT_EQ(reads(graph, "fire9/add", 1), "pool8");
  EXPECT_EQ(reads(graph, "fire4/squeeze1x1"), "fire3/add");
}

TEST(SqueezeNet, DropsHalfBeforeTheHead) {
  const Graph graph = build_model(kImageNet);
  EXPECT_EQ(kind_of<Dropout>(graph, "drop9"), (Dropout{.rate = 0.5}));
  EXPECT_EQ(reads(graph, "conv10"), "drop9");
}

// row "CIFAR head [!]: ... 2*classes units and ReLU used directly as logits"
TEST(SqueezeNet, LogitsOfCifarAreTwiceTheClassesAndNotNegative) {
  const Graph graph = build_model(kCifar);
  EXPECT_EQ(graph.classes, 10);
  EXPECT_EQ(output_of(graph, "fc10"), (Shape{1, 1, 20}));
  EXPECT_EQ(reads(graph, "loss"), "fc10/relu");
}

TEST(SqueezeNet, InitialisersOfTheRecipe) {
  using Kind = Initialiser::Kind;
  const Graph graph = build_model(kImageNet);
  for (const Parameter& p : graph.parameters) {
    EXPECT_EQ(p.role, ParameterRole::Kernel) << p.name;  // no norms, no biases
    const Initialiser narrow = {.kind = Kind::TruncatedNormal, .scale = 0.01};
    const Initialiser glorot = {.kind = Kind::GlorotUniform};
    EXPECT_EQ(p.init, p.name == "conv10/conv/kernel" ? narrow : glorot) << p.name;
  }
  EXPECT_EQ(start_of(build_model(kCifar), "fc10/dense/kernel").kind, Kind::GlorotUniform);
}

TEST(SqueezeNet, OtherImageSizesBuildUntilAPoolDoesNotFit) {
  const auto of_side = [](std::int64_t side) {
    return with(kImageNet, [&](ModelOptions& o) { o.image = {side, side, 3}; });
  };
  EXPECT_EQ(build_model(of_side(64)).trainable_elements(), 1'244'448);
  refuses(of_side(16),
          "squeezenet: pool8: a window of 3x3 pixels does not fit into input 1x1x512 padded to "
          "1x1");
}

TEST(SqueezeNet, HasOneSize) {
  refuses(options_of("squeezenet", Task::ImageNet, "1.1"),
          "model squeezenet has no size 1.1; sizes: 1.0");
}

}  // namespace
}  // namespace millrace::models
