// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"
#include "tests/models/graph_queries.hpp"

namespace millrace::models {
namespace {

ModelOptions imagenet(Bypass bypass = Bypass::None) {
  ModelOptions options = default_options("squeezenet", Task::ImageNet);
  options.squeezenet.bypass = bypass;
  return options;
}

ModelOptions cifar(std::int64_t classes = 10) {
  ModelOptions options = default_options("squeezenet", Task::Cifar);
  options.classes = classes;
  return options;
}

// row "Params 1,244,448 imagenet; 742,708 cifar-10; 835,048 cifar-100"
TEST(SqueezeNet, ParametersEqualThePublishedCounts) {
  EXPECT_EQ(build_model(imagenet()).trainable_elements(), 1'244'448);
  EXPECT_EQ(build_model(imagenet(Bypass::Simple)).trainable_elements(), 1'244'448);
  EXPECT_EQ(build_model(cifar()).trainable_elements(), 742'708);
  EXPECT_EQ(build_model(cifar(100)).trainable_elements(), 835'048);
}

TEST(SqueezeNet, LayersAreNamedAsInThePublishedNet) {
  const std::vector<std::string> body = {"conv1", "pool1", "fire2", "fire3", "fire4",
                                         "pool4", "fire5", "fire6", "fire7", "fire8",
                                         "pool8", "fire9", "drop9"};
  std::vector<std::string> expected = body;
  expected.insert(expected.end(), {"conv10", "pool10", "loss"});
  EXPECT_EQ(layer_names(build_model(imagenet())), expected);
  expected = body;
  expected.insert(expected.end(), {"fc10", "loss"});
  EXPECT_EQ(layer_names(build_model(cifar())), expected);
}

TEST(SqueezeNet, BypassAddsTheInputOfEverySecondModule) {
  const Graph graph = build_model(imagenet(Bypass::Simple));
  EXPECT_EQ(count_of<Add>(build_model(imagenet())), 0);
  EXPECT_EQ(count_of<Add>(graph), 4);
  EXPECT_EQ(reads(graph, "fire3/add", 0), "fire3/concat");
  EXPECT_EQ(reads(graph, "fire3/add", 1), "fire2/concat");
  EXPECT_EQ(reads(graph, "fire5/add", 1), "pool4");
  EXPECT_EQ(reads(graph, "fire7/add", 1), "fire6/concat");
  EXPECT_EQ(reads(graph, "fire9/add", 1), "pool8");
  EXPECT_EQ(reads(graph, "fire4/squeeze1x1"), "fire3/add");
}

TEST(SqueezeNet, DropsHalfBeforeTheHead) {
  const Graph graph = build_model(imagenet());
  EXPECT_EQ(kind_of<Dropout>(graph, "drop9"), (Dropout{.rate = 0.5}));
  EXPECT_EQ(reads(graph, "conv10"), "drop9");
}

// row "CIFAR head [!]: ... 2*classes units and ReLU used directly as logits"
TEST(SqueezeNet, LogitsOfCifarAreTwiceTheClassesAndNotNegative) {
  const Graph graph = build_model(cifar());
  EXPECT_EQ(graph.classes, 10);
  EXPECT_EQ(output_of(graph, "fc10"), (Shape{1, 1, 20}));
  EXPECT_EQ(reads(graph, "loss"), "fc10/relu");
}

TEST(SqueezeNet, InitialisersOfTheRecipe) {
  using Kind = Initialiser::Kind;
  const Graph graph = build_model(imagenet());
  for (const Parameter& p : graph.parameters) {
    EXPECT_EQ(p.role, ParameterRole::Kernel) << p.name;  // no norms, no biases
    const Initialiser narrow = {.kind = Kind::TruncatedNormal, .scale = 0.01};
    const Initialiser glorot = {.kind = Kind::GlorotUniform};
    EXPECT_EQ(p.init, p.name == "conv10/conv/kernel" ? narrow : glorot) << p.name;
  }
  EXPECT_EQ(start_of(build_model(cifar()), "fc10/dense/kernel").kind, Kind::GlorotUniform);
}

TEST(SqueezeNet, OtherImageSizesBuildUntilAPoolDoesNotFit) {
  ModelOptions options = imagenet();
  options.image = {64, 64, 3};
  EXPECT_EQ(build_model(options).trainable_elements(), 1'244'448);
  options.image = {16, 16, 3};
  refuses(options,
          "squeezenet: pool8: a window of 3x3 pixels does not fit into input 1x1x512 padded to "
          "1x1");
}

TEST(SqueezeNet, HasOneSize) {
  ModelOptions options = imagenet();
  options.size = "1.1";
  refuses(options, "model squeezenet has no size 1.1; sizes: 1.0");
}

}  // namespace
}  // namespace millrace::models
