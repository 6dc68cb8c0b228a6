// SPDX-License-Identifier: Apache-2.0
#include "models/graph.hpp"
#include "models/limits.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::models {
namespace {

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

TEST(GraphBuilder, RefusesEmptyImagesAndNoClasses) {
  expect_error(ErrorKind::Config,
               "tiny: image size 8x0x3 is empty; every extent must be at least 1", [] {
                 GraphBuilder("tiny", {8, 0, 3}, 10);
               });
  expect_error(ErrorKind::Config, "tiny: 0 classes; at least 1 is required", [] {
    GraphBuilder("tiny", {8, 8, 3}, 0);
  });
}

TEST(GraphBuilder, RefusesNetworksAboveTheLimits) {
  expect_error(ErrorKind::Config,
               "tiny: classes: 1048577 channels exceed the limit of 1048576 per value", [] {
                 GraphBuilder("tiny", {8, 8, 3}, 1048577);
               });
  expect_error(ErrorKind::Config,
               "tiny: images: 1.11e+19 elements (2147483647x1717986918x3) exceed the limit of "
               "4294967296 per image; use fewer channels or smaller images",
               [] {
                 GraphBuilder("tiny", {2147483647, 1717986918, 3}, 10);
               });
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

/// The message of build() for the layers that `add` adds before a valid end.
void expect_refused(const std::string& message, const std::function<ValueId(GraphBuilder&)>& add) {
  GraphBuilder b("tiny", {8, 8, 3}, 10);
  b.begin_layer("b0");
  const ValueId x = add(b);
  b.begin_layer("fc1");
  const ValueId logits = b.dense("", x, {.units = 10});
  b.begin_layer("loss");
  b.softmax_loss("", logits);
  expect_error(ErrorKind::Internal, "graph tiny: " + message,
               [&] { static_cast<void>(std::move(b).build()); });
}

TEST(GraphBuilder, BuildChecksNames) {
  const auto relu = [](GraphBuilder& b, const std::string& name) {
    return b.activation(name, b.input(), {});
  };
  expect_refused("layers: a layer has no name", [&](GraphBuilder& b) {
    b.activation("relu", b.input(), {});
    b.begin_layer("");
    return relu(b, "");
  });
  expect_refused("layer b0: name is used twice", [&](GraphBuilder& b) {
    relu(b, "x");
    b.begin_layer("b0");
    return relu(b, "y");
  });
  expect_refused("layer b0: has no ops", [&](GraphBuilder& b) {
    b.begin_layer("b1");
    return relu(b, "");
  });
  expect_refused("op b0/relu: name is used twice", [&](GraphBuilder& b) {
    relu(b, "relu");
    return relu(b, "relu");
  });
  expect_refused("op b0: has its layer's name but is not its first op", [&](GraphBuilder& b) {
    relu(b, "relu");
    return relu(b, "");
  });
  expect_refused("op b0/relu: has the name of another layer", [&](GraphBuilder& b) {
    relu(b, "relu");
    b.begin_layer("b0/relu");
    return relu(b, "x");
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
  expect_error(ErrorKind::Internal, "graph tiny: op b0/conv: is the last op but not a loss",
               [&] { static_cast<void>(std::move(b).build()); });
}

}  // namespace
}  // namespace millrace::models
