// SPDX-License-Identifier: Apache-2.0
//
// Activations and sums, and constants that become part of the op before them. Expected elements are
// products and sums of those of the file.
#include "tests/tools/onnx/onnx_fixtures.hpp"

namespace millrace::io {
namespace {

using models::Activate;
using models::ParameterId;
using test::NamedUniform;

// ---- activations

struct Function {
  const char* name;
  Activate expected;
  std::function<std::string(OnnxBytes&)> add;
};
void PrintTo(const Function& function, std::ostream* out) { *out << function.name; }

class OnnxFunctionTest : public testing::TestWithParam<Function> {};

TEST_P(OnnxFunctionTest, IsOneOp) {
  const Graph graph = graph_of(
      around([](OnnxBytes& o) { return o.plain("Flatten", "flat", {GetParam().add(o)}); }, 192));
  ASSERT_EQ(graph.ops.size(), 3U) << ops_of(graph);
  EXPECT_EQ(std::get<Activate>(graph.ops[0].kind), GetParam().expected);
}

std::string with(OnnxBytes& o, const char* type, const std::map<const char*, float>& numbers) {
  io::onnx::NodeProto& made = o.node(type, "f", {"x"}, "f_out");
  for (const auto& [name, value] : numbers) OnnxBytes::set(made, name, value);
  return "f_out";
}
std::string clipped(OnnxBytes& o, std::initializer_list<std::pair<const char*, float>> bounds) {
  io::onnx::NodeProto& made = o.node("Clip", "f", {"x"}, "f_out");
  for (const auto& [name, value] : bounds) {
    made.add_input(name);
    if (made.input().rbegin()->empty()) continue;
    o.tensor(name, {}).add_float_data(value);
  }
  return "f_out";
}
std::string number(OnnxBytes& o, const std::string& name, float value) {
  o.tensor(name, {}).add_float_data(value);
  return name;
}
/// clip(x + 3, 0, 6)
std::string six(OnnxBytes& o) {
  return o.clip("clip", o.plain("Add", "add", {"x", number(o, "three", 3.0f)}));
}
std::string gated(OnnxBytes& o, float slope) {
  io::onnx::NodeProto& gate = o.node("HardSigmoid", "gate", {"x"}, "gate_out");
  OnnxBytes::set(gate, "alpha", slope);
  return o.plain("Mul", "f", {"gate_out", "x"});
}

INSTANTIATE_TEST_SUITE_P(
    Nodes, OnnxFunctionTest,
    testing::Values(
        Function{"HardSwish",
                 {Activation::HardSwish, {}},
                 [](OnnxBytes& o) { return with(o, "HardSwish", {}); }},
        Function{"HardSwishInParts",
                 {Activation::HardSwish, {}},
                 [](OnnxBytes& o) { return gated(o, 1.0f / 6.0f); }},
        Function{
            "HardSwishOfAGateInParts",
            {Activation::HardSwish, {}},
            [](OnnxBytes& o) {
              const std::string gate = o.plain("Div", "gate", {six(o), number(o, "six", 6.0f)});
              return o.plain("Mul", "f", {"x", gate});
            }},
        Function{"HardSwishOfAProductInParts",
                 {Activation::HardSwish, {}},
                 [](OnnxBytes& o) {
                   const std::string both = o.plain("Mul", "both", {six(o), "x"});
                   const std::string sixth = number(o, "sixth", 1.0f / 6.0f);
                   return o.plain("Mul", "f", {sixth, both});
                 }},
        Function{"HardSigmoidInParts",
                 {Activation::HardSigmoid, {1.0f / 6.0f, 0.5f}},
                 [](OnnxBytes& o) {
                   OnnxBytes::set(o.node("Constant", "six", {}, "six"), "value_float", 6.0f);
                   return o.plain("Div", "f", {six(o), "six"});
                 }},
        Function{"HardSigmoid",
                 {Activation::HardSigmoid, {0.2f, 0.5f}},
                 [](OnnxBytes& o) { return with(o, "HardSigmoid", {}); }},
        Function{"HardSigmoidOfPyTorch",
                 {Activation::HardSigmoid, {1.0f / 6.0f, 0.5f}},
                 [](OnnxBytes& o) {
                   return with(o, "HardSigmoid", {{"alpha", 1.0f / 6.0f}});
                 }},
        Function{"LeakyRelu",
                 {Activation::LeakyRelu, {0.01f, 0.0f}},
                 [](OnnxBytes& o) { return with(o, "LeakyRelu", {}); }},
        Function{"LeakyReluOfDarknet",
                 {Activation::LeakyRelu, {0.1f, 0.0f}},
                 [](OnnxBytes& o) {
                   return with(o, "LeakyRelu", {{"alpha", 0.1f}});
                 }},
        Function{"Relu6",
                 {Activation::Clip, {0.0f, 6.0f}},
                 [](OnnxBytes& o) {
                   return clipped(o, {{"low", 0.0f}, {"high", 6.0f}});
                 }},
        Function{"ClipByAttributes",
                 {Activation::Clip, {-1.0f, 2.0f}},
                 [](OnnxBytes& o) {
                   return with(o, "Clip", {{"min", -1.0f}, {"max", 2.0f}});
                 }},
        Function{"ClipAbove",
                 {Activation::Clip, {std::numeric_limits<float>::lowest(), 6.0f}},
                 [](OnnxBytes& o) {
                   return clipped(o, {{"", 0.0f}, {"high", 6.0f}});
                 }},
        Function{"ClipBelowZero",
                 {Activation::Relu, {}},
                 [](OnnxBytes& o) {
                   return clipped(o, {{"low", 0.0f}});
                 }}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(OnnxSumTest, OfSeveralValuesIsAChainOfSums) {
  const auto summed = [](const std::vector<std::string>& values) {
    return graph_of(around(
        [&](OnnxBytes& o) {
          o.conv("conv", "x", {3, 3, 3, 3}, 1, 1);
          o.plain("Relu", "relu", {"x"});
          io::onnx::NodeProto& sum = o.node("Sum", "sum", {}, "sum_out");
          for (const std::string& value : values) sum.add_input(value);
          return o.plain("Flatten", "flat", {"sum_out"});
        },
        192));
  };
  EXPECT_EQ(ops_of(summed({"x"})), "fc:Dense");
  EXPECT_EQ(ops_of(summed({"conv_out", "x"})), "conv:Conv sum:Add fc:Dense");
  const Graph three = summed({"conv_out", "relu_out", "x"});
  EXPECT_EQ(ops_of(three), "conv:Conv relu:Activation sum:Add sum_2:Add fc:Dense");
  EXPECT_EQ(three.ops[3].inputs, (std::vector{three.ops[2].output, Graph::input()}));
}

// ---- constants by channel

constexpr std::size_t kChannels = 4;

/// A layer of four channels, and nodes behind it.
NetworkFile folded(const char* layer, const std::function<std::string(OnnxBytes&)>& add) {
  return read(around(
      [&](OnnxBytes& o) {
        const std::string type = layer;
        std::string y = o.conv("conv", "x", {4, 3, 3, 3}, 1, 1, 1, type == "biased");
        if (type == "norm") y = o.norm("norm", o.plain("Relu", "relu", {y}), 4);
        o.graph().mutable_node(o.graph().node_size() - 1)->set_output(0, "made");
        o.weight("m", {4, 1, 1}, 0.5, 1.0);
        o.weight("a", {1, 4, 1, 1}, 0.5);
        return o.plain("Flatten", "flat", {add(o)});
      },
      256));
}

/// Whether `actual` is factor(c) x + addend(c), where x is what the file without nodes has.
void expect_affine(const std::vector<float>& actual, const std::vector<float>& before,
                   const std::function<double(std::size_t)>& factor,
                   const std::function<double(std::size_t)>& addend) {
  ASSERT_EQ(actual.size(), before.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const std::size_t c = i / (actual.size() / kChannels);
    EXPECT_NEAR(static_cast<double>(actual[i]),
                factor(c) * static_cast<double>(before[i]) + addend(c), 1e-6)
        << "element " << i;
  }
}

double m(std::size_t c) { return 1.0 + 0.5 * NamedUniform("m@0")(c); }
double a(std::size_t c) { return 0.5 * NamedUniform("a@0")(c); }
double one(std::size_t /*c*/) { return 1.0; }
double zero(std::size_t /*c*/) { return 0.0; }

TEST(OnnxFoldingTest, ConstantsBecomePartOfTheOpBefore) {
  const auto scaled = [](OnnxBytes& o) { return o.plain("Mul", "mul", {"made", "m"}); };
  const auto shifted = [](OnnxBytes& o) { return o.plain("Add", "add", {"a", "made"}); };
  const auto both = [&](OnnxBytes& o) { return o.plain("Sum", "sum", {scaled(o), "a"}); };
  const auto reversed = [&](OnnxBytes& o) { return o.plain("Mul", "mul", {"m", shifted(o)}); };
  const auto none = [](OnnxBytes&) { return std::string("made"); };
  const auto less = [](OnnxBytes& o) { return o.plain("Sub", "sub", {"made", "a"}); };
  const auto rest = [](OnnxBytes& o) { return o.plain("Sub", "sub", {"a", "made"}); };
  const auto share = [](OnnxBytes& o) { return o.plain("Div", "div", {"made", "m"}); };
  const auto normal = [&](OnnxBytes& o) { return o.plain("Div", "div", {less(o), "m"}); };
  const auto thrice = [](OnnxBytes& o) { return o.plain("Sum", "sum", {"a", "made", "a"}); };
  struct Case {
    const char* layer;
    std::function<std::string(OnnxBytes&)> add;
    double (*factor)(std::size_t);
    double (*addend)(std::size_t);
  };
  const auto am = [](std::size_t c) { return a(c) * m(c); };
  const auto negative = [](std::size_t c) { return -a(c); };
  const auto minus = [](std::size_t) { return -1.0; };
  const auto inverse = [](std::size_t c) { return 1.0 / m(c); };
  const auto moved = [](std::size_t c) { return -a(c) / m(c); };
  const auto twice = [](std::size_t c) { return 2.0 * a(c); };
  for (const auto& [layer, add, factor, addend] :
       std::vector<Case>{{"plain", scaled, m, zero},
                         {"plain", shifted, one, a},
                         {"plain", both, m, a},
                         {"plain", reversed, m, am},
                         {"biased", scaled, m, zero},
                         {"biased", both, m, a},
                         {"norm", scaled, m, zero},
                         {"norm", shifted, one, a},
                         {"norm", both, m, a},
                         {"norm", reversed, m, am},
                         {"plain", less, one, negative},
                         {"plain", rest, minus, a},
                         {"plain", share, inverse, zero},
                         {"plain", normal, inverse, moved},
                         {"plain", thrice, one, twice},
                         {"biased", rest, minus, a},
                         {"norm", rest, minus, a},
                         {"norm", normal, inverse, moved}}) {
    SCOPED_TRACE(layer);
    const NetworkFile file = folded(layer, add);
    const NetworkFile bare = folded(layer, none);
    const bool norm = std::string_view(layer) == "norm";
    EXPECT_EQ(ops_of(file.graph),
              norm ? "conv:Conv relu:Activation norm:BatchNorm fc:Dense" : "conv:Conv fc:Dense");
    const std::string at = norm ? "norm/gamma" : "conv/kernel";
    expect_affine(values_of(file, at), values_of(bare, at), factor, zero);
    const std::string shift = norm ? "norm/beta" : "conv/bias";
    const bool plain = std::string_view(layer) == "plain";
    if (plain && addend == zero) {
      EXPECT_FALSE(std::get<models::Conv>(file.graph.ops[0].kind).bias);
      continue;
    }
    expect_affine(values_of(file, shift),
                  plain ? std::vector<float>(kChannels) : values_of(bare, shift), factor, addend);
  }
}

// [C] becomes [1, C, 1, 1] in several ways; a constant may also be one number.
TEST(OnnxFoldingTest, ConstantsMayBeArrangedByNodes) {
  const NetworkFile bare = folded("plain", [](OnnxBytes&) { return std::string("made"); });
  const auto kernel = [&](const std::function<std::string(OnnxBytes&)>& constant) {
    return values_of(folded("plain",
                            [&](OnnxBytes& o) {
                              o.weight("v", {4}, 0.5, 1.0);
                              return o.plain("Mul", "mul", {"made", constant(o)});
                            }),
                     "conv/kernel");
  };
  const NamedUniform v("v@0");
  const auto factor = [&](std::size_t c) { return 1.0 + 0.5 * v(c); };
  const std::vector<float> before = values_of(bare, "conv/kernel");
  expect_affine(kernel([](OnnxBytes& o) {
                  return o.plain("Unsqueeze", "u", {"v", o.integers("axes", {1, 2})});
                }),
                before, factor, zero);
  expect_affine(kernel([](OnnxBytes& o) {
                  return o.plain("Reshape", "r", {"v", o.integers("to", {1, -1, 1, 1})});
                }),
                before, factor, zero);
  expect_affine(
      kernel([](OnnxBytes& o) {
        OnnxBytes::set(o.node("Constant", "two", {}, "two"), "value_float", 2.0f);
        return std::string("two");
      }),
      before, [](std::size_t) { return 2.0; }, zero);
}

// Of the values of a sum, the first that an op right before it makes takes the constants.
TEST(OnnxFoldingTest, ASumOfValuesAndConstantsAddsTheConstantsToOne) {
  const NetworkFile file = folded("plain", [](OnnxBytes& o) {
    const std::string other = o.plain("Relu", "relu", {o.conv("side", "x", {4, 3, 1, 1}, 1, 0)});
    return o.plain("Sum", "sum", {other, "a", "made", o.conv("last", "x", {4, 3, 1, 1}, 1, 0)});
  });
  EXPECT_EQ(ops_of(file.graph),
            "conv:Conv side:Conv relu:Activation last:Conv sum:Add sum_2:Add fc:Dense");
  expect_affine(values_of(file, "conv/bias"), std::vector<float>(kChannels), one, a);
  for (const char* without : {"side", "last"})
    EXPECT_FALSE(std::get<models::Conv>(op_named(file.graph, without).kind).bias) << without;
}

TEST(OnnxFoldingTest, DenseOpsTakeConstantsOfTheirUnits) {
  OnnxBytes o({-1, 3, 1, 1});
  const std::string x = o.plain("Flatten", "flat", {"x"});
  const std::string y = o.plain("MatMul", "fc", {x, o.weight("w", {3, 4}, 1.0)});
  const std::string z = o.plain("Mul", "mul", {y, o.weight("m", {4}, 0.5, 1.0)});
  o.node("Add", "add", {z, o.weight("a", {1, 4}, 0.5)}, "y");
  const NetworkFile file = read(o);
  ASSERT_EQ(ops_of(file.graph), "fc:Dense");
  const std::vector<float> kernel = values_of(file, "fc/kernel");
  const NamedUniform w("w@0");
  for (std::size_t unit = 0; unit < 4; ++unit)
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(static_cast<double>(kernel[unit * 3 + i]), w(i * 4 + unit) * m(unit), 1e-6);
  expect_affine(values_of(file, "fc/bias"), std::vector<float>(4), one, a);
}

TEST(OnnxFoldingTest, OthersAreRefused) {
  const auto refused = [](const std::string& message,
                          const std::function<std::string(OnnxBytes&)>& add) {
    expect_refused(ErrorKind::Config, message, [&] { (void)folded("plain", add); });
  };
  const std::string alone =
      "mul (Mul): with a constant; only a convolution, a dense op or a normalization right before "
      "it, that nothing else reads, takes one";
  refused(alone, [](OnnxBytes& o) {
    return o.plain("Mul", "mul", {o.plain("Relu", "relu", {"made"}), "m"});
  });
  refused(alone, [](OnnxBytes& o) {
    return o.plain("Add", "sum", {"made", o.plain("Mul", "mul", {"made", "m"})});
  });
  refused("div (Div): of a constant by a value", [](OnnxBytes& o) {
    return o.plain("Div", "div", {"m", "made"});
  });
  refused("div (Div): of values", [](OnnxBytes& o) {
    return o.plain("Div", "div", {"made", o.plain("Relu", "relu", {"made"})});
  });
  refused("sum (Sum): with a constant; only a convolution", [](OnnxBytes& o) {
    const std::string relu = o.plain("Relu", "relu", {"made"});
    return o.plain("Sum", "sum", {relu, "a", o.plain("Relu", "relu2", {relu})});
  });
  const NetworkFile by_zero = folded("plain", [](OnnxBytes& o) {
    return o.plain("Div", "div", {"made", number(o, "nought", 0.0f)});
  });
  expect_refused(ErrorKind::Data, "net.onnx: divides channels by 0: export the network again",
                 [&] { (void)by_zero.values({0}); });
  const std::string odd =
      "mul (Mul): with a constant other than one number, or one for each channel";
  for (const Extents& extents : {Extents{4}, {4, 1}, {1, 4, 8, 8}, {1, 1, 8, 1}, {1, 1, 4, 1, 1}})
    refused(odd, [&](OnnxBytes& o) {
      return o.plain("Mul", "mul", {"made", o.weight("w", extents, 1.0)});
    });
}

// A scale that a normalization without one of its own gets from a tensor of the file learns.
TEST(OnnxFoldingTest, WhatLearnsInTheFileLearns) {
  for (const bool tensor : {true, false}) {
    const NetworkFile file = read(around(
        [&](OnnxBytes& o) {
          constant(o, "ones", std::vector<float>(3, 1.0f));
          constant(o, "zeros", std::vector<float>(3));
          o.norm("norm", "x", 3);
          io::onnx::NodeProto& norm = *o.graph().mutable_node(o.graph().node_size() - 1);
          norm.set_input(1, "ones");
          norm.set_input(2, "zeros");
          const std::string factor = o.plain(
              "Unsqueeze", "u",
              {tensor ? o.weight("w", {3}, 1.0) : std::string("ones"), o.integers("axes", {1, 2})});
          return o.plain("Flatten", "flat", {o.plain("Mul", "mul", {"norm_out", factor})});
        },
        192));
    ASSERT_EQ(ops_of(file.graph), "norm:BatchNorm fc:Dense");
    EXPECT_EQ(file.graph.parameters[0].fixed, !tensor);
    EXPECT_TRUE(file.graph.parameters[1].fixed);
  }
}

}  // namespace
}  // namespace millrace::io
