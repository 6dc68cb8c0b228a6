// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"
#include "tests/models/graph_queries.hpp"

namespace millrace::models {
namespace {

using O = EfficientNetOptions;

ModelOptions imagenet(std::string_view size = "B0") {
  return with(options_of("efficientnet", Task::ImageNet, size), [](ModelOptions& o) {
    o.image.h = o.image.w = find_family("efficientnet").image_side(o.size);
  });
}

ModelOptions cifar(std::int64_t classes = 10) {
  return options_of("efficientnet", Task::Cifar, "cifar", classes);
}

/// B0 with one option changed.
template <class Change>
ModelOptions changed_options(const Change& change) {
  return with(imagenet(), [&](ModelOptions& o) { change(o.efficientnet); });
}
template <class Change>
Graph changed(const Change& change) {
  return build_model(changed_options(change));
}

ModelOptions grouped() {
  return changed_options([](O& o) {
    o.group_dim = 16;
    o.expand_ratio = 4;
  });
}

const Published kPublished[] = {
    {"B0", imagenet("B0"), 5'288'548, 0.386, 0.0005},
    {"B1", imagenet("B1"), 7'794'184, 0.69},
    {"B2", imagenet("B2"), 9'109'994},
    {"B3", imagenet("B3"), 12'233'232},
    {"B4", imagenet("B4"), 19'341'616, 4.39},
    {"B5", imagenet("B5"), 30'389'784},
    {"B6", imagenet("B6"), 43'040'704},
    {"B7", imagenet("B7"), 66'347'960},
    {"Cifar10", cifar(), 1'077'932},
    {"Cifar100", cifar(100), 1'135'622},
    // row "B0 with group_dim 16, expand 4: 0.635 GMAC (vs 0.386 for B0, 0.69 B1, 4.39 B4)"
    {"B0GroupDim16Expand4", grouped(), 5'913'796, 0.635, 0.0005},
};

TEST(EfficientNet, ParametersAndMacsEqualThePublishedTable) { expect_published(kPublished); }

TEST(EfficientNet, ImageAndDropoutGoWithTheSize) {
  const std::tuple<std::string, std::int64_t, double> sizes[] = {
      {"B0", 224, 0.2}, {"B1", 240, 0.2}, {"B2", 260, 0.3}, {"B3", 300, 0.3},
      {"B4", 380, 0.4}, {"B5", 456, 0.4}, {"B6", 528, 0.5}, {"B7", 600, 0.5}};
  for (const auto& [size, pixels, rate] : sizes) {
    EXPECT_EQ(find_family("efficientnet").image_side(size), pixels) << size;
    const Graph graph = build_model(imagenet(size));
    EXPECT_DOUBLE_EQ(kind_of<Dropout>(graph, "Top/dropout").rate, rate) << size;
  }
  EXPECT_EQ(find_family("efficientnet").image_side("cifar"), 32);
  const Graph given = changed([](O& o) { o.dropout_rate = 0.7; });
  EXPECT_DOUBLE_EQ(kind_of<Dropout>(given, "Top/dropout").rate, 0.7);
  EXPECT_EQ(count_of<Dropout>(changed([](O& o) { o.dropout_rate = 0; })), 0);
}

TEST(EfficientNet, SizesHaveSeveralSpellings) {
  const Graph b1 = build_model(imagenet("B1"));
  EXPECT_EQ(build_model(imagenet("b1")), b1);
  EXPECT_EQ(build_model(imagenet("1")), b1);
  EXPECT_EQ(b1.name, "efficientnet-B1");
  EXPECT_EQ(build_model(options_of("efficientnet", Task::Cifar, "CIFAR")), build_model(cifar()));
}

// row "B0 list", plus the loss
TEST(EfficientNet, LayersAreNamedAsTheSplitsOfTheRecipes) {
  EXPECT_EQ(layer_names(build_model(imagenet())),
            "block0 block1a/b block1a/SE block1a/c block2a block2a/b block2a/SE block2a/c block2b "
            "block3a block3a/b block3a/SE block3a/c block3b "
            "block4a block4a/b block4a/SE block4a/c block4b block4c "
            "block5a block5a/b block5a/SE block5a/c block5b block5c "
            "block6a block6a/b block6a/SE block6a/c block6b block6c block6d "
            "block7a block7a/b block7a/SE block7a/c Top loss");
}

// row "B0 block2b,4a,6a ... cuts 75,264/31,360/21,952"
TEST(EfficientNet, CutsOfTheRecipeSendOneTensor) {
  const Graph graph = build_model(imagenet());
  const auto sent = [&](std::string_view split) {
    return graph.value(graph.op(graph.find(split)).inputs.front()).shape.elements();
  };
  EXPECT_EQ(sent("block2b"), 75'264);
  EXPECT_EQ(sent("block4a"), 31'360);
  EXPECT_EQ(sent("block6a"), 21'952);
  EXPECT_TRUE(build_model(grouped()).find("block2a/SE").valid());
}

TEST(EfficientNet, OpsOfABlockThatAddsItsInput) {
  const Graph graph = build_model(imagenet());
  EXPECT_EQ(op_names(graph, "block2b"),
            "conv norm act b/conv b/norm b/act SE SE/reduce SE/act SE/expand SE/sigmoid SE/scale "
            "c/conv c/norm drop add");
  EXPECT_EQ(reads(graph, "block2b/add", 0), "block2b/drop");
  EXPECT_EQ(reads(graph, "block2b/add", 1), "block2a/c/norm");
}

TEST(EfficientNet, CifarOmitsTheFirstTwoHalvings) {
  const Graph graph = build_model(cifar());
  EXPECT_EQ(output_of(graph, "block0/act"), (Shape{32, 32, 16}));
  EXPECT_EQ(output_of(graph, "block2a/b/conv"), (Shape{32, 32, 48}));
  EXPECT_EQ(output_of(graph, "block3a/b/conv"), (Shape{16, 16, 96}));
  EXPECT_EQ(output_of(graph, "Top/conv"), (Shape{4, 4, 640}));
  EXPECT_FALSE(graph.find("Top/dropout").valid());
}

// p_i = 1 - 0.2 i / 16 in B0, whose block2b is the third of sixteen blocks
TEST(EfficientNet, DropConnectGrowsWithDepth) {
  const Graph graph = build_model(imagenet());
  EXPECT_DOUBLE_EQ(kind_of<DropConnect>(graph, "block2b/drop").survival, 1 - 0.2 * 2 / 16);
  EXPECT_DOUBLE_EQ(kind_of<DropConnect>(graph, "block6d/drop").survival, 1 - 0.2 * 14 / 16);
  EXPECT_EQ(count_of<DropConnect>(graph), 9);
  EXPECT_EQ(count_of<Add>(graph), 9);
  const Graph half = changed([](O& o) { o.block_survival = 0.5; });
  EXPECT_DOUBLE_EQ(kind_of<DropConnect>(half, "block6d/drop").survival, 1 - 0.5 * 14 / 16);
  const Graph none = changed([](O& o) { o.block_survival = 1; });
  EXPECT_EQ(count_of<DropConnect>(none), 0);
  EXPECT_EQ(count_of<Add>(none), 9);
}

TEST(EfficientNet, CoefficientsOfOneSizeMakeAnother) {
  Graph made = changed([](O& o) {
    o.width = 1.1;
    o.depth = 1.2;
    o.dropout_rate = 0.3;
  });
  EXPECT_EQ(made.trainable_elements(), 9'109'994);  // row B2
  EXPECT_EQ(layer_names(made), layer_names(build_model(imagenet("B2"))));
}

TEST(EfficientNet, SqueezeAndExciteCanBeLeftOut) {
  const Graph graph = changed([](O& o) { o.squeeze_excitation = SqueezeExcitation::Off; });
  EXPECT_EQ(count_of<ScaleChannels>(graph), 0);
  EXPECT_FALSE(graph.find("block2a/SE").valid());
  EXPECT_EQ(reads(graph, "block2a/c/conv"), "block2a/b/act");
}

TEST(EfficientNet, ActivationIsSwishOrRelu) {
  const Graph relu = changed([](O& o) { o.activation = Activation::Relu; });
  const Graph swish = build_model(imagenet());
  for (const std::string_view op : {"block0/act", "block2a/b/act", "block2a/SE/act", "Top/act"}) {
    EXPECT_EQ(kind_of<Activate>(relu, op).kind, Activation::Relu) << op;
    EXPECT_EQ(kind_of<Activate>(swish, op).kind, Activation::Swish) << op;
  }
  EXPECT_EQ(kind_of<Activate>(relu, "block2a/SE/sigmoid").kind, Activation::Sigmoid);
}

TEST(EfficientNet, ExpandRatioOneLeavesTheExpansionOut) {
  const Graph graph = changed([](O& o) { o.expand_ratio = 1; });
  EXPECT_FALSE(graph.find("block2a").valid());
  EXPECT_TRUE(op_names(graph, "block2b").starts_with("b/conv "));
  EXPECT_EQ(output_of(graph, "block2a/b/conv"), (Shape{56, 56, 16}));
}

TEST(EfficientNet, GroupDimSetsTheGroups) {
  const Graph graph = build_model(grouped());
  EXPECT_EQ(kind_of<Conv>(graph, "block1a/b/conv").groups, 32 / 16);
  EXPECT_EQ(kind_of<Conv>(graph, "block6d/b/conv").groups, 192 * 4 / 16);
  const Graph one = changed([](O& o) { o.group_dim = 4096; });
  EXPECT_EQ(kind_of<Conv>(one, "block6d/b/conv").groups, 1);
  refuses(changed_options([](O& o) { o.group_dim = 5; }),
          "efficientnet-B0: block1a/b/conv: 6 groups do not divide 32 input and 32 output channels "
          "(input 112x112x32)");
}

TEST(EfficientNet, TopWidthScalesAndMayBeNone) {
  EXPECT_EQ(output_of(build_model(imagenet("B2")), "Top/conv").c, 1408);
  const Graph wide = changed([](O& o) { o.top_width = 2000; });
  EXPECT_EQ(output_of(wide, "Top/conv").c, 2000);
  const Graph none = changed([](O& o) { o.top_width = 0; });
  EXPECT_EQ(op_names(none, "Top"), "mean dropout logits");
  EXPECT_EQ(reads(none, "Top/mean"), "block7a/c/norm");
}

// The nearest multiple, half rounded up, but at least 0.9 times the requested width.
TEST(EfficientNet, DepthDivisorRoundsChannels) {
  const auto stem = [](double width, std::int64_t divisor) {
    const Graph graph = changed([&](O& o) {
      o.width = width;
      o.depth_divisor = divisor;
    });
    return output_of(graph, "block0/act").c;
  };
  EXPECT_EQ(stem(1.1, 8), 32);    // 35.2
  EXPECT_EQ(stem(1.125, 8), 40);  // 36: half up
  EXPECT_EQ(stem(0.34, 8), 16);   // 10.88: 8 would be under 9.792
  EXPECT_EQ(stem(0.01, 8), 8);
  EXPECT_EQ(stem(1.1, 4), 36);
  EXPECT_EQ(stem(1.0, 64), 64);
}

TEST(EfficientNet, NormsTakeTheirConstants) {
  ModelOptions options = imagenet();
  EXPECT_EQ(kind_of<GroupNorm>(build_model(options), "block0/norm"),
            (GroupNorm{.groups = 4, .epsilon = 1e-3}));
  options.groups = 10'000;  // more than the channels of any layer: one group per channel
  options.efficientnet.norm_epsilon = 1e-4;
  const Graph many = build_model(options);
  EXPECT_EQ(kind_of<GroupNorm>(many, "block0/norm"), (GroupNorm{.groups = 32, .epsilon = 1e-4}));
  options = imagenet();
  options.norm = NormKind::Batch;
  EXPECT_EQ(kind_of<BatchNorm>(build_model(options), "block0/norm"),
            (BatchNorm{.epsilon = 1e-3, .decay = 0.97}));
}

TEST(EfficientNet, InitialisersOfTheRecipe) {
  const Initialiser out = {Initialiser::Kind::VarianceScaling, 2.0, Initialiser::Fan::Out};
  const Initialiser in = {Initialiser::Kind::VarianceScaling, 2.0, Initialiser::Fan::In};
  for (const Parameter& p : build_model(imagenet()).parameters) {
    if (p.role == ParameterRole::Gamma) {
      EXPECT_EQ(p.init.kind, Initialiser::Kind::One) << p.name;
    }
    if (p.role != ParameterRole::Kernel) continue;
    if (p.name == "Top/logits/kernel") {
      EXPECT_EQ(p.init.kind, Initialiser::Kind::GlorotUniform);
    } else {
      EXPECT_EQ(p.init, p.name.ends_with("/b/conv/kernel") ? in : out) << p.name;
    }
  }
}

TEST(EfficientNet, RefusesWhatItDoesNotHave) {
  refuses(options_of("efficientnet", Task::ImageNet, "B8"),
          "model efficientnet has no size B8; sizes: B0, B1, B2, B3, B4, B5, B6, B7, cifar");
  const std::pair<std::string, void (*)(O&)> rows[] = {
      {": width coefficient 0 must be positive", [](O& o) { o.width = 0; }},
      {": depth coefficient -1 must be positive", [](O& o) { o.depth = -1; }},
      {": dropout rate 1 must be at least 0 and below 1", [](O& o) { o.dropout_rate = 1; }},
      {": block survival probability 0 must be above 0 and at most 1",
       [](O& o) { o.block_survival = 0; }},
      {": expand ratio 0 must be from 1 to 1048576", [](O& o) { o.expand_ratio = 0; }},
      {": group dim 0 must be at least 1", [](O& o) { o.group_dim = 0; }},
      {": depth divisor 0 must be from 1 to 1048576", [](O& o) { o.depth_divisor = 0; }},
      {": top width -8 must be at least 0 (0: no top convolution)", [](O& o) { o.top_width = -8; }},
      {" has no activation sigmoid; activations: swish, relu",
       [](O& o) { o.activation = Activation::Sigmoid; }},
  };
  for (const auto& [message, change] : rows)
    refuses(changed_options(change), "model efficientnet" + message);
}

// Numbers that overflow integers must end with an error, not with a wrong network.
TEST(EfficientNet, RefusesNumbersOutOfRange) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const auto& [width, text] : {std::pair(1e300, "1e+300"), {1e17, "1e+17"}, {4e4, "40000"}})
    refuses(changed_options([w = width](O& o) { o.width = w; }),
            fmt::format("model efficientnet: 32 channels at width coefficient {} in multiples of 8 "
                        "exceed the limit of 1048576 per layer; lower the coefficient",
                        text));
  for (const auto& [depth, text] : {std::pair(1e300, "1e+300"), {1e5, "100000"}, {131.0, "131"}})
    refuses(changed_options([d = depth](O& o) { o.depth = d; }),
            fmt::format("model efficientnet: depth coefficient {0} makes {0} blocks of 1, above "
                        "the limit of 130 per stage; lower the coefficient",
                        text));
  refuses(changed_options([](O& o) { o.expand_ratio = kHuge; }),
          "model efficientnet: expand ratio 9223372036854775807 must be from 1 to 1048576");
  refuses(changed_options([](O& o) { o.expand_ratio = 1048576; }),
          "efficientnet-B0: block2a/conv: 16777216 channels exceed the limit of 1048576 per value");
  refuses(changed_options([](O& o) { o.depth_divisor = kHuge; }),
          "model efficientnet: depth divisor 9223372036854775807 must be from 1 to 1048576");
  refuses(changed_options([](O& o) { o.top_width = kHuge; }),
          fmt::format("model efficientnet: {} channels at width coefficient 1 in multiples of 8 "
                      "exceed the limit of 1048576 per layer; lower the coefficient",
                      kHuge));
  EXPECT_NO_THROW(changed([](O& o) { o.group_dim = kHuge; }));  // one group
}

}  // namespace
}  // namespace millrace::models
