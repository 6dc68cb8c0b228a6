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

/// Nodes that are one op.
struct Function {
  Activate expected;
  std::string nodes;
};

TEST(OnnxFunctionTest, IsOneOp) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  constexpr Activate kHardSwish = {Activation::HardSwish, {}};
  const std::string six = "add = Add (x, 3.0)\n c = Clip (add, 0.0, 6.0)\n";  // clip(x + 3, 0, 6)
  for (const auto& [expected, nodes] : std::vector<Function>{
           {kHardSwish, "f = HardSwish (x)"},
           {kHardSwish, "gate = HardSigmoid <alpha = 0.16666667> (x)\n f = Mul (gate, x)"},
           {kHardSwish, six + "gate = Div (c, 6.0)\n f = Mul (x, gate)"},
           {kHardSwish, six + "both = Mul (c, x)\n f = Mul (0.16666667, both)"},
           {{Activation::HardSigmoid, {1.0f / 6.0f, 0.5f}},
            six + "six = Constant <value_float = 6.0> ()\n f = Div (c, six)"},
           {{Activation::HardSigmoid, {0.2f, 0.5f}}, "f = HardSigmoid (x)"},
           {{Activation::HardSigmoid, {1.0f / 6.0f, 0.5f}},
            "f = HardSigmoid <alpha = 0.16666667> (x)"},
           {{Activation::LeakyRelu, {0.01f, 0.0f}}, "f = LeakyRelu (x)"},
           {{Activation::LeakyRelu, {0.1f, 0.0f}}, "f = LeakyRelu <alpha = 0.1> (x)"},
           {{Activation::Clip, {0.0f, 6.0f}}, "f = Clip (x, 0.0, 6.0)"},
           {{Activation::Clip, {-1.0f, 2.0f}}, "f = Clip <min = -1.0, max = 2.0> (x)"},
           {{Activation::Clip, {kLowest, 6.0f}}, "f = Clip (x, , 6.0)"},
           {{Activation::Relu, {}}, "f = Clip (x, 0.0)"}}) {
    SCOPED_TRACE(nodes);
    const Graph graph = graph_of(classifier(nodes + "\n flat = Flatten (f)", 192));
    ASSERT_EQ(graph.ops.size(), 3U) << ops_of(graph);
    EXPECT_EQ(std::get<Activate>(graph.ops[0].kind), expected);
  }
}

TEST(OnnxSumTest, OfSeveralValuesIsAChainOfSums) {
  const Graph three = graph_of(classifier(R"(conv = Conv <pads = [1, 1, 1, 1]> (x, w[3, 3, 3, 3])
                                             relu = Relu (x)
                                             sum = Sum (conv, relu, x)
                                             flat = Flatten (sum))",
                                          192));
  EXPECT_EQ(ops_of(three), "conv:Conv relu:Activation sum:Add sum_2:Add fc:Dense");
  EXPECT_EQ(three.ops[3].inputs, (std::vector{three.ops[2].output, Graph::input()}));
}

// ---- constants by channel

constexpr std::size_t kChannels = 4;

/// Nodes behind a layer of four channels, which makes `made`. `m` and `a` are constants of them.
OnnxBytes behind(const std::string& layer, const std::string& nodes) {
  OnnxBytes o({-1, 3, 8, 8});
  std::string y = o.conv("conv", "x", {4, 3, 3, 3}, 1, 1, 1, layer == "biased");
  if (layer == "norm") y = o.norm("norm", o.plain("Relu", "relu", {y}), 4);
  o.graph().mutable_node(o.graph().node_size() - 1)->set_output(0, "made");
  o.weight("m", {4, 1, 1}, 0.5, 1.0);
  o.weight("a", {1, 4, 1, 1}, 0.5);
  o.weight("v", {4}, 0.5, 1.0);
  return classifier(nodes + "\n flat = Flatten (f)", 256, o);
}
NetworkFile folded(const std::string& layer, const std::string& nodes) {
  return read(behind(layer, nodes));
}
const std::string kNone = "f = Identity (made)";

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
  const std::string scaled = "f = Mul (made, m)";
  const std::string shifted = "f = Add (a, made)";
  const std::string both = "s = Mul (made, m)\n f = Sum (s, a)";
  const std::string reversed = "s = Add (a, made)\n f = Mul (m, s)";
  const std::string rest = "f = Sub (a, made)";
  const std::string normal = "s = Sub (made, a)\n f = Div (s, m)";
  const auto am = [](std::size_t c) { return a(c) * m(c); };
  const auto negative = [](std::size_t c) { return -a(c); };
  const auto minus = [](std::size_t) { return -1.0; };
  const auto inverse = [](std::size_t c) { return 1.0 / m(c); };
  const auto moved = [](std::size_t c) { return -a(c) / m(c); };
  const auto twice = [](std::size_t c) { return 2.0 * a(c); };
  struct Case {
    std::string layer;
    std::string nodes;
    double (*factor)(std::size_t);
    double (*addend)(std::size_t);
  };
  for (const auto& [layer, nodes, factor, addend] :
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
                         {"plain", "f = Sub (made, a)", one, negative},
                         {"plain", rest, minus, a},
                         {"plain", "f = Div (made, m)", inverse, zero},
                         {"plain", normal, inverse, moved},
                         {"plain", "f = Sum (a, made, a)", one, twice},
                         {"biased", rest, minus, a},
                         {"norm", rest, minus, a},
                         {"norm", normal, inverse, moved}}) {
    SCOPED_TRACE(layer + ": " + nodes);
    const NetworkFile file = folded(layer, nodes);
    const NetworkFile bare = folded(layer, kNone);
    const bool norm = layer == "norm";
    EXPECT_EQ(ops_of(file.graph),
              norm ? "conv:Conv relu:Activation norm:BatchNorm fc:Dense" : "conv:Conv fc:Dense");
    const std::string at = norm ? "norm/gamma" : "conv/kernel";
    expect_affine(values_of(file, at), values_of(bare, at), factor, zero);
    const std::string shift = norm ? "norm/beta" : "conv/bias";
    if (layer == "plain" && addend == zero) {
      EXPECT_FALSE(std::get<models::Conv>(file.graph.ops[0].kind).bias);
      continue;
    }
    expect_affine(values_of(file, shift),
                  layer == "plain" ? std::vector<float>(kChannels) : values_of(bare, shift), factor,
                  addend);
  }
}

