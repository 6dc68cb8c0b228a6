// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "models/registry.hpp"
#include "tests/models/graph_queries.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::models {
namespace {

ModelOptions imagenet(std::string size = "B0") {
  ModelOptions options = default_options("efficientnet", Task::ImageNet);
  const std::int64_t image = find_family("efficientnet").image_side(size);
  options.size = std::move(size);
  options.image = {image, image, 3};
  return options;
}

ModelOptions cifar(std::int64_t classes = 10) {
  ModelOptions options = default_options("efficientnet", Task::Cifar);
  options.classes = classes;
  return options;
}

/// B0 with one option changed.
template <class Change>
Graph changed(const Change& change) {
  ModelOptions options = imagenet();
  change(options.efficientnet);
  return build_model(options);
}

ModelOptions grouped() {
  ModelOptions options = imagenet();
  options.efficientnet.group_dim = 16;
  options.efficientnet.expand_ratio = 4;
  return options;
}

const Count kCounts[] = {
    {"B0", imagenet("B0"), 5'288'548},
    {"B1", imagenet("B1"), 7'794'184},
    {"B2", imagenet("B2"), 9'109'994},
    {"B3", imagenet("B3"), 12'233'232},
    {"B4", imagenet("B4"), 19'341'616},
    {"B5", imagenet("B5"), 30'389'784},
    {"B6", imagenet("B6"), 43'040'704},
    {"B7", imagenet("B7"), 66'347'960},
    {"Cifar10", cifar(), 1'077'932},
    {"Cifar100", cifar(100), 1'135'622},
    // row "B0 with group_dim 16, expand 4"
    {"B0GroupDim16Expand4", grouped(), 5'913'796},
};

TEST(EfficientNet, ParametersEqualThePublishedTable) { expect_counts(kCounts); }

// row "0.635 GMAC (vs 0.386 for B0, 0.69 B1, 4.39 B4)"
TEST(EfficientNet, ForwardMacsRoundToThePublishedFigures) {
  const auto giga = [](const ModelOptions& options) {
    return static_cast<double>(build_model(options).forward_macs()) / 1e9;
  };
  EXPECT_NEAR(giga(imagenet("B0")), 0.386, 0.0005);
  EXPECT_NEAR(giga(imagenet("B1")), 0.69, 0.005);
  EXPECT_NEAR(giga(imagenet("B4")), 4.39, 0.005);
  EXPECT_NEAR(giga(grouped()), 0.635, 0.0005);
}

TEST(EfficientNet, ImageSizeGoesWithTheModel) {
  const std::pair<std::string, std::int64_t> sizes[] = {
      {"B0", 224}, {"B1", 240}, {"B2", 260}, {"B3", 300},   {"B4", 380},
      {"B5", 456}, {"B6", 528}, {"B7", 600}, {"cifar", 32},
  };
  for (const auto& [size, pixels] : sizes)
    EXPECT_EQ(find_family("efficientnet").image_side(size), pixels) << size;
}

TEST(EfficientNet, SizesHaveSeveralSpellings) {
  const Graph b1 = build_model(imagenet("B1"));
  EXPECT_EQ(build_model(imagenet("b1")), b1);
  EXPECT_EQ(build_model(imagenet("1")), b1);
  EXPECT_EQ(b1.name, "efficientnet-B1");
  ModelOptions upper = cifar();
  upper.size = "CIFAR";
  EXPECT_EQ(build_model(upper), build_model(cifar()));
}

// row "B0 list", plus the loss
TEST(EfficientNet, LayersAreNamedAsTheSplitsOfTheRecipes) {
  const std::vector<std::string> expected = {
      "block0",     "block1a/b", "block1a/SE", "block1a/c", "block2a",    "block2a/b",
      "block2a/SE", "block2a/c", "block2b",    "block3a",   "block3a/b",  "block3a/SE",
      "block3a/c",  "block3b",   "block4a",    "block4a/b", "block4a/SE", "block4a/c",
      "block4b",    "block4c",   "block5a",    "block5a/b", "block5a/SE", "block5a/c",
      "block5b",    "block5c",   "block6a",    "block6a/b", "block6a/SE", "block6a/c",
      "block6b",    "block6c",   "block6d",    "block7a",   "block7a/b",  "block7a/SE",
      "block7a/c",  "Top",       "loss"};
  EXPECT_EQ(layer_names(build_model(imagenet())), expected);
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
            (std::vector<std::string>{
                "block2b/conv", "block2b/norm", "block2b/act", "block2b/b/conv", "block2b/b/norm",
                "block2b/b/act", "block2b/SE", "block2b/SE/reduce", "block2b/SE/act",
                "block2b/SE/expand", "block2b/SE/sigmoid", "block2b/SE/scale", "block2b/c/conv",
                "block2b/c/norm", "block2b/drop", "block2b/add"}));
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
  const Graph half = changed([](EfficientNetOptions& o) { o.block_survival = 0.5; });
  EXPECT_DOUBLE_EQ(kind_of<DropConnect>(half, "block6d/drop").survival, 1 - 0.5 * 14 / 16);
  const Graph none = changed([](EfficientNetOptions& o) { o.block_survival = 1; });
  EXPECT_EQ(count_of<DropConnect>(none), 0);
  EXPECT_EQ(count_of<Add>(none), 9);
}

