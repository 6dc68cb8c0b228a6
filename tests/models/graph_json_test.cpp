// SPDX-License-Identifier: Apache-2.0
#include "models/graph_json.hpp"

#include "models/registry.hpp"
#include "tests/support/test.hpp"

namespace millrace::models {
namespace {

std::vector<Graph> networks() {
  std::vector<Graph> all;
  for (const Family& family : families())
    for (const Task task : {Task::Cifar, Task::ImageNet})
      for (const NormKind norm : {NormKind::Batch, NormKind::Group}) {
        ModelOptions options = default_options(family.name, task);
        options.norm = norm;
        options.efficientnet.dropout_rate = 0.25;
        all.push_back(build_model(options));
      }
  return all;
}

TEST(GraphJsonTest, EveryKindOfOpComesBack) {
  std::set<std::size_t> kinds;
  for (const Graph& graph : networks()) {
    for (const Op& op : graph.ops) kinds.insert(op.kind.index());
    EXPECT_EQ(graph_from_json(Json::parse(to_json(graph).dump())), graph) << graph.name;
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<OpKind>);
}

TEST(GraphJsonTest, NumbersOfFunctionsComeBack) {
  GraphBuilder b("tiny", {8, 8, 3}, 10);
  b.begin_layer("net");
  ValueId x = b.activation("clip", b.input(), {Activation::Clip, {-0.1f, 6.0f}});
  x = b.activation("leaky", x, {Activation::LeakyRelu, {0.2f}});
  x = b.activation("gate", x, {Activation::HardSigmoid, {1.0f / 6.0f, 0.5f}});
  x = b.activation("swish", x, {Activation::HardSwish});
  b.softmax_loss("loss", b.dense("fc", x, {.units = 10}));
  const Graph graph = std::move(b).build();
  EXPECT_EQ(graph_from_json(Json::parse(to_json(graph).dump())), graph);
}

/// What is refused if `from` becomes `to` in the text of a small network.
std::string refusal(std::string_view from, std::string_view to) {
  GraphBuilder b("tiny", {8, 8, 3}, 10);
  b.begin_layer("conv");
  ValueId x = b.conv("", b.input(), {.out_channels = 4, .kernel = {3, 3}, .pad = same(1)});
  b.begin_layer("relu");
  x = b.activation("", x, {Activation::Relu});
  b.begin_layer("fc");
  x = b.dense("", x, {.units = 10});
  b.begin_layer("loss");
  b.softmax_loss("", x);
  std::string text = to_json(std::move(b).build()).dump();
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in " << text;
  text.replace(at, from.size(), to);
  try {
    (void)graph_from_json(Json::parse(text));
  } catch (const JsonError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(GraphJsonTest, RefusesWhatIsNoGraph) {
  EXPECT_EQ(refusal("tiny", "tiny"), "nothing");
  EXPECT_EQ(refusal("\"inputs\":[1]", "\"inputs\":[2]"), "an op reads what no op before it makes");
  EXPECT_EQ(refusal("\"inputs\":[1]", "\"inputs\":[-1]"), "an op reads what no op before it makes");
  EXPECT_EQ(refusal("\"op\":\"Dense\"", "\"op\":\"Tense\""), "op 'Tense' is unknown");
  EXPECT_EQ(refusal("\"relu\"}", "\"gelu\"}"), "'gelu' is unknown");
  EXPECT_EQ(refusal("\"channels\":4", "\"channels\":-4"), "-4 is not between 0 and 1048576");
  EXPECT_EQ(refusal("\"kernel\":[3,3]", "\"kernel\":[3]"), "a list has another length");
  EXPECT_EQ(refusal("\"kernel\":[3,3]", "\"kernel\":[30,30]"),
            "tiny: conv: a window of 30x30 pixels does not fit into input 8x8x3 padded to 10x10");
  EXPECT_EQ(refusal("\"bias\":false", "\"bias\":0"), "0 is neither true nor false");
  EXPECT_EQ(refusal("\"SoftmaxLoss\"", "\"GlobalAveragePool\""), "the network has no loss");
  EXPECT_EQ(refusal("\"name\":\"tiny", "\"name\":\"ti\\ny"),
            "the name 'ti\\ny' has control characters");
  EXPECT_EQ(refusal("\"name\":\"fc", "\"name\":\"f\\u001b"),
            "the name 'f\\x1b' has control characters");
  EXPECT_NE(refusal("{\"name\":\"relu\"", "{\"name\":\"conv\"").find("name is used twice"),
            std::string::npos);
}

TEST(GivenNetworkTest, IsBuiltAsItIsButForSharedStatistics) {
  const auto graph = std::make_shared<const Graph>(build_model({}));
  ModelOptions options = given_options(graph, Task::Cifar);
  EXPECT_EQ(options.model, kGivenModel);
  EXPECT_EQ(options.size, graph->name);
  EXPECT_EQ(build_model(options), *graph);
  EXPECT_EQ(options, given_options(std::make_shared<const Graph>(*graph), Task::Cifar));
  EXPECT_NE(options, ModelOptions{});
  options.batch_norm_span = 2;
  for (const Op& op : build_model(options).ops) {
    const auto* norm = std::get_if<BatchNorm>(&op.kind);
    EXPECT_TRUE(norm == nullptr || norm->span == 2) << op.name;
  }
}

}  // namespace
}  // namespace millrace::models