// [C] becomes [1, C, 1, 1] in several ways; a constant may also be one number.
TEST(OnnxFoldingTest, ConstantsMayBeArrangedByNodes) {
  const std::vector<float> before = values_of(folded("plain", kNone), "conv/kernel");
  const auto expect = [&](const std::string& constant,
                          const std::function<double(std::size_t)>& factor) {
    const NetworkFile file = folded("plain", constant + "\n f = Mul (made, u)");
    expect_affine(values_of(file, "conv/kernel"), before, factor, zero);
  };
  const auto v = [](std::size_t c) { return 1.0 + 0.5 * NamedUniform("v@0")(c); };
  expect("u = Unsqueeze (v, [1, 2])", v);
  expect("u = Reshape (v, [1, -1, 1, 1])", v);
  expect("u = Constant <value_float = 2.0> ()", [](std::size_t) { return 2.0; });
}

// Of the values of a sum, the first that an op right before it makes takes the constants.
TEST(OnnxFoldingTest, ASumOfValuesAndConstantsAddsTheConstantsToOne) {
  const NetworkFile file = folded("plain", R"(side = Conv (x, side.weight[4, 3, 1, 1])
                                              relu = Relu (side)
                                              last = Conv (x, last.weight[4, 3, 1, 1])
                                              f = Sum (relu, a, made, last))");
  EXPECT_EQ(ops_of(file.graph),
            "conv:Conv side:Conv relu:Activation last:Conv f:Add f_2:Add fc:Dense");
  expect_affine(values_of(file, "conv/bias"), std::vector<float>(kChannels), one, a);
  for (const char* without : {"side", "last"})
    EXPECT_FALSE(std::get<models::Conv>(op_named(file.graph, without).kind).bias) << without;
}

TEST(OnnxFoldingTest, DenseOpsTakeConstantsOfTheirUnits) {
  OnnxBytes o({-1, 3, 1, 1}, "add");
  o.weight("m", {4}, 0.5, 1.0);
  o.weight("a", {1, 4}, 0.5);
  add_nodes(o, R"(flat = Flatten (x)
                  fc = MatMul (flat, w[3, 4])
                  mul = Mul (fc, m)
                  add = Add (mul, a))");
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
  const std::string alone =
      " with a constant; only a convolution, a dense op or a normalization right before it, that "
      "nothing else reads, takes one";
  const std::string odd = "f (Mul): with a constant other than one number, or one for each channel";
  for (const auto& [nodes, message] : std::vector<std::pair<std::string, std::string>>{
           {"relu = Relu (made)\n f = Mul (relu, m)", "f (Mul):" + alone},
           {"mul = Mul (made, m)\n f = Add (made, mul)", "mul (Mul):" + alone},
           {"f = Div (m, made)", "f (Div): of a constant by a value"},
           {"relu = Relu (made)\n f = Div (made, relu)", "f (Div): of values"},
           {"r1 = Relu (made)\n r2 = Relu (r1)\n f = Sum (r1, a, r2)", "f (Sum):" + alone},
           {"f = Mul (made, w[4])", odd},
           {"f = Mul (made, w[4, 1])", odd},
           {"f = Mul (made, w[1, 4, 8, 8])", odd},
           {"f = Mul (made, w[1, 1, 8, 1])", odd},
           {"f = Mul (made, w[1, 1, 4, 1, 1])", odd}})
    expect_refused(behind("plain", nodes), message);
  const NetworkFile by_zero = folded("plain", "f = Div (made, 0.0)");
  expect_refused(ErrorKind::Data, "net.onnx: divides channels by 0: export the network again",
                 [&] { (void)by_zero.values({0}); });
}

// A scale that a normalization without one of its own gets from a tensor of the file learns.
TEST(OnnxFoldingTest, WhatLearnsInTheFileLearns) {
  for (const bool tensor : {true, false}) {
    const NetworkFile file =
        read(classifier(fmt::format(R"(ones = Constant <value = {{1.0, 1.0, 1.0}}> ()
                       zeros = Constant <value = {{0.0, 0.0, 0.0}}> ()
                       norm = BatchNormalization (x, ones, zeros, mean[3], var[3])
                       u = Unsqueeze ({}, [1, 2])
                       mul = Mul (norm, u)
                       flat = Flatten (mul))",
                                    tensor ? "w[3]" : "ones"),
                        192));
    ASSERT_EQ(ops_of(file.graph), "norm:BatchNorm fc:Dense");
    EXPECT_EQ(file.graph.parameters[0].fixed, !tensor);
    EXPECT_TRUE(file.graph.parameters[1].fixed);
  }
}

}  // namespace
}  // namespace millrace::io