TEST(EfficientNet, DropoutGoesWithTheSizeUnlessGiven) {
  const auto rate = [](const Graph& graph) { return kind_of<Dropout>(graph, "Top/dropout").rate; };
  EXPECT_DOUBLE_EQ(rate(build_model(imagenet("B1"))), 0.2);
  EXPECT_DOUBLE_EQ(rate(build_model(imagenet("B3"))), 0.3);
  EXPECT_DOUBLE_EQ(rate(build_model(imagenet("B5"))), 0.4);
  EXPECT_DOUBLE_EQ(rate(build_model(imagenet("B7"))), 0.5);
  EXPECT_DOUBLE_EQ(rate(changed([](EfficientNetOptions& o) { o.dropout_rate = 0.7; })), 0.7);
  EXPECT_EQ(count_of<Dropout>(changed([](EfficientNetOptions& o) { o.dropout_rate = 0; })), 0);
}

TEST(EfficientNet, CoefficientsOfOneSizeMakeAnother) {
  Graph made = changed([](EfficientNetOptions& o) {
    o.width = 1.1;
    o.depth = 1.2;
    o.dropout_rate = 0.3;
  });
  EXPECT_EQ(made.trainable_elements(), 9'109'994);  // row B2
  EXPECT_EQ(layer_names(made), layer_names(build_model(imagenet("B2"))));
}

TEST(EfficientNet, SqueezeAndExciteCanBeLeftOut) {
  const Graph graph =
      changed([](EfficientNetOptions& o) { o.squeeze_excitation = SqueezeExcitation::Off; });
  EXPECT_EQ(count_of<ScaleChannels>(graph), 0);
  EXPECT_FALSE(graph.find("block2a/SE").valid());
  EXPECT_EQ(reads(graph, "block2a/c/conv"), "block2a/b/act");
}

TEST(EfficientNet, ActivationIsSwishOrRelu) {
  const Graph relu = changed([](EfficientNetOptions& o) { o.activation = Activation::Relu; });
  const Graph swish = build_model(imagenet());
  for (const std::string_view op : {"block0/act", "block2a/b/act", "block2a/SE/act", "Top/act"}) {
    EXPECT_EQ(kind_of<Activate>(relu, op).kind, Activation::Relu) << op;
    EXPECT_EQ(kind_of<Activate>(swish, op).kind, Activation::Swish) << op;
  }
  EXPECT_EQ(kind_of<Activate>(relu, "block2a/SE/sigmoid").kind, Activation::Sigmoid);
}

TEST(EfficientNet, ExpandRatioOneLeavesTheExpansionOut) {
  const Graph graph = changed([](EfficientNetOptions& o) { o.expand_ratio = 1; });
  EXPECT_FALSE(graph.find("block2a").valid());
  EXPECT_EQ(op_names(graph, "block2b").front(), "block2b/b/conv");
  EXPECT_EQ(output_of(graph, "block2a/b/conv"), (Shape{56, 56, 16}));
}

TEST(EfficientNet, GroupDimSetsTheGroups) {
  const Graph graph = build_model(grouped());
  EXPECT_EQ(kind_of<Conv>(graph, "block1a/b/conv").groups, 32 / 16);
  EXPECT_EQ(kind_of<Conv>(graph, "block6d/b/conv").groups, 192 * 4 / 16);
  const Graph one = changed([](EfficientNetOptions& o) { o.group_dim = 4096; });
  EXPECT_EQ(kind_of<Conv>(one, "block6d/b/conv").groups, 1);
  expect_error(ErrorKind::Config,
               "efficientnet-B0: block1a/b/conv: 6 groups do not divide 32 input and 32 output "
               "channels (input 112x112x32)",
               [] { changed([](EfficientNetOptions& o) { o.group_dim = 5; }); });
}

