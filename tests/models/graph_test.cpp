// SPDX-License-Identifier: Apache-2.0
#include "models/graph.hpp"

#include <unordered_set>

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

}  // namespace
}  // namespace millrace::models
