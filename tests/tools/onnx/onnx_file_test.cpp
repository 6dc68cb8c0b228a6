// SPDX-License-Identifier: Apache-2.0
#include "tools/onnx/onnx_file.hpp"

#include "models/graph_json.hpp"
#include "models/registry.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/tools/onnx/onnx_fixtures.hpp"

namespace millrace::io {
namespace {

using models::Parameter;
using test::TemporaryDirectory;

using Place = std::array<int, 4>;

// ---- what nodes become

TEST(OnnxFileTest, NodesBecomeLayersOfTheirName) {
  const Graph plain = graph_of(test::plain_network());
  EXPECT_EQ(ops_of(plain),
            "c1:Conv n1:BatchNorm r1:Activation p1:Pool c2:Conv r2:Activation fc:Dense");
  EXPECT_EQ(plain.name, "net");
  EXPECT_EQ(plain.classes, 10);
  EXPECT_EQ(plain.input_shape, (Shape{16, 16, 3}));
  EXPECT_EQ(plain.trainable_elements(), 216 + 16 + 864 + 12 + 1920 + 10);
  const auto& norm = std::get<models::BatchNorm>(op_named(plain, "n1").kind);
  EXPECT_EQ(norm.epsilon, 1e-5);  // not the nearest float
  EXPECT_EQ(norm.decay, 0.9);

  // The matrix product and the sum behind it are one op.
  EXPECT_EQ(ops_of(graph_of(test::dense_network())),
            "stem:Conv d1.norm:BatchNorm d1.relu:Activation d1.conv:Conv d1.cat:Concat "
            "d2.norm:BatchNorm d2.relu:Activation d2.conv:Conv d2.cat:Concat d3.norm:BatchNorm "
            "d3.relu:Activation d3.conv:Conv d3.cat:Concat transition:Conv pool:Pool "
            "norm:BatchNorm relu:Activation mean:GlobalAveragePool fc:Dense");
  // So are a sigmoid and the product with what it reads.
  const Graph depthwise = graph_of(test::depthwise_network());
  EXPECT_EQ(ops_of(depthwise),
            "c1:Conv n1:BatchNorm silu1/Mul:Activation dw:Conv n2:BatchNorm silu2/Mul:Activation "
            "squeeze:GlobalAveragePool reduce:Conv relu:Activation expand:Conv gate:Activation "
            "scale:ScaleChannels project:Conv n3:BatchNorm sum:Add mean:GlobalAveragePool "
            "fc:Dense");
  EXPECT_EQ(std::get<models::Conv>(op_named(depthwise, "dw").kind).groups, 8);
}

TEST(OnnxFileTest, ElementsChangeTheirOrder) {
  const NetworkFile file = read(test::plain_network());
  const auto values = [&](const char* name) { return values_of(file, name); };
  // OIHW becomes OHWI.
  const std::vector<float> kernel = values("c2/kernel");
  const test::NamedUniform k("c2.weight@0");
  const double scale = std::sqrt(6.0 / 72.0);
  for (const auto& [o, i, y, x] : {Place{0, 0, 0, 1}, Place{3, 5, 2, 0}, Place{11, 7, 2, 2}})
    EXPECT_EQ(
        kernel[static_cast<std::size_t>(((o * 3 + y) * 3 + x) * 8 + i)],
        static_cast<float>(scale * k(static_cast<std::size_t>(((o * 8 + i) * 3 + y) * 3 + x))));
  // A flattened image has its channels outermost in the file, and innermost here.
  const std::vector<float> matrix = values("fc/kernel");
  const test::NamedUniform m("fc.weight@0");
  for (const auto& [unit, y, x, c] : {Place{0, 0, 1, 0}, Place{4, 2, 3, 7}, Place{9, 3, 3, 11}})
    EXPECT_EQ(
        matrix[static_cast<std::size_t>(unit * 192 + (y * 4 + x) * 12 + c)],
        static_cast<float>(0.02 * m(static_cast<std::size_t>(unit * 192 + c * 16 + y * 4 + x))));
  EXPECT_EQ(values("n1/moving_variance"), std::vector<float>(8, 1.0f));
  // [in][units] becomes [units][in].
  const NetworkFile dense = read(test::dense_network());
  const std::vector<float> product =
      dense.values({static_cast<std::int32_t>(dense.graph.parameters.size() - 2)});
  const test::NamedUniform p("fc.weight@0");
  EXPECT_EQ(product[3 * 10 + 7], static_cast<float>(0.08 * p(7 * 10 + 3)));
}

io::onnx::TensorShapeProto& input_shape(OnnxBytes& o) {
  return *o.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
}

io::onnx::AttributeProto& attribute_of(OnnxBytes& o, int node, const char* name) {
  auto& all = *o.graph().mutable_node(node)->mutable_attribute();
  return *std::ranges::find_if(all, [&](const auto& one) { return one.name() == name; });
}

TEST(OnnxFileTest, ShapesThatAreComputedAreFollowed) {
  // x.view(x.size(0), -1) as PyTorch exports it.
  const OnnxBytes viewed = around(
      [](OnnxBytes& o) {
        o.plain("Shape", "shape", {"x"});
        o.integers("zero", {0});
        o.graph().mutable_initializer(0)->clear_dims();
        o.node("Gather", "gather", {"shape_out", "zero"}, "batch");
        o.node("Unsqueeze", "unsqueeze", {"batch", o.integers("axes", {0})}, "batches");
        io::onnx::NodeProto& to =
            o.node("Concat", "concat", {"batches", o.integers("rest", {-1})}, "to");
        OnnxBytes::set(to, "axis", std::int64_t{0});
        return o.plain("Reshape", "reshape", {"x", "to"});
      },
      192);
  EXPECT_EQ(ops_of(graph_of(viewed)), "fc:Dense");
  // The same with a file for two images.
  OnnxBytes fixed = around(
      [](OnnxBytes& o) {
        return o.plain("Reshape", "reshape", {"x", o.integers("to", {2, 192})});
      },
      192);
  input_shape(fixed).mutable_dim(0)->set_dim_value(2);
  EXPECT_EQ(ops_of(graph_of(fixed)), "fc:Dense");
  const OnnxBytes grouped = around(
      [](OnnxBytes& o) {
        return o.plain("Reshape", "reshape", {"x", o.integers("to", {0, 64, 3})});
      },
      192);
  expect_refused(grouped, "reshape (Reshape): of 192 values per image");
}

TEST(OnnxFileTest, AValueThatIsReadTwiceIsCopied) {
  const Graph graph = graph_of(around(
      [](OnnxBytes& o) {
        const std::string sum = o.plain("Add", "sum", {"x", "x"});
        return o.plain("Flatten", "flat", {o.plain("Add", "sum/copy", {sum, sum})});
      },
      192));
  EXPECT_EQ(ops_of(graph),
            "sum/copy:ShortcutPad sum:Add sum/copy_2/copy:ShortcutPad sum/copy_2:Add fc:Dense");
}

/// Squeeze and excite whose scale becomes an image by `arrange`.
OnnxBytes excited(const std::function<std::string(OnnxBytes&, const std::string&)>& arrange) {
  return around(
      [&](OnnxBytes& o) {
        io::onnx::NodeProto& mean =
            o.node("ReduceMean", "mean", {"x", o.integers("axes", {2, 3})}, "mean_out");
        OnnxBytes::set(mean, "keepdims", std::int64_t{0});
        const std::string gate = o.plain("Sigmoid", "gate", {"mean_out"});
        const std::string y = o.plain("Mul", "scale", {"x", arrange(o, gate)});
        return o.plain("Flatten", "flat", {y});
      },
      192);
}

TEST(OnnxFileTest, ScalesBecomeImagesStepByStep) {
  const char* const expected =
      "mean:GlobalAveragePool gate:Activation scale:ScaleChannels fc:Dense";
  for (const auto& axes : {std::pair<std::int64_t, std::int64_t>{-1, -1}, {2, 3}, {2, 2}})
    EXPECT_EQ(
        ops_of(graph_of(excited([&](OnnxBytes& o, const std::string& gate) {
          const std::string a = o.plain("Unsqueeze", "u1", {gate, o.integers("a1", {axes.first})});
          return o.plain("Unsqueeze", "u2", {a, o.integers("a2", {axes.second})});
        }))),
        expected);
  const auto repeated = [](std::int64_t width) {
    return excited([&](OnnxBytes& o, const std::string& gate) {
      const std::string one = o.plain("Unsqueeze", "u", {gate, o.integers("a", {2, 3})});
      return o.plain("Expand", "expand", {one, o.integers("to", {1, 3, 8, width})});
    });
  };
  EXPECT_EQ(ops_of(graph_of(repeated(8))), expected);
  // What no op can make is refused by name.
  expect_refused(repeated(16), "scale (Mul): of a value that an Expand makes larger");
  expect_refused(
      excited([](OnnxBytes& o, const std::string& gate) {
        const std::string one = o.plain("Unsqueeze", "u", {gate, o.integers("a", {2, 3})});
        const std::string all = o.plain("Expand", "e", {one, o.integers("to", {1, 3, 8, 8})});
        return o.plain("Relu", "relu", {all});
      }),
      "relu (Relu): behind an Expand; only a Mul may read");
  expect_refused(
      excited([](OnnxBytes& o, const std::string& gate) {
        const std::string three = o.plain("Unsqueeze", "u", {gate, o.integers("a", {-1})});
        return o.plain("Relu", "relu", {three});
      }),
      "relu (Relu): of a value of three axes");
}

TEST(OnnxFileTest, MaximumOverTheImageIsAPool) {
  for (const std::int64_t keeps : {0, 1}) {
    const Graph graph = graph_of(around(
        [&](OnnxBytes& o) {
          io::onnx::NodeProto& made =
              o.node("ReduceMax", "max", {"x", o.integers("axes", {3, 2})}, "max_out");
          OnnxBytes::set(made, "keepdims", keeps);
          return o.plain("Flatten", "flat", {"max_out"});
        },
        3));
    EXPECT_EQ(ops_of(graph), "max:Pool fc:Dense");
    EXPECT_EQ(std::get<models::Pool>(op_named(graph, "max").kind),
              (models::Pool{.kernel = {8, 8}, .stride = {8, 8}}));
  }
}

/// nn.GroupNorm(2, 6) as PyTorch exports it, with a scale of the groups that should be 1.
OnnxBytes grouped(float scale, const char* reader) {
  return around(
      [&](OnnxBytes& o) {
        const std::string x = o.conv("conv", "x", {6, 3, 3, 3}, 1, 1);
        const std::string groups = o.plain("Reshape", "n/r1", {x, o.integers("to", {0, 2, -1})});
        o.weight("ones", {2}, 0.0, static_cast<double>(scale));
        o.weight("zeros", {2}, 0.0);
        const std::string normal =
            o.plain("InstanceNormalization", "n/normal", {groups, "ones", "zeros"});
        const std::string shape = o.plain("Shape", "n/shape", {x});
        const std::string image = o.plain("Reshape", "n/r2", {normal, shape});
        o.integers("behind", {1, 2});
        o.weight("n.weight", {6}, 1.0);
        o.weight("n.bias", {6}, 1.0);
        const std::string gamma = o.plain("Unsqueeze", "n/u1", {"n.weight", "behind"});
        const std::string beta = o.plain("Unsqueeze", "n/u2", {"n.bias", "behind"});
        const std::string scaled = o.plain("Mul", "n/mul", {image, gamma});
        const std::string y = o.plain("Add", "n/add", {scaled, beta});
        return o.plain("Flatten", "flat", {std::string(reader) == "norm" ? y : reader});
      },
      384);
}

TEST(OnnxFileTest, ReshapedInstancesAreAGroupNormalization) {
  const NetworkFile file = read(grouped(1.0f, "norm"));
  EXPECT_EQ(ops_of(file.graph), "conv:Conv n/normal:GroupNorm fc:Dense");
  EXPECT_EQ(std::get<models::GroupNorm>(op_named(file.graph, "n/normal").kind),
            (models::GroupNorm{.groups = 2, .epsilon = 1e-5}));
  const test::NamedUniform gamma("n.weight@0");
  EXPECT_EQ(file.values({1})[4], static_cast<float>(gamma(4)));
  EXPECT_TRUE(file.graph.parameters[1].learns());
  expect_refused(grouped(2.0f, "norm"), "n/normal (InstanceNormalization): that scales or shifts");
  for (const char* part : {"n/normal_out", "n/r2_out", "n/mul_out"})
    expect_refused(grouped(1.0f, part), "flat (Flatten): of channels in groups");
}

TEST(OnnxFileTest, ConstantsOfAnyKindAreRefusedOnlyIfAWeightIsNeeded) {
  OnnxBytes file = test::plain_network();
  io::onnx::NodeProto& text = file.node("Constant", "text", {}, "text");
  OnnxBytes::attribute(text, "value_string", io::onnx::AttributeProto::STRING).set_s("a");
  for (int i = file.graph().node_size() - 1; i > 0; --i)
    file.graph().mutable_node()->SwapElements(i, i - 1);
  io::onnx::NodeProto& conv = *file.graph().mutable_node(1);
  io::onnx::NodeProto& norm = *file.graph().mutable_node(2);
  norm.set_op_type("CastLike");  // to the type of the text, so to speak
  norm.clear_input();
  norm.add_input(conv.output(0));
  norm.add_input("text");
  EXPECT_EQ(ops_of(graph_of(file)), "c1:Conv r1:Activation p1:Pool c2:Conv r2:Activation fc:Dense");
  conv.add_input("text");  // as the bias
  expect_refused(file, "c1 (Conv): the weight 'text' is computed");
}

/// A normalization with gamma and beta from nodes, as PyTorch's two exporters write `affine=False`.
OnnxBytes without_affine(bool expands) {
  return around(
      [&](OnnxBytes& o) {
        for (const auto& [name, value] :
             {std::pair<const char*, float>{"ones", 1.0f}, {"zeros", 0.0f}}) {
          const std::string one = std::string(name) + "/one";
          if (!expands) {
            constant(o, name, std::vector<float>(3, value));
            continue;
          }
          io::onnx::NodeProto& made = o.node("Constant", name, {}, one);
          OnnxBytes::attribute(made, "value_floats", io::onnx::AttributeProto::FLOATS)
              .add_floats(value);
          o.node("Expand", name, {one, o.integers(one + "/to", {3})}, name);
        }
        const std::string y = o.norm("norm", "x", 3);
        o.graph().mutable_node(o.graph().node_size() - 1)->set_input(1, "ones");
        o.graph().mutable_node(o.graph().node_size() - 1)->set_input(2, "zeros");
        return o.plain("Flatten", "flat", {y});
      },
      192);
}

TEST(OnnxFileTest, ConstantsOfNormalizationsDoNotLearn) {
  for (const bool expands : {false, true}) {
    const NetworkFile file = read(without_affine(expands));
    ASSERT_EQ(ops_of(file.graph), "norm:BatchNorm fc:Dense");
    EXPECT_EQ(file.graph.trainable_elements(), 1920);
    Graph trained = file.graph;
    models::train_only(trained, {});
    for (const Parameter& parameter : trained.parameters)
      EXPECT_EQ(parameter.learns(), parameter.name == "fc/kernel") << parameter.name;
    EXPECT_EQ(file.values({0}), std::vector<float>(3, 1.0f));
    EXPECT_EQ(file.values({1}), std::vector<float>(3, 0.0f));
    // Checkpoints keep the network as JSON.
    const Graph kept = models::graph_from_json(Json::parse(to_json(file.graph).dump()));
    EXPECT_EQ(kept, file.graph);
  }
  EXPECT_TRUE(graph_of(test::plain_network()).parameters[1].learns());
}

TEST(OnnxFileTest, WindowsKeepTheirPadding) {
  const auto pool = [](std::int64_t size, std::int64_t stride, std::int64_t ceil) {
    return graph_of(around(
        [&](OnnxBytes& o) {
          io::onnx::NodeProto& made = o.node("MaxPool", "pool", {"x"}, "pooled");
          OnnxBytes::set(made, "kernel_shape", Extents{size, size});
          OnnxBytes::set(made, "strides", Extents{stride, stride});
          OnnxBytes::set(made, "ceil_mode", ceil);
          return o.plain("Flatten", "flat", {"pooled"});
        },
        ceil != 0 ? 48 : 27));
  };
  const auto pad_of = [](const Graph& graph) {
    return std::get<models::Pool>(op_named(graph, "pool").kind).pad;
  };
  EXPECT_EQ(pad_of(pool(3, 2, 0)), models::Padding{});
  EXPECT_EQ(pad_of(pool(3, 2, 1)), (models::Padding{.bottom = 1, .right = 1}));
  // The padding of TensorFlow, which puts the odd pixel behind, and of a Pad.
  const Graph convolved = graph_of(around(
      [](OnnxBytes& o) {
        o.node("Pad", "pad", {"x", o.integers("pads", {0, 0, 1, 0, 0, 0, 0, 2})}, "padded");
        const std::string y = o.conv("conv", "padded", {2, 3, 3, 3}, 2, 0);
        return o.plain("Flatten", "flat", {y});
      },
      2 * 4 * 4));
  EXPECT_EQ(std::get<models::Conv>(op_named(convolved, "conv").kind).pad,
            (models::Padding{.top = 1, .right = 2}));
  const Graph same = graph_of(around(
      [](OnnxBytes& o) {
        const std::string y = o.conv("conv", "x", {2, 3, 3, 3}, 2, 0);
        attribute_of(o, 0, "pads").set_name("unused");
        OnnxBytes::attribute(*o.graph().mutable_node(0), "auto_pad",
                             io::onnx::AttributeProto::STRING)
            .set_s("SAME_UPPER");
        return o.plain("Flatten", "flat", {y});
      },
      2 * 4 * 4));
  EXPECT_EQ(std::get<models::Conv>(op_named(same, "conv").kind).pad,
            (models::Padding{.bottom = 1, .right = 1}));
}

// As PyTorch exports F.pad(x, [0, pad, 0, pad]), whose list may follow from the size of the image:
// here it is that of "same" padding, (ceil(8 / 2) - 1) x 2 + 3 - 8 = 1.
TEST(OnnxFileTest, PaddingsThatAreComputedAreFollowed) {
  const auto padded = [](OnnxBytes& o) {
    const std::string shape = o.plain("Shape", "shape", {"x"});
    const std::string side = o.plain("Gather", "side", {shape, number_of(o, "three", 3)});
    const std::string two = number_of(o, "two", 2);
    const std::string half = o.plain("Div", "half", {o.plain("Neg", "neg", {side}), two});
    const std::string windows =
        o.plain("Sub", "less", {o.plain("Neg", "up", {half}), number_of(o, "one", 1)});
    const std::string reach =
        o.plain("Add", "reach", {o.plain("Mul", "steps", {windows, two}), "three"});
    const std::string more = o.plain("Sub", "more", {reach, side});
    const std::string front = o.integers("front", {0});
    const std::string pad = o.plain("Unsqueeze", "pad1", {more, front});
    const std::string list = o.plain("Concat", "list", {front, pad, front, pad});

    // Nothing but a Shape reads this one.
    const std::string same = o.plain("Concat", "same", {front, pad, front, pad});
    const std::string count = o.plain("Gather", "count", {o.plain("Shape", "own", {same}), front});
    const std::string open =
        o.plain("Sub", "open", {o.plain("Mul", "axes2", {o.integers("rank", {4}), two}), count});
    io::onnx::NodeProto& zeros = o.node("ConstantOfShape", "zeros", {open}, "zeros");
    io::onnx::TensorProto& zero =
        *OnnxBytes::attribute(zeros, "value", io::onnx::AttributeProto::TENSOR).mutable_t();
    zero.set_data_type(io::onnx::TensorProto::INT64);
    zero.add_dims(1);
    zero.add_int64_data(0);
    const std::string all = o.plain("Concat", "all", {list, "zeros"});
    const std::string pairs = o.plain("Reshape", "pairs", {all, o.integers("by_two", {-1, 2})});
    const std::string reversed = o.plain(
        "Slice", "reversed",
        {pairs, o.integers("last", {-1}),
         o.integers("before", {std::numeric_limits<std::int64_t>::min() + 1}), front, "last"});
    io::onnx::NodeProto& turned = o.node("Transpose", "turned", {reversed}, "turned");
    OnnxBytes::set(turned, "perm", Extents{1, 0});
    const std::string pads = o.plain("Reshape", "flat_pads", {"turned", "last"});
    const std::string y = o.conv("conv", o.plain("Pad", "pad", {"x", pads}), {2, 3, 3, 3}, 2, 0);
    return o.plain("Flatten", "flat", {y});
  };
  const Graph graph = graph_of(around(padded, 2 * 4 * 4));
  EXPECT_EQ(ops_of(graph), "conv:Conv fc:Dense");
  EXPECT_EQ(std::get<models::Conv>(op_named(graph, "conv").kind).pad,
            (models::Padding{.bottom = 1, .right = 1}));
}

// Quotients of integers are cut; those of real numbers need none that is cut.
TEST(OnnxFileTest, QuotientsAreThoseOfTheirType) {
  const auto padded = [](std::int64_t by, bool real) {
    return around(
        [&](OnnxBytes& o) {
          std::string three = number_of(o, "three", 3);
          if (real) {
            io::onnx::NodeProto& cast = o.node("Cast", "real", {three}, "real");
            OnnxBytes::set(cast, "to", std::int64_t{io::onnx::TensorProto::FLOAT});
            three = "real";
          }
          const std::string pad = o.plain("Div", "div", {three, number_of(o, "by", by)});
          const std::string one = o.plain("Unsqueeze", "one", {pad, o.integers("front", {0})});
          o.plain("Concat", "pads", {o.integers("more", {0, 0, 0, 0, 0, 0, 0}), one});
          const std::string y =
              o.conv("conv", o.plain("Pad", "pad", {"x", "pads_out"}), {2, 3, 3, 3}, 1, 1);
          return o.plain("Flatten", "flat", {y});
        },
        2 * 8 * (by == 1 ? 11 : 9));
  };
  const auto right = [&](std::int64_t by, bool real) {
    const Graph graph = graph_of(padded(by, real));
    return std::get<models::Conv>(op_named(graph, "conv").kind).pad.right - 1;
  };
  EXPECT_EQ(right(2, false), 1);
  EXPECT_EQ(right(1, true), 3);
  expect_refused(padded(2, true), "div (Div): of integers with a remainder");
  expect_refused(padded(0, false), "div (Div): by 0");
}

TEST(OnnxFileTest, PathsOfPyTorchsModulesNameLayers) {
  OnnxBytes file = test::plain_network();
  io::onnx::NodeProto& conv = *file.graph().mutable_node(0);
  conv.set_name("node_conv2d");
  io::onnx::StringStringEntryProto& scope = *conv.add_metadata_props();
  scope.set_key("pkg.torch.onnx.name_scopes");
  scope.set_value("['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d']");
  file.graph().mutable_node(1)->set_name("/layer1/kernel/a b,c/..");
  file.graph().mutable_node(2)->set_name("");
  const Graph graph = graph_of(file);
  EXPECT_EQ(graph.ops[0].name, "layer1/0/conv1/conv2d");
  EXPECT_EQ(graph.ops[1].name, "layer1/kernel_/a_b_c/.._");  // fit for files and for lists
  EXPECT_EQ(graph.ops[2].name, "relu_2");
}

// ---- what is refused

TEST(OnnxFileTest, AllNodesWithoutCounterpartAreListed) {
  OnnxBytes file({-1, 3, 8, 8});
  file.node("Mish", "features.0", {"x"}, "a");
  file.node("Conv", "features.1", {"a", file.weight("w", {3, 3, 3, 3}, 1.0)}, "b");
  file.node("Erf", "features.2", {"b"}, "c");
  io::onnx::NodeProto& own = file.node("Gelu", "features.3", {"c"}, "d");
  own.set_domain("com.microsoft");
  file.node("Tanh", "", {"x"}, "e");
  file.node("Add", "sum", {"d", "e"}, "y");
  file.node("Erf", "unread", {"x"}, "f");
  expect_refused(
      ErrorKind::Config,
      "net.onnx: 5 of 6 nodes have no counterpart in millrace: features.0 (Mish); features.2 "
      "(Erf); features.3 (com.microsoft.Gelu); the node that makes 'e' (Tanh); sum "
      "(Add): cannot add shapes 6x6x3 and 8x8x3",
      [&] { (void)read(file); });
}

// The list has the node already.
TEST(OnnxFileTest, WhatDoesNotFitIsListedOnce) {
  OnnxBytes file({-1, 3, 8, 8});
  file.conv("/features/0/Conv", "x", {3, 3, 9, 9}, 1, 0);
  expect_error(ErrorKind::Config,
               "net.onnx: 1 of 1 nodes have no counterpart in millrace: /features/0/Conv (Conv): a "
               "window of 9x9 pixels does not fit into input 8x8x3 padded to 8x8",
               [&] {
                 file.graph().mutable_output(0)->set_name("/features/0/Conv_out");
                 (void)read(file);
               });
}

// The sizes of the parts are computed from those of the image, which is no fault of the network.
TEST(OnnxFileTest, PartsOfChannelsAreRefusedAlone) {
  const auto refused = [](const char* type) {
    OnnxBytes o({-1, 4, 8, 8});
    const std::string one = number_of(o, "one", 1);
    const std::string channels =
        o.plain("Gather", "channels", {o.plain("Shape", "shape", {"x"}), one});
    const std::string half =
        o.plain("Div", "half", {o.plain("Add", "up", {channels, one}), number_of(o, "two", 2)});
    const std::string end = o.plain("Mul", "end", {half, one});
    const std::string axis = o.integers("axis", {1});
    std::string part = "x";
    if (std::string(type) == "Split")
      part = o.plain(type, "part", {"x", o.integers("sizes", {2, 2})});
    else
      part = o.plain(type, "part",
                     {"x", o.integers("begin", {0}),
                      o.plain("Unsqueeze", "list", {end, o.integers("front", {0})}), axis});
    o.node("Relu", "relu", {part}, "y");
    expect_refused(o, std::string("nodes have no counterpart in millrace: part (") + type +
                          "): of a part of the channels, as torch.split and torch.chunk make: give "
                          "each part a convolution of its own, or one with groups");
  };
  refused("Split");
  refused("Slice");
}

// F.interpolate(x, scale_factor=2), as PyTorch exports it without folding constants.
TEST(OnnxFileTest, ScalesOfAResizeAreNoDamage) {
  const OnnxBytes file = around(
      [](OnnxBytes& o) {
        for (const char* const name : {"one", "two"}) constant(o, name, {2.0f, 2.0f});
        OnnxBytes::set(o.node("Concat", "scales", {"one", "two"}, "scales"), "axis",
                       std::int64_t{0});
        const std::string y = o.plain("Resize", "up/Resize", {"x", "", "scales"});
        return o.plain("Flatten", "flat", {o.plain("GlobalAveragePool", "mean", {y})});
      },
      3);
  expect_refused(file,
                 "net.onnx: 1 of 7 nodes have no counterpart in millrace: up/Resize (Resize)");
  const OnnxBytes shaped = around(
      [](OnnxBytes& o) {
        o.tensor("half", {1}).add_float_data(0.5f);
        return o.plain("Reshape", "reshape", {"x", "half"});
      },
      192);
  expect_refused(shaped, "reshape (Reshape): of numbers that are no integers");
}

struct Behind {
  const char* first;  ///< a type without a counterpart
  const char* listed;
  std::function<std::string(OnnxBytes&, const std::string&)> add;
};

// Whatever they lack, if that follows from the node alone or from a shape that is known. A Mish
// keeps the shape of the image; that of a Resize is unknown.
TEST(OnnxFileTest, NodesBehindOneWithoutCounterpartAreListed) {
  const auto part = [](OnnxBytes& o, const std::string& x) {
    return o.plain("Reshape", "part", {x, o.integers("to", {0, 64, 3})});
  };
  const auto spread = [](OnnxBytes& o, const std::string& x) {
    io::onnx::NodeProto& pool = o.node("MaxPool", "part", {x}, "pooled");
    OnnxBytes::set(pool, "kernel_shape", Extents{2, 2});
    OnnxBytes::set(pool, "dilations", Extents{2, 2});
    return std::string("pooled");
  };
  const auto shared = [](OnnxBytes& o, const std::string& x) {
    const std::string y = o.conv("once", x, {3, 3, 3, 3}, 1, 1);
    return o.plain("Conv", "part", {y, "once.weight"});
  };
  const auto turned = [](OnnxBytes& o, const std::string& x) {
    OnnxBytes::set(o.node("Transpose", "part", {x}, "turned"), "perm", Extents{0, 2, 3, 1});
    return std::string("turned");
  };
  const auto sized = [](OnnxBytes& o, const std::string& x) {  // reads nothing that is refused
    const std::string side =
        o.plain("Gather", "side", {o.plain("Shape", "shape", {x}), number_of(o, "two", 2)});
    o.plain("Add", "more", {side, "two"});
    const std::string y = o.plain("Reshape", "image", {x, "more_out"});
    return o.plain("Erf", "part", {y});
  };
  for (const auto& [first, listed, add] :
       std::vector<Behind>{{"Mish", "part (Reshape): of 192 values per image", part},
                           {"Resize", "part (MaxPool): with dilations", spread},
                           {"Mish", "part (Conv): shares its kernel", shared},
                           {"Resize", "part (Conv): shares its kernel", shared},
                           {"Resize", "part (Transpose): of a value", turned},
                           {"Resize", "part (Erf)", sized}}) {
    OnnxBytes o({-1, 3, 8, 8});
    std::string x = add(o, o.plain(first, "first", {"x"}));
    for (const char* name : {"a", "b"}) x = o.plain("Erf", name, {x});
    o.node("Flatten", "flat", {x}, "y");
    expect_error(ErrorKind::Config,
                 {std::string("net.onnx: 4 of "), std::string("first (") + first + "); " + listed,
                  std::string("; a (Erf); b (Erf)")},
                 [&] { (void)read(o); });
  }
}

// Converters note the shapes of values.
TEST(OnnxFileTest, ShapesThatTheFileNotesAreKnown) {
  OnnxBytes o({-1, 3, 8, 8});
  const std::string x = o.plain("Resize", "up", {"x"});
  o.node("Reshape", "part", {x, o.integers("to", {0, 64, 3})}, "y");
  io::onnx::ValueInfoProto& note = *o.graph().add_value_info() = o.graph().input(0);
  note.set_name(x);
  expect_refused(o,
                 "2 of 2 nodes have no counterpart in millrace: up (Resize); "
                 "part (Reshape): of 192 values per image");
}

// As tf2onnx writes a network of TensorFlow: the convolution itself has its channels in the second
// place.
TEST(OnnxFileTest, ChannelsInTheLastPlaceNameTheRemedy) {
  OnnxBytes o({-1, 8, 8, 3});
  const auto turned = [&](const std::string& name, const std::string& x, const Extents& perm) {
    OnnxBytes::set(o.node("Transpose", name, {x}, name), "perm", perm);
    return name;
  };
  const std::string x = turned("in", "x", {0, 3, 1, 2});
  const std::string y = o.conv("conv", x, {10, 3, 8, 8}, 1, 0);
  o.node("Flatten", "flat", {turned("out", y, {0, 2, 3, 1})}, "y");
  expect_refused(o,
                 "2 of 4 nodes have no counterpart in millrace: in (Transpose): of a value; out "
                 "(Transpose): of a value: images must be batch, channels, height, width "
                 "throughout: convert with tf2onnx's --inputs-as-nchw x, or export from PyTorch");
}

struct Refusal {
  const char* name;
  ErrorKind kind;
  const char* message;
  std::function<void(OnnxBytes&)> change;
};
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class OnnxRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(OnnxRefusalTest, SaysWhatIsWrong) {
  OnnxBytes file = test::plain_network();
  GetParam().change(file);
  expect_refused(GetParam().kind, GetParam().message, [&] { (void)read(file); });
}

INSTANTIATE_TEST_SUITE_P(
    Files, OnnxRefusalTest,
    testing::Values(
        Refusal{
            "Cycle", ErrorKind::Data,
            "c1 (Conv) reads 'r1_out', which only a later node makes, or a node that reads what "
            "this one makes: the file is damaged",
            [](OnnxBytes& o) { o.graph().mutable_node(0)->set_input(0, "r1_out"); }},
        Refusal{"MissingValue", ErrorKind::Data,
                "c1 (Conv) reads 'z', which neither a node nor a tensor makes",
                [](OnnxBytes& o) { o.graph().mutable_node(0)->set_input(0, "z"); }},
        Refusal{"MissingOutput", ErrorKind::Data, "no node makes the output 'z'",
                [](OnnxBytes& o) { o.graph().mutable_output(0)->set_name("z"); }},
        Refusal{"MadeTwice", ErrorKind::Data, "two nodes or tensors make the value 'c1_out'",
                [](OnnxBytes& o) { o.graph().mutable_node(1)->set_output(0, "c1_out"); }},
        Refusal{"TensorTwice", ErrorKind::Data, "has two tensors 'c1.weight'",
                [](OnnxBytes& o) { o.weight("c1.weight", {1}, 1.0); }},
        Refusal{"KernelOfThreeAxes", ErrorKind::Config,
                "c1 (Conv): with a kernel of 3 axes; those of images have 4",
                [](OnnxBytes& o) {
                  io::onnx::TensorProto& w = *o.graph().mutable_initializer(0);
                  w.mutable_dims()->RemoveLast();
                }},
        Refusal{"KernelForOtherChannels", ErrorKind::Data,
                "c2 (Conv) has a kernel 12x8x3x3 and 3 groups for 8 channels",
                [](OnnxBytes& o) { attribute_of(o, 4, "group").set_i(3); }},
        Refusal{"HugeStride", ErrorKind::Data, "c1 (Conv) has 9223372036854775807 in its attribute",
                [](OnnxBytes& o) { attribute_of(o, 0, "strides").set_ints(0, INT64_MAX); }},
        Refusal{"NegativeExtent", ErrorKind::Data, "tensor 'c1.weight' has the extent -8",
                [](OnnxBytes& o) { o.graph().mutable_initializer(0)->set_dims(0, -8); }},
        Refusal{"WrongType", ErrorKind::Data, "has an attribute 'group' of type 1, not 2",
                [](OnnxBytes& o) {
                  attribute_of(o, 0, "group").set_type(io::onnx::AttributeProto::FLOAT);
                }},
        Refusal{"DynamicHeight", ErrorKind::Config,
                "input 'x' leaves channels, height or width open: export the network with the size "
                "of its images",
                [](OnnxBytes& o) { input_shape(o).mutable_dim(2)->set_dim_param("H"); }},
        Refusal{"ThreeAxes", ErrorKind::Config, "input 'x' has 3 axes, but images have 4",
                [](OnnxBytes& o) { input_shape(o).mutable_dim()->RemoveLast(); }},
        Refusal{"Bytes", ErrorKind::Config, "input 'x' has elements of type 2, not float32",
                [](OnnxBytes& o) {
                  o.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(
                      2);
                }},
        Refusal{"HugeImages", ErrorKind::Data, "are larger than any network reads",
                [](OnnxBytes& o) { input_shape(o).mutable_dim(3)->set_dim_value(INT64_MAX); }},
        Refusal{"TwoInputs", ErrorKind::Config, "has the inputs 'x' and 'other'",
                [](OnnxBytes& o) {
                  *o.graph().add_input() = o.graph().input(0);
                  o.graph().mutable_input(1)->set_name("other");
                }},
        Refusal{"TwoOutputs", ErrorKind::Config, "has 2 outputs",
                [](OnnxBytes& o) { *o.graph().add_output() = o.graph().output(0); }},
        Refusal{"OldOpset", ErrorKind::Config, "was written for opset 6: export it again",
                [](OnnxBytes& o) { o.model.mutable_opset_import(0)->set_version(6); }},
        Refusal{"NoClassifier", ErrorKind::Config, "the output 'r2_out' has shape 4x4x12",
                [](OnnxBytes& o) { o.graph().mutable_output(0)->set_name("r2_out"); }},
        Refusal{"SharedKernel", ErrorKind::Config, "shares its kernel with another node",
                [](OnnxBytes& o) {
                  io::onnx::NodeProto& again = *o.graph().add_node();
                  again = o.graph().node(0);
                  again.set_output(0, "again");
                  o.graph().mutable_node(1)->set_input(0, "both");
                  io::onnx::NodeProto& sum = o.node("Add", "sum", {"c1_out", "again"}, "both");
                  (void)sum;
                  // in topological order
                  auto& nodes = *o.graph().mutable_node();
                  for (int at = nodes.size() - 2, to = 1; at < nodes.size(); ++at, ++to)
                    for (int i = at; i > to; --i) nodes.SwapElements(i, i - 1);
                }},
        Refusal{"NoNetwork", ErrorKind::Data, "is not a network in the format of ONNX",
                [](OnnxBytes& o) { o.graph().clear_node(); }}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(OnnxFileTest, DamagedElementsAreRefusedWhenTheyAreRead) {
  OnnxBytes file = test::plain_network();
  io::onnx::TensorProto& kernel = *file.graph().mutable_initializer(0);
  kernel.mutable_float_data()->RemoveLast();
  expect_refused(ErrorKind::Data, "tensor 'c1.weight' has 215 elements, not 216",
                 [&] { (void)read(file).values({0}); });
  kernel.clear_float_data();
  const NetworkFile stripped = read(file);
  expect_refused(ErrorKind::Data, "has no elements of 'c1.weight'",
                 [&] { (void)stripped.values({0}); });
  kernel.set_raw_data(std::string(100, '\0'));
  expect_refused(ErrorKind::Data, "has 100 bytes for 216 elements",
                 [&] { (void)read(file).values({0}); });
  kernel.set_data_type(3);
  expect_refused(ErrorKind::Data, "has elements of type 3; weights must be float",
                 [&] { (void)read(file).values({0}); });
  for (const std::string& bytes : {std::string(), std::string("\x08"), file.bytes().substr(0, 900)})
    expect_refused(ErrorKind::Data, "net.onnx: is not a network in the format of ONNX",
                   [&] { (void)parse_onnx(bytes, "net.onnx", "net"); });
}

TEST(OnnxFileTest, TensorsBesideTheFileStayInItsFolder) {
  const TemporaryDirectory directory;
  const fs::path folder = directory / "network";
  fs::create_directory(folder);
  fs::create_directory(directory / "elsewhere");
  OnnxBytes file = test::plain_network();
  io::onnx::TensorProto& kernel = *file.graph().mutable_initializer(0);
  std::vector<float> elements(216);
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i);
  kernel.clear_float_data();
  kernel.set_data_location(io::onnx::TensorProto::EXTERNAL);
  const auto written = [&](const fs::path& to) {
    std::ofstream out(to, std::ios::binary);
    out << "head";
    out.write(reinterpret_cast<const char*>(elements.data()), 864);
  };
  const auto opened = [&](const std::string& location, const std::string& offset) {
    kernel.clear_external_data();
    for (const auto& [key, value] : {std::pair<std::string, std::string>{"location", location},
                                     {"offset", offset},
                                     {"length", "864"}}) {
      io::onnx::StringStringEntryProto& entry = *kernel.add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    }
    std::ofstream(folder / "net.onnx", std::ios::binary) << file.bytes();
    return read_onnx(folder / "net.onnx").values({0});
  };
  written(folder / "net.onnx.data");
  written(directory / "elsewhere/data");
  fs::create_symlink(directory / "elsewhere/data", folder / "link");
  EXPECT_EQ(opened("net.onnx.data", "4")[2 * 3], 2.0f);  // OHWI: the third pixel of channel 0
  expect_refused(ErrorKind::Data, "ends at byte 874", [&] { opened("net.onnx.data", "10"); });
  expect_refused(ErrorKind::Data, "has the offset '-1'", [&] { opened("net.onnx.data", "-1"); });
  expect_refused(ErrorKind::Io, "none", [&] { opened("none", "0"); });
  const std::string outside = (directory / "elsewhere/data").string();
  const std::string beyond = "which is not in the folder of the file: move it there";
  const std::string back = "and a path with '..' is refused: export it beside the file";
  const std::string nameless = "which is no name of a file: export it again";
  for (const auto& [location, why] : {std::pair(outside, beyond),
                                      {"link", beyond},
                                      {".", beyond},
                                      {"../elsewhere/data", back},
                                      {"nowhere/../link", back},
                                      {"network/../net.onnx.data", back},
                                      {"", nameless},
                                      {std::string("net.onnx.data\0x", 15), nameless}})
    expect_refused(ErrorKind::Config, why, [&] { opened(location, "0"); });
}

// ---- there and back

/// Every element is another number.
std::vector<std::vector<float>> numbered(const Graph& graph) {
  std::vector<std::vector<float>> all;
  float next = 0.0f;
  for (const Parameter& parameter : graph.parameters) {
    all.emplace_back(static_cast<std::size_t>(parameter.elements()));
    for (float& value : all.back()) value = next++;
  }
  return all;
}

/// Writes a graph with its values and expects that both come back.
std::string expect_round_trip(const Graph& graph, const std::vector<std::vector<float>>& values) {
  std::string bytes =
      to_onnx(graph,
              [&](const Parameter& parameter) -> std::span<const float> {
                return values[static_cast<std::size_t>(&parameter - graph.parameters.data())];
              },
              {});
  const NetworkFile back = parse_onnx(bytes, "net.onnx", "another name");
  EXPECT_EQ(back.graph, graph) << graph.name;
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(back.values({static_cast<std::int32_t>(i)}), values[i]) << graph.parameters[i].name;
  return bytes;
}

TEST(OnnxFileTest, NetworksOfEachFamilyComeBack) {
  for (const models::Family& family : models::families())
    for (const models::Task task : {models::Task::Cifar, models::Task::ImageNet})
      for (const models::NormKind norm : {models::NormKind::Batch, models::NormKind::Group}) {
        models::ModelOptions options = models::default_options(family.name, task);
        options.norm = norm;
        options.group_order = models::GroupOrder::Strided;
        options.image = {64, 64, 3};
        if (task == models::Task::Cifar) options.image = {32, 32, 3};
        const Graph graph = models::build_model(options);
        expect_round_trip(graph, numbered(graph));
      }
}

TEST(OnnxFileTest, NetworksOfOthersComeBack) {
  for (const OnnxBytes& network : {test::plain_network(), test::dense_network(),
                                   test::depthwise_network(), test::mobile_network()}) {
    const NetworkFile file = read(network);
    std::vector<std::vector<float>> values;
    for (std::size_t i = 0; i < file.graph.parameters.size(); ++i)
      values.push_back(file.values({static_cast<std::int32_t>(i)}));
    io::onnx::ModelProto exported;
    ASSERT_TRUE(exported.ParseFromString(expect_round_trip(file.graph, values)));
    // Its nodes say the same as its note.
    exported.clear_metadata_props();
    const Graph plain = parse_onnx(exported.SerializeAsString(), "net.onnx", "net").graph;
    ASSERT_EQ(ops_of(plain), ops_of(file.graph));
    for (std::size_t i = 0; i < plain.ops.size(); ++i)
      if (std::holds_alternative<models::Activate>(plain.ops[i].kind)) {
        EXPECT_TRUE(plain.ops[i].kind == file.graph.ops[i].kind) << plain.ops[i].name;
      }
  }
}

// What another program changed is read like a file of that program.
TEST(OnnxFileTest, NoteOfAGraphCountsOnlyForItsNodes) {
  models::ModelOptions options = models::default_options("squeezenet", models::Task::Cifar);
  const Graph graph = models::build_model(options);
  io::onnx::ModelProto model;
  ASSERT_TRUE(model.ParseFromString(expect_round_trip(graph, numbered(graph))));
  model.mutable_graph()->mutable_node(0)->set_name("changed");
  const NetworkFile changed = parse_onnx(model.SerializeAsString(), "net.onnx", "net");
  EXPECT_EQ(changed.graph.name, "net");
  EXPECT_EQ(changed.graph.ops.front().name, "changed");
  EXPECT_EQ(changed.graph.trainable_elements(), graph.trainable_elements());
  EXPECT_FALSE(changed.graph.find("drop9").valid());  // only the note has it
  EXPECT_EQ(changed.graph.ops.size() + 1, graph.ops.size());
}

}  // namespace
}  // namespace millrace::io
