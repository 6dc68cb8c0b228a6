// SPDX-License-Identifier: Apache-2.0
#include "models/graph.hpp"

#include <unordered_set>

#include "models/registry.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/test.hpp"

namespace millrace::models {
namespace {

/// One residual block: its input is read by a convolution and by the addition.
Graph residual() {
  GraphBuilder b("residual", {8, 8, 4}, 10);
  b.begin_layer("b1/0");
  ValueId x = b.conv("conv1", b.input(), {.out_channels = 4, .kernel = {3, 3}, .pad = same(1)});
  x = b.batch_norm("norm1", x, {});
  x = b.add("add", x, b.input());
  b.begin_layer("b1/0/relu");
  x = b.activation("", x, {});
  b.begin_layer("fc1");
  x = b.dense("", x, {.units = 10});
  b.begin_layer("loss");
  b.softmax_loss("", x);
  return std::move(b).build();
}

TEST(Graph, FindKnowsOpsAndLayers) {
  const Graph graph = residual();
  EXPECT_EQ(graph.find("b1/0"), OpId{0}) << "a layer's name means its first op";
  EXPECT_EQ(graph.find("b1/0/conv1"), OpId{0});
  EXPECT_EQ(graph.find("b1/0/add"), OpId{2});
  EXPECT_EQ(graph.find("b1/0/relu"), OpId{3});
  EXPECT_EQ(graph.find("fc1"), OpId{4});
  EXPECT_FALSE(graph.find("b1").valid());
  EXPECT_FALSE(graph.find("b1/0/conv1/kernel").valid());
  EXPECT_FALSE(graph.find("").valid());
}

TEST(Graph, ConsumersComeInTopologicalOrder) {
  const Graph graph = residual();
  EXPECT_EQ(graph.consumers(Graph::input()), (std::vector<OpId>{OpId{0}, OpId{2}}));
  EXPECT_EQ(graph.consumers(graph.op(OpId{2}).output), std::vector<OpId>{OpId{3}});
  EXPECT_TRUE(graph.consumers(ValueId{99}).empty());
}

TEST(Graph, AnOpThatReadsAValueTwiceIsOneConsumer) {
  GraphBuilder b("twice", {1, 1, 4}, 4);
  b.begin_layer("double");
  const ValueId x = b.add("", b.input(), b.input());
  b.begin_layer("loss");
  b.softmax_loss("", x);
  const Graph graph = std::move(b).build();
  EXPECT_EQ(graph.consumers(Graph::input()), std::vector<OpId>{OpId{0}});
}

TEST(Graph, CountsElementsAndMacs) {
  const Graph graph = residual();
  EXPECT_EQ(graph.trainable_elements(), 4 * 9 * 4 + 8 + 256 * 10 + 10);
  EXPECT_EQ(graph.forward_macs(), 64 * 144 + 2560);
  EXPECT_EQ(graph.parameter(ParameterId{0}).elements(), 144);
  EXPECT_TRUE(graph.parameter(ParameterId{1}).trainable());
  EXPECT_FALSE(graph.parameter(ParameterId{3}).trainable());
}

// ---- graph builder ------------------------------------------------------------------------------

TEST(GraphBuilder, NamesOpsAndParametersBelowTheirLayer) {
  GraphBuilder b("tiny", {8, 8, 3}, 10);
  b.begin_layer("b0");
  ValueId x = b.conv("conv", b.input(), {.out_channels = 4, .kernel = {3, 3}, .pad = same(1)});
  x = b.batch_norm("norm", x, {});
  b.begin_layer("b1/0");
  x = b.global_average_pool("pool", x);
  b.begin_layer("fc1");
  x = b.dense("", x, {.units = 10});
  b.begin_layer("loss");
  b.softmax_loss("", x);
  const Graph graph = std::move(b).build();

  std::vector<std::string> ops;
  for (const Op& op : graph.ops) ops.push_back(op.name);
  EXPECT_EQ(ops, (std::vector<std::string>{"b0/conv", "b0/norm", "b1/0/pool", "fc1", "loss"}));
  std::vector<std::string> parameters;
  for (const Parameter& parameter : graph.parameters) parameters.push_back(parameter.name);
  EXPECT_EQ(parameters, (std::vector<std::string>{"b0/conv/kernel", "b0/norm/gamma", "b0/norm/beta",
                                                  "b0/norm/moving_mean", "b0/norm/moving_variance",
                                                  "fc1/kernel", "fc1/bias"}));
  EXPECT_EQ(graph.layers[1].name, "b1/0");
  EXPECT_EQ(graph.layers[1].first_op, OpId{2});
  EXPECT_EQ(graph.ops[2].layer, LayerId{1});
  EXPECT_FALSE(graph.ops[4].output.valid());
}

TEST(GraphBuilder, MisfitsNameNetworkAndOp) {
  GraphBuilder b("tiny", {8, 8, 3}, 10);
  b.begin_layer("b1/0");
  const ValueId x = b.conv("conv", b.input(), {.out_channels = 4});
  expect_error(ErrorKind::Config, "tiny: b1/0/add: cannot add shapes 8x8x4 and 8x8x3",
               [&] { b.add("add", x, b.input()); });
  expect_error(ErrorKind::Config,
               "tiny: b1/0/norm: 4 channels do not divide into 32 groups; the nearest count that "
               "fits is 4",
               [&] { b.group_norm("norm", x, {}); });
  expect_error(ErrorKind::Config, "tiny: b1/0: logits must be 1x1x10, one per class, not 8x8x4",
               [&] { b.softmax_loss("", x); });
}

TEST(GraphBuilder, RefusesNetworksOutsideTheLimits) {
  const auto refuses = [](const Shape& image, std::int64_t classes, const std::string& message) {
    expect_error(ErrorKind::Config, "tiny: " + message,
                 [&] { const GraphBuilder b("tiny", image, classes); });
  };
  refuses({8, 0, 3}, 10, "image size 8x0x3 is empty; every extent must be at least 1");
  refuses({8, 8, 3}, 0, "0 classes; at least 1 is required");
  refuses({8, 8, 3}, 1048577, "classes: 1048577 channels exceed the limit of 1048576 per value");
  refuses({2147483647, 1717986918, 3}, 10,
          "images: 1.11e+19 elements (2147483647x1717986918x3) exceed the limit of 4294967296 per "
          "image; use fewer channels or smaller images");
  GraphBuilder b("tiny", {8, 8, 3}, 10);
  b.begin_layer("b1");
  expect_error(ErrorKind::Config,
               "tiny: b1/conv: 1048577 channels exceed the limit of 1048576 per value",
               [&] { b.conv("conv", b.input(), {.out_channels = 1048577}); });
  expect_error(ErrorKind::Config,
               "tiny: b1/square has 4.4e+12 parameters, above the limit of 1099511627776 per "
               "network; use fewer channels",
               [&] {
                 const ValueId x = b.conv("wide", b.input(), {.out_channels = 1048576});
                 b.conv("square", x, {.out_channels = 1048576, .kernel = {2, 2}});
               });
}

// No tensor is too large by itself.
TEST(GraphBuilder, RefusesTooManyParametersTogether) {
  GraphBuilder b("wide", {1, 1, 1048576}, 1);
  b.begin_layer("b1");
  ValueId x = b.input();
  for (const char* name : {"a", "b"}) x = b.conv(name, x, {.out_channels = 1048576});
  x = b.dense("fc", x, {.units = 1});
  b.softmax_loss("loss", x);
  expect_error(ErrorKind::Config,
               "wide: has 2.2e+12 parameters, above the limit of 1099511627776 per network; use "
               "fewer channels",
               [&] { static_cast<void>(std::move(b).build()); });
}

TEST(GraphBuilder, RefusesTooManyOps) {
  GraphBuilder b("deep", {1, 1, 1}, 1);
  b.begin_layer("b1");
  ValueId x = b.input();
  for (std::int64_t i = 0; i < kMostOps; ++i) x = b.activation(std::to_string(i), x, {});
  expect_error(ErrorKind::Config, "deep: b1/more: exceeds the limit of 100000 ops per network",
               [&] { b.activation("more", x, {}); });
}

TEST(GraphBuilder, RefusesOpsWithoutLayerAndForeignValues) {
  GraphBuilder b("tiny", {8, 8, 3}, 10);
  EXPECT_THROW(b.activation("relu", b.input(), {}), Error);
  b.begin_layer("b0");
  EXPECT_THROW(b.activation("relu", ValueId{7}, {}), Error);
  EXPECT_THROW(b.activation("relu", ValueId{}, {}), Error);
  EXPECT_NO_THROW(b.activation("relu", b.input(), {}));
}

/// Expects the message of build() for what `add` adds before a valid end.
void expect_refused(const std::string& message, const std::function<ValueId(GraphBuilder&)>& add) {
  GraphBuilder b("tiny", {8, 8, 3}, 10);
  b.begin_layer("b0");
  const ValueId x = add(b);
  b.begin_layer("fc1");
  const ValueId logits = b.dense("", x, {.units = 10});
  b.begin_layer("loss");
  b.softmax_loss("", logits);
  expect_error(ErrorKind::Config, "graph tiny: " + message,
               [&] { static_cast<void>(std::move(b).build()); });
}

TEST(GraphBuilder, AnOpNeedsALayerAndInputsOfItsBuilder) {
  GraphBuilder b("tiny", {8, 8, 3}, 10);
  expect_error(ErrorKind::Config,
               "graph tiny: op conv: belongs to no layer: call begin_layer() first",
               [&] { b.conv("conv", b.input(), {.out_channels = 4}); });
  b.begin_layer("b0");
  expect_error(ErrorKind::Config,
               "graph tiny: op b0/conv: reads what is no output of this builder's ops",
               [&] { b.conv("conv", ValueId{7}, {.out_channels = 4}); });
}

TEST(GraphBuilder, BuildChecksNames) {
  struct NamedLayer {
    std::string name;
    std::vector<std::string> ops;
  };
  const std::pair<std::string, std::vector<NamedLayer>> rows[] = {
      {"layers: a layer has no name", {{"b0", {"relu"}}, {"", {""}}}},
      {"layer b0: name is used twice", {{"b0", {"x"}}, {"b0", {"y"}}}},
      {"layer b0: has no ops", {{"b0", {}}, {"b1", {""}}}},
      {"op b0/relu: name is used twice", {{"b0", {"relu", "relu"}}}},
      {"op b0: has its layer's name but is not its first op", {{"b0", {"relu", ""}}}},
      {"op b0/relu: has the name of another layer", {{"b0", {"relu"}}, {"b0/relu", {"x"}}}},
  };
  for (const auto& [message, layers] : rows)
    expect_refused(message, [&, &layers = layers](GraphBuilder& b) {
      ValueId last;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        if (i > 0) b.begin_layer(layers[i].name);
        for (const std::string& op : layers[i].ops) last = b.activation(op, b.input(), {});
      }
      return last;
    });
}

TEST(GraphBuilder, BuildChecksValuesAndLoss) {
  expect_refused("op b0/relu: no op reads its output", [](GraphBuilder& b) {
    b.activation("relu", b.input(), {});
    return b.input();
  });
  expect_refused("op b0/loss: is a loss but not the last op", [](GraphBuilder& b) {
    b.softmax_loss("loss", b.dense("dense", b.input(), {.units = 10}));
    return b.input();
  });
  GraphBuilder b("tiny", {8, 8, 3}, 10);
  b.begin_layer("b0");
  b.conv("conv", b.input(), {.out_channels = 4});
  expect_error(ErrorKind::Config, "graph tiny: op b0/conv: is the last op but not a loss",
               [&] { static_cast<void>(std::move(b).build()); });
}

// ---- freeze -------------------------------------------------------------------------------------

Graph resnet8() {
  ModelOptions options;
  options.size = "8";
  options.image = {8, 8, 3};
  return build_model(options);
}

std::set<std::string> learning(const Graph& graph) {
  std::set<std::string> names;
  for (const Parameter& parameter : graph.parameters)
    if (parameter.learns()) names.insert(parameter.name);
  return names;
}

TEST(TrainOnly, FreezesNamesWithoutAnyFilter) {
  Graph graph = resnet8();
  train_only(graph, std::vector<std::string>{"fc1", "b1/0/norm1"});
  EXPECT_EQ(learning(graph), (std::set<std::string>{"b1/0/norm1/beta", "b1/0/norm1/gamma",
                                                    "fc1/bias", "fc1/kernel"}));
  for (const Parameter& parameter : graph.parameters)
    EXPECT_TRUE(parameter.trainable() || !parameter.frozen) << "state is never frozen";
}

TEST(TrainOnly, WithoutFiltersAllLearn) {
  Graph graph = resnet8();
  train_only(graph, std::vector<std::string>{"fc1"});
  train_only(graph, {});
  EXPECT_EQ(graph, resnet8());
}

TEST(TrainOnly, RefusesAFilterThatMatchesNoName) {
  Graph graph = resnet8();
  expect_error(
      ErrorKind::Config,
      "`variable-filter`: no trainable parameter of resnet-8 has 'fc2' in its name; the nearest "
      "are fc1/kernel, fc1/bias, b0/conv/kernel, b1/0/conv1/kernel, b1/0/conv2/kernel",
      [&] {
        train_only(graph, std::vector<std::string>{"fc1", "fc2"});
      });
  EXPECT_EQ(graph, resnet8());
  // Running statistics do not count as names.
  EXPECT_THROW(train_only(graph, std::vector<std::string>{"moving_mean"}), Error);
}

TEST(WantedGradients, BeginAtTheFirstParameterThatLearns) {
  Graph graph = resnet8();
  const auto wanted_by = [&](std::string_view op) -> bool {
    return wanted_gradients(graph)[graph.op(graph.find(op)).output.at()];
  };
  const std::vector<bool> all = wanted_gradients(graph);
  EXPECT_FALSE(all[Graph::input().at()]);
  EXPECT_EQ(std::count(all.begin(), all.end(), true), std::ssize(all) - 1);
  // A branch that learns beside a shortcut that does not.
  train_only(graph, std::vector<std::string>{"b2/0/conv2"});
  EXPECT_FALSE(wanted_by("b1/0/relu"));
  EXPECT_FALSE(wanted_by("b2/0/norm1"));
  EXPECT_TRUE(wanted_by("b2/0/conv2"));
  EXPECT_TRUE(wanted_by("b2/0/add"));
  EXPECT_TRUE(wanted_by("fc1"));
}

// ---- registry -----------------------------------------------------------------------------------

TEST(Registry, BuildsByName) {
  EXPECT_EQ(build_model({}).name, "resnet-20");
  for (const Family& family : families())
    for (const Task task : {Task::Cifar, Task::ImageNet}) {
      const ModelOptions options = default_options(family.name, task);
      const Graph graph = build_model(options);
      EXPECT_TRUE(graph.name.starts_with(family.name)) << graph.name;
      const std::vector<std::string> sizes = family.sizes(task);
      EXPECT_NE(std::ranges::find(sizes, options.size), sizes.end()) << family.name;
    }
}

TEST(Registry, DefaultsAreThoseOfTheRecipes) {
  const std::tuple<std::string, Task, std::string, NormKind, std::int64_t> rows[] = {
      {"resnet", Task::ImageNet, "18", NormKind::Group, 32},
      {"resnet", Task::Cifar, "20", NormKind::Batch, 16},
      {"resnext", Task::ImageNet, "14", NormKind::Group, 32},
      {"resnext", Task::Cifar, "11", NormKind::Batch, 16},
      {"squeezenet", Task::ImageNet, "1.0", NormKind::Group, 32},
      {"squeezenet", Task::Cifar, "1.0", NormKind::Group, 32},
      {"efficientnet", Task::ImageNet, "B0", NormKind::Group, 4},
      {"efficientnet", Task::Cifar, "cifar", NormKind::Group, 4},
  };
  for (const auto& [model, task, size, norm, groups] : rows) {
    const bool cifar = task == Task::Cifar;
    ModelOptions expected;
    expected.model = model;
    expected.size = size;
    expected.task = task;
    expected.classes = cifar ? 10 : 1000;
    expected.image = cifar ? Shape{32, 32, 3} : Shape{224, 224, 3};
    expected.norm = norm;
    expected.groups = groups;
    expected.shortcut = cifar ? 'A' : 'B';
    EXPECT_EQ(default_options(model, task), expected) << model;
    EXPECT_NO_THROW(static_cast<void>(build_model(expected))) << model;
  }
}

TEST(Registry, UnknownModelsListTheKnownOnes) {
  for (const auto& [model, hint] : {std::pair("resent", " (did you mean resnet?)"), {"vgg", ""}}) {
    ModelOptions options;
    options.model = model;
    expect_error(
        ErrorKind::Config,
        fmt::format("unknown model {}{}; models: resnet, resnext, squeezenet, efficientnet", model,
                    hint),
        [&] { static_cast<void>(build_model(options)); });
  }
}

}  // namespace
}  // namespace millrace::models