TEST(EfficientNet, TopWidthScalesAndMayBeNone) {
  EXPECT_EQ(output_of(build_model(imagenet("B2")), "Top/conv").c, 1408);
  const Graph wide = changed([](EfficientNetOptions& o) { o.top_width = 2000; });
  EXPECT_EQ(output_of(wide, "Top/conv").c, 2000);
  const Graph none = changed([](EfficientNetOptions& o) { o.top_width = 0; });
  EXPECT_EQ(op_names(none, "Top"),
            (std::vector<std::string>{"Top/mean", "Top/dropout", "Top/logits"}));
  EXPECT_EQ(reads(none, "Top/mean"), "block7a/c/norm");
}

// The nearest multiple, half rounded up, but at least 0.9 times the requested width.
TEST(EfficientNet, DepthDivisorRoundsChannels) {
  const auto stem = [](double width, std::int64_t divisor) {
    const Graph graph = changed([&](EfficientNetOptions& o) {
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
  ModelOptions unknown = imagenet();
  unknown.size = "B8";
  expect_error(ErrorKind::Config,
               "model efficientnet has no size B8; sizes: B0, B1, B2, B3, B4, B5, B6, B7, cifar",
               [&] { static_cast<void>(build_model(unknown)); });
  const auto refuses = [](const std::string& message, const auto& change) {
    expect_error(ErrorKind::Config, "model efficientnet" + message, [&] { changed(change); });
  };
  using O = EfficientNetOptions;
  refuses(": width coefficient 0 must be positive", [](O& o) { o.width = 0; });
  refuses(": depth coefficient -1 must be positive", [](O& o) { o.depth = -1; });
  refuses(": dropout rate 1 must be at least 0 and below 1", [](O& o) { o.dropout_rate = 1; });
  refuses(": block survival probability 0 must be above 0 and at most 1",
          [](O& o) { o.block_survival = 0; });
  refuses(": expand ratio 0 must be from 1 to 1048576", [](O& o) { o.expand_ratio = 0; });
  refuses(": group dim 0 must be at least 1", [](O& o) { o.group_dim = 0; });
  refuses(": depth divisor 0 must be from 1 to 1048576", [](O& o) { o.depth_divisor = 0; });
  refuses(": top width -8 must be at least 0 (0: no top convolution)",
          [](O& o) { o.top_width = -8; });
  refuses(" has no activation sigmoid; activations: swish, relu",
          [](O& o) { o.activation = Activation::Sigmoid; });
}

// Numbers that overflow integers must end with an error, not with a wrong network.
TEST(EfficientNet, RefusesNumbersOutOfRange) {
  const auto refuses = [](const std::string& message, const auto& change) {
    expect_error(ErrorKind::Config, message, [&] { changed(change); });
  };
  using O = EfficientNetOptions;
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const auto& [width, text] : {std::pair(1e300, "1e+300"), {1e17, "1e+17"}, {4e4, "40000"}})
    refuses(fmt::format("model efficientnet: 32 channels at width coefficient {} in multiples of 8 "
                        "exceed the limit of 1048576 per layer; lower the coefficient",
                        text),
            [w = width](O& o) { o.width = w; });
  for (const auto& [depth, text] : {std::pair(1e300, "1e+300"), {1e5, "100000"}, {131.0, "131"}})
    refuses(fmt::format("model efficientnet: depth coefficient {0} makes {0} blocks of 1, above "
                        "the limit of 130 per stage; lower the coefficient",
                        text),
            [d = depth](O& o) { o.depth = d; });
  refuses("model efficientnet: expand ratio 9223372036854775807 must be from 1 to 1048576",
          [](O& o) { o.expand_ratio = kHuge; });
  refuses("efficientnet-B0: block2a/conv: 16777216 channels exceed the limit of 1048576 per value",
          [](O& o) { o.expand_ratio = 1048576; });
  refuses("model efficientnet: depth divisor 9223372036854775807 must be from 1 to 1048576",
          [](O& o) { o.depth_divisor = kHuge; });
  refuses(fmt::format("model efficientnet: {} channels at width coefficient 1 in multiples of 8 "
                      "exceed the limit of 1048576 per layer; lower the coefficient",
                      kHuge),
          [](O& o) { o.top_width = kHuge; });
  EXPECT_NO_THROW(changed([](O& o) { o.group_dim = kHuge; }));  // one group
}

}  // namespace
}  // namespace millrace::models
