// SPDX-License-Identifier: Apache-2.0
#include "models/squeeze_excite.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/models/graph_queries.hpp"

namespace millrace::models {
namespace {

Graph squeezed(std::string_view name) {
  const Initialiser init = {Initialiser::Kind::VarianceScaling, 2.0, Initialiser::Fan::Out};
  GraphBuilder b("tiny", {4, 4, 8}, 8);
  b.begin_layer("block");
  ValueId x = squeeze_excite(b, name, b.input(), {2, Activation::Swish, init});
  b.begin_layer("head");
  x = b.global_average_pool("", x);
  b.begin_layer("loss");
  b.softmax_loss("", x);
  return std::move(b).build();
}

TEST(SqueezeExcite, ScalesTheInputByAFunctionOfItsMeans) {
  const Graph graph = squeezed("SE");
  EXPECT_EQ(op_names(graph, "block"),
            (std::vector<std::string>{"block/SE", "block/SE/reduce", "block/SE/act",
                                      "block/SE/expand", "block/SE/sigmoid", "block/SE/scale"}));
  EXPECT_EQ(output_of(graph, "block/SE/reduce"), (Shape{1, 1, 2}));
  EXPECT_EQ(output_of(graph, "block/SE/scale"), (Shape{4, 4, 8}));
  EXPECT_EQ(graph.op(graph.find("block/SE/scale")).inputs.front(), Graph::input());
  EXPECT_EQ(graph.trainable_elements(), 2 * 8 + 2 + 8 * 2 + 8);
  EXPECT_EQ(start_of(graph, "block/SE/expand/kernel").fan, Initialiser::Fan::Out);
}

TEST(SqueezeExcite, WithoutANameTheFirstOpIsTheLayer) {
  const Graph graph = squeezed("");
  EXPECT_EQ(op_names(graph, "block"),
            (std::vector<std::string>{"block", "block/reduce", "block/act", "block/expand",
                                      "block/sigmoid", "block/scale"}));
}

}  // namespace
}  // namespace millrace::models
