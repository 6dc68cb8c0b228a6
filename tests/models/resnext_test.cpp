// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"
#include "tests/models/graph_queries.hpp"

namespace millrace::models {
namespace {

ModelOptions imagenet(std::string_view size, std::int64_t classes = 1000) {
  return options_of("resnext", Task::ImageNet, size, classes);
}

ModelOptions cifar(std::string_view size, std::int64_t classes = 10) {
  return options_of("resnext", Task::Cifar, size, classes);
}

/// ResNeXt-50 with other groups in the middle of its blocks.
ModelOptions grouped(std::int64_t groups, std::int64_t dim) {
  return with(imagenet("50"), [&](ModelOptions& o) {
    o.resnext.groups = groups;
    o.resnext.group_dim = dim;
  });
}

ModelOptions wide(ModelOptions options) {
  options.resnext.widening = Widening::Widenet;
  return options;
}

ModelOptions squeezed(ModelOptions options) {
  options.resnext.squeeze_excitation = SqueezeExcitation::On;
  return options;
}

const Published kPublished[] = {
    // row "Params (1000 cls)"
    {"ImageNet14", imagenet("14"), 9'411'880},
    {"ImageNet26", imagenet("26"), 15'389'480},
    {"ImageNet50", imagenet("50"), 25'028'904, 4.23},
    {"ImageNet101", imagenet("101"), 44'177'704, 7.97},
    {"ImageNet152", imagenet("152"), 59'951'400},
    // row "HX/NV 1001"
    {"ImageNet101With1001Classes", imagenet("101", 1001), 44'179'753},
    // row "CIFAR-10 32x4d"
    {"Cifar11", cifar("11"), 403'162},
    {"Cifar29", cifar("29"), 1'293'786, 0.21},
    {"Cifar38", cifar("38"), 1'739'098},
    {"Cifar47", cifar("47"), 2'184'410},
    {"Cifar56", cifar("56"), 2'629'722},
    {"Cifar65", cifar("65"), 3'075'034},
    {"WideCifar29", wide(cifar("29")), 4'775'754},
    // CIFAR-100: 90 * (256 + 1) more, as for bottleneck ResNets
    {"Cifar100Size29", cifar("29", 100), 1'293'786 + 23'130},
    // the recipes give no count; this is SE-ResNeXt 32x4d as published with its weights
    {"SqueezedImageNet50", squeezed(imagenet("50")), 27'559'896},
    {"SqueezedImageNet101", squeezed(imagenet("101")), 48'955'416},
};

TEST(ResNeXt, ParametersAndMacsEqualThePublishedTable) { expect_published(kPublished); }

TEST(ResNeXt, LayersAreThoseOfResNet) {
  ModelOptions options = imagenet("50");
  const std::string names = layer_names(build_model(options));
  options.model = "resnet";
  EXPECT_EQ(names, layer_names(build_model(options)));
  EXPECT_TRUE(names.starts_with("b0 b1/0 b1/0/relu "));
  EXPECT_TRUE(build_model(imagenet("101")).find("b3/3/relu").valid());
}

TEST(ResNeXt, GroupsAndGroupDimSetTheMiddle) {
  const Graph graph = build_model(grouped(64, 2));
  EXPECT_EQ(kind_of<Conv>(graph, "b1/0/conv2").groups, 64);
  EXPECT_EQ(output_of(graph, "b1/0/conv2"), (Shape{56, 56, 128}));
  EXPECT_EQ(output_of(build_model(grouped(64, 8)), "b2/0/conv2"), (Shape{28, 28, 1024}));
}

TEST(ResNeXt, OneGroupOfSixtyFourIsResNet) {
  ModelOptions options = grouped(1, 64);
  Graph graph = build_model(options);
  graph.name = "resnet-50";
  options.model = "resnet";
  EXPECT_EQ(graph, build_model(options));
}

TEST(ResNeXt, WidenetWidensStemAndBlocks) {
  const Graph narrow = build_model(cifar("29"));
  const Graph broad = build_model(wide(cifar("29")));
  EXPECT_EQ(output_of(narrow, "b0/relu"), (Shape{32, 32, 16}));
  EXPECT_EQ(output_of(broad, "b0/relu"), (Shape{32, 32, 64}));
  EXPECT_EQ(output_of(narrow, "b3/2/relu"), (Shape{8, 8, 256}));
  EXPECT_EQ(output_of(broad, "b3/2/relu"), (Shape{8, 8, 1024}));
  EXPECT_EQ(output_of(broad, "b3/2/conv2"), output_of(narrow, "b3/2/conv2"));
}

TEST(ResNeXt, SqueezeStandsBetweenTheLastNormAndTheSum) {
  const Graph graph = build_model(squeezed(imagenet("50")));
  EXPECT_EQ(reads(graph, "b2/1/SE"), "b2/1/norm3");
  EXPECT_EQ(output_of(graph, "b2/1/SE/reduce"), (Shape{1, 1, 512 / 16}));
  EXPECT_EQ(kind_of<Activate>(graph, "b2/1/SE/act").kind, Activation::Relu);
  EXPECT_EQ(reads(graph, "b2/1/add"), "b2/1/SE/scale");
  EXPECT_EQ(layer_names(graph), layer_names(build_model(imagenet("50"))));
  EXPECT_FALSE(build_model(imagenet("50")).find("b2/1/SE").valid());
}

TEST(ResNeXt, RefusesWhatItDoesNotHave) {
  refuses(imagenet("18"), "model resnext has no size 18 for ImageNet; sizes: 14, 26, 50, 101, 152");
  refuses(cifar("20"), "model resnext has no size 20 for CIFAR; sizes: 11, 29, 38, 47, 56, 65");
  refuses(wide(imagenet("50")),
          "model resnext has no widenet for ImageNet; use it with CIFAR only");
  refuses(with(imagenet("50"), [](ModelOptions& o) { o.block = BlockKind::Basic; }),
          "model resnext has no basic blocks; blocks: bottleneck");
  refuses(with(imagenet("50"), [](ModelOptions& o) { o.residual.version = ResNetVersion::V2; }),
          "model resnext has no version 1 or 2; versions: 1.5");
  refuses(grouped(0, 4), "model resnext: 0 groups of 4 channels: both must be at least 1");
  // Numbers out of range.
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  refuses(grouped(kHuge, 4),
          "model resnext: 4611686018427387904 groups of 4 channels: both must be at most 1048576");
  refuses(grouped(32, kHuge),
          "model resnext: 32 groups of 4611686018427387904 channels: both must be at most 1048576");
  refuses(grouped(4096, 4096),
          "resnext-50: b1/0/conv1: 16777216 channels exceed the limit of 1048576 per value");
}

}  // namespace
}  // namespace millrace::models
