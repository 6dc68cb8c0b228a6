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

/// Nodes of an image 8x8x3 that make so many features, and the ops that they become.
struct Mapping {
  const char* what;
  std::string nodes;
  std::int64_t features;
  const char* ops;  ///< before fc
};

/// Squeeze and excite whose scale `s` these nodes make of `gate`.
std::string excited(const std::string& nodes) {
  return R"(mean = ReduceMean <keepdims = 0> (x, [2, 3])
            gate = Sigmoid (mean)
            )" +
         nodes + R"(
            scale = Mul (x, s)
            flat = Flatten (scale))";
}
constexpr const char* kExcited = "mean:GlobalAveragePool gate:Activation scale:ScaleChannels ";

/// nn.GroupNorm(2, 6) as PyTorch exports it, with a scale of the groups that should be 1.
std::string grouped(const std::string& scale, const std::string& reads = "n/add") {
  return R"(conv = Conv <pads = [1, 1, 1, 1]> (x, conv.weight[6, 3, 3, 3])
            n/r1 = Reshape (conv, [0, 2, -1])
            n/normal = InstanceNormalization (n/r1, )" +
         scale + R"(, {0.0, 0.0})
            n/shape = Shape (conv)
            n/r2 = Reshape (n/normal, n/shape)
            n/u1 = Unsqueeze (n.weight[6], [1, 2])
            n/u2 = Unsqueeze (n.bias[6], [1, 2])
            n/mul = Mul (n/r2, n/u1)
            n/add = Add (n/mul, n/u2)
            flat = Flatten ()" +
         reads + ")";
}

TEST(OnnxFileTest, NodesBecomeOps) {
  for (const Mapping& one : std::vector<Mapping>{
           {"x.view(x.size(0), -1) as PyTorch exports it",
            R"(shape = Shape (x)
               batch = Gather (shape, 0)
               batches = Unsqueeze (batch, [0])
               to = Concat <axis = 0> (batches, [-1])
               reshape = Reshape (x, to))",
            192, ""},
           {"a value that is read twice is copied",
            R"(sum = Add (x, x)
               sum/copy = Add (sum, sum)
               flat = Flatten (sum/copy))",
            192, "sum/copy:ShortcutPad sum:Add sum/copy_2/copy:ShortcutPad sum/copy_2:Add "},
           {"a scale becomes an image by two axes at the end",
            excited("u = Unsqueeze (gate, [-1])\n s = Unsqueeze (u, [-1])"), 192, kExcited},
           {"by one axis after the other",
            excited("u = Unsqueeze (gate, [2])\n s = Unsqueeze (u, [3])"), 192, kExcited},
           {"by the same axis twice", excited("u = Unsqueeze (gate, [2])\n s = Unsqueeze (u, [2])"),
            192, kExcited},
           {"and is repeated",
            excited("u = Unsqueeze (gate, [2, 3])\n s = Expand (u, [1, 3, 8, 8])"), 192, kExcited},
           {"reshaped instances are a group normalization", grouped("{1.0, 1.0}"), 384,
            "conv:Conv n/normal:GroupNorm "},
           {"a constant of any kind, which is only refused as a weight",
            R"(text = Constant <value_string = "a"> ()
               conv = Conv (x, w[3, 3, 1, 1])
               cast = CastLike (conv, text)
               flat = Flatten (cast))",
            192, "conv:Conv "},
           {"a sum of one", "sum = Sum (x)\n flat = Flatten (sum)", 192, ""},
           {"a sum of two", "relu = Relu (x)\n sum = Sum (relu, x)\n flat = Flatten (sum)", 192,
            "relu:Activation sum:Add "}}) {
    SCOPED_TRACE(one.what);
    EXPECT_EQ(ops_of(graph_of(classifier(one.nodes, one.features))),
              one.ops + std::string("fc:Dense"));
  }
}

TEST(OnnxFileTest, FilesForTwoImagesAreRead) {
  OnnxBytes fixed = classifier("reshape = Reshape (x, [2, 192])", 192);
  input_shape(fixed).mutable_dim(0)->set_dim_value(2);
  EXPECT_EQ(ops_of(graph_of(fixed)), "fc:Dense");
}

TEST(OnnxFileTest, MaximumOverTheImageIsAPool) {
  for (const char* keeps : {"0", "1"}) {
    const Graph graph = graph_of(classifier(
        fmt::format("max = ReduceMax <keepdims = {}> (x, [3, 2])\n flat = Flatten (max)", keeps),
        3));
    ASSERT_EQ(ops_of(graph), "max:Pool fc:Dense");
    EXPECT_EQ(std::get<models::Pool>(graph.ops[0].kind),
              (models::Pool{.kernel = {8, 8}, .stride = {8, 8}}));
  }
}

TEST(OnnxFileTest, ReshapedInstancesKeepTheirGroupsAndScales) {
  const NetworkFile file = read(classifier(grouped("{1.0, 1.0}"), 384));
  EXPECT_EQ(std::get<models::GroupNorm>(op_named(file.graph, "n/normal").kind),
            (models::GroupNorm{.groups = 2, .epsilon = 1e-5}));
  const test::NamedUniform gamma("n.weight@0");
  EXPECT_EQ(values_of(file, "n/normal/gamma")[4], static_cast<float>(gamma(4)));
  EXPECT_TRUE(file.graph.parameters[1].learns());
}

// As PyTorch's two exporters write `affine=False`.
TEST(OnnxFileTest, ConstantsOfNormalizationsDoNotLearn) {
  for (const char* constants : {R"(ones = Constant <value = {1.0, 1.0, 1.0}> ()
                                   zeros = Constant <value = {0.0, 0.0, 0.0}> ())",
                                R"(one = Constant <value_floats = [1.0]> ()
                                   ones = Expand (one, [3])
                                   zero = Constant <value_floats = [0.0]> ()
                                   zeros = Expand (zero, [3]))"}) {
    const NetworkFile file = read(classifier(
        constants + std::string("\n norm = BatchNormalization (x, ones, zeros, mean[3], var[3])\n"
                                " flat = Flatten (norm)"),
        192));
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

/// Nodes that end with a window, and its padding.
struct Padded {
  const char* what;
  std::string nodes;
  std::int64_t features;
  models::Padding expected;
};

// As PyTorch exports F.pad(x, [0, pad, 0, pad]), whose list may follow from the size of the image:
// here it is that of "same" padding, (ceil(8 / 2) - 1) x 2 + 3 - 8 = 1. Nothing but a Shape reads
// `same`.
constexpr const char* kComputedPadding = R"(
    one = Constant <value_int = 1> ()
    two = Constant <value_int = 2> ()
    three = Constant <value_int = 3> ()
    shape = Shape (x)
    side = Gather (shape, three)
    less = Neg (side)
    half = Div (less, two)
    up = Neg (half)
    windows = Sub (up, one)
    steps = Mul (windows, two)
    reach = Add (steps, three)
    more = Sub (reach, side)
    pad1 = Unsqueeze (more, [0])
    list = Concat ([0], pad1, [0], pad1)
    same = Concat ([0], pad1, [0], pad1)
    own = Shape (same)
    count = Gather (own, [0])
    axes2 = Mul ([4], two)
    open = Sub (axes2, count)
    zeros = ConstantOfShape <value = {0}> (open)
    all = Concat (list, zeros)
    pairs = Reshape (all, [-1, 2])
    reversed = Slice (pairs, [-1], [-9223372036854775807], [0], [-1])
    turned = Transpose <perm = [1, 0]> (reversed)
    pads = Reshape (turned, [-1])
    padded = Pad (x, pads)
    window = Conv <strides = [2, 2]> (padded, w[2, 3, 3, 3]))";

/// A padding of a quotient at the right, besides one of 1 on all sides.
std::string by_quotient(const char* dividend, const char* divisor) {
  return fmt::format(R"(
    by = Constant <value_int = {}> ()
    three = Constant <value_int = 3> ()
    real = Cast <to = 1> (three)
    div = Div ({}, by)
    one = Unsqueeze (div, [0])
    pads = Concat ([0, 0, 0, 0, 0, 0, 0], one)
    padded = Pad (x, pads)
    window = Conv <pads = [1, 1, 1, 1]> (padded, w[2, 3, 3, 3]))",
                     divisor, dividend);
}

TEST(OnnxFileTest, WindowsKeepTheirPadding) {
  const auto pool = [](int ceil) {
    return fmt::format(
        "window = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = {}> (x)", ceil);
  };
  for (const Padded& one : std::vector<Padded>{
           {"none", pool(0), 27, {}},
           {"of a last window that is not whole", pool(1), 48, {.bottom = 1, .right = 1}},
           {"of a Pad",
            R"(padded = Pad (x, [0, 0, 1, 0, 0, 0, 0, 2])
               window = Conv <strides = [2, 2]> (padded, w[2, 3, 3, 3]))",
            32,
            {.top = 1, .right = 2}},
           {"of TensorFlow, which puts the odd pixel behind",
            R"(window = Conv <strides = [2, 2], auto_pad = "SAME_UPPER"> (x, w[2, 3, 3, 3]))",
            32,
            {.bottom = 1, .right = 1}},
           {"that is computed", kComputedPadding, 32, {.bottom = 1, .right = 1}},
           {"a quotient of integers, which is cut",
            by_quotient("three", "2"),
            144,
            {1, 1, 1, 1 + 1}},
           {"one of real numbers", by_quotient("real", "1"), 176, {1, 1, 1, 1 + 3}}}) {
    SCOPED_TRACE(one.what);
    const Graph graph =
        graph_of(classifier(one.nodes + "\n flat = Flatten (window)", one.features));
    ASSERT_EQ(graph.ops.size(), 3U) << ops_of(graph);
    const models::OpKind& kind = op_named(graph, "window").kind;
    const auto* const conv = std::get_if<models::Conv>(&kind);
    EXPECT_EQ(conv != nullptr ? conv->pad : std::get<models::Pool>(kind).pad, one.expected);
  }
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

/// Nodes of an image, and what is said of them.
struct RefusedNodes {
  std::string nodes;
  std::string message;
  ErrorKind kind = ErrorKind::Config;
  Extents input = {-1, 3, 8, 8};
};

/// The sizes of the parts are computed from those of the image, which is no fault of the network.
std::string parts_of_channels(const char* part) {
  return std::string(R"(one = Constant <value_int = 1> ()
            two = Constant <value_int = 2> ()
            shape = Shape (x)
            channels = Gather (shape, one)
            up = Add (channels, one)
            half = Div (up, two)
            end = Mul (half, one)
            list = Unsqueeze (end, [0])
            part = )") +
         part + "\n relu = Relu (part)";
}
constexpr const char* kPartsOfChannels =
    "): of a part of the channels, as torch.split and torch.chunk make: give each part a "
    "convolution of its own, or one with groups";

TEST(OnnxFileTest, NodesAreRefusedByName) {
  const std::string listed = " nodes have no counterpart in millrace: ";
  for (const RefusedNodes& one : std::vector<RefusedNodes>{
           {"reshape = Reshape (x, [0, 64, 3])", "reshape (Reshape): of 192 values per image"},
           {"reshape = Reshape (x, {0.5})", "reshape (Reshape): of numbers that are no integers"},
           {excited("u = Unsqueeze (gate, [2, 3])\n s = Expand (u, [1, 3, 8, 16])"),
            "scale (Mul): of a value that an Expand makes larger"},
           {excited("u = Unsqueeze (gate, [2, 3])\n e = Expand (u, [1, 3, 8, 8])\n s = Relu (e)"),
            "s (Relu): behind an Expand; only a Mul may read"},
           {excited("u = Unsqueeze (gate, [-1])\n s = Relu (u)"),
            "s (Relu): of a value of three axes"},
           {grouped("{2.0, 2.0}"), "n/normal (InstanceNormalization): that scales or shifts"},
           {grouped("{1.0, 1.0}", "n/normal"), "flat (Flatten): of channels in groups"},
           {grouped("{1.0, 1.0}", "n/r2"), "flat (Flatten): of channels in groups"},
           {grouped("{1.0, 1.0}", "n/mul"), "flat (Flatten): of channels in groups"},
           {"text = Constant <value_string = \"a\"> ()\n conv = Conv (x, w[3, 3, 1, 1], text)",
            "conv (Conv): the weight 'text' is computed"},
           {by_quotient("real", "2"), "div (Div): of integers with a remainder"},
           {by_quotient("three", "0"), "div (Div): by 0"},
           {"a = Conv (x, w[3, 3, 1, 1])\n b = Conv (x, w)\n sum = Add (a, b)",
            "b (Conv): shares its kernel with another node"},
           {"conv = Conv (x, w[8, 3, 9])",
            "conv (Conv): with a kernel of 3 axes; those of images have 4"},
           {"relu = Relu (x)", "the output 'relu' has shape 8x8x3"},
           // The list has the node already.
           {"/features/0/Conv = Conv (x, w[3, 3, 9, 9])",
            "net.onnx: 1 of 1" + listed +
                "/features/0/Conv (Conv): a window of 9x9 pixels does not fit into input 8x8x3 "
                "padded to 8x8"},
           {parts_of_channels("Split (x, [2, 2])"),
            listed + "part (Split" + kPartsOfChannels,
            ErrorKind::Config,
            {-1, 4, 8, 8}},
           {parts_of_channels("Slice (x, [0], list, [1])"),
            listed + "part (Slice" + kPartsOfChannels,
            ErrorKind::Config,
            {-1, 4, 8, 8}},
           // F.interpolate(x, scale_factor=2), as PyTorch exports it without folding constants.
           {R"(one = Constant <value = {2.0, 2.0}> ()
               two = Constant <value = {2.0, 2.0}> ()
               scales = Concat <axis = 0> (one, two)
               up/Resize = Resize (x, , scales)
               mean = GlobalAveragePool (up/Resize))",
            "net.onnx: 1 of 5" + listed + "up/Resize (Resize)"},
           // As tf2onnx writes a network of TensorFlow: the convolution itself has its channels in
           // the second place.
           {R"(in = Transpose <perm = [0, 3, 1, 2]> (x)
               conv = Conv (in, w[10, 3, 8, 8])
               out = Transpose <perm = [0, 2, 3, 1]> (conv)
               flat = Flatten (out))",
            "2 of 4" + listed +
                "in (Transpose): of a value; out (Transpose): of a value: images must be batch, "
                "channels, height, width throughout: convert with tf2onnx's --inputs-as-nchw x, or "
                "export from PyTorch",
            ErrorKind::Config,
            {-1, 8, 8, 3}},
           {"a = Relu (b)\n b = Relu (a)",
            "a (Relu) reads 'b', which only a later node makes, or a node that reads what this one "
            "makes: the file is damaged",
            ErrorKind::Data},
           {"relu = Relu (z)", "relu (Relu) reads 'z', which neither a node nor a tensor makes",
            ErrorKind::Data},
           {"a = Relu (x)\n a = Relu (x)", "two nodes or tensors make the value 'a'",
            ErrorKind::Data},
           {"conv = Conv <group = 3> (x, w[12, 8, 3, 3])",
            "conv (Conv) has a kernel 12x8x3x3 and 3 groups for 8 channels",
            ErrorKind::Data,
            {-1, 8, 8, 8}},
           {"conv = Conv <strides = [9223372036854775807, 1]> (x, w[8, 3, 3, 3])",
            "conv (Conv) has 9223372036854775807 in its attribute", ErrorKind::Data},
           {"conv = Conv <group = 1.0> (x, w[8, 3, 3, 3])",
            "has an attribute 'group' of type 1, not 2", ErrorKind::Data}}) {
    SCOPED_TRACE(one.nodes);
    expect_refused(one.kind, one.message, [&] { (void)read(file_of(one.nodes, one.input)); });
  }
}

TEST(OnnxFileTest, AllNodesWithoutCounterpartAreListed) {
  OnnxBytes file = file_of(R"(features.0 = Mish (x)
                              features.1 = Conv (features.0, w[3, 3, 3, 3])
                              features.2 = Erf (features.1)
                              features.3 = com.microsoft.Gelu (features.2)
                              e = Tanh (x)
                              unread = Erf (x)
                              sum = Add (features.3, e))");
  file.graph().mutable_node(4)->clear_name();
  expect_refused(file,
                 "net.onnx: 5 of 6 nodes have no counterpart in millrace: features.0 (Mish); "
                 "features.2 (Erf); features.3 (com.microsoft.Gelu); the node that makes 'e' "
                 "(Tanh); sum (Add): cannot add shapes 6x6x3 and 8x8x3");
}

struct Behind {
  const char* first;  ///< a type without a counterpart
  const char* listed;
  const char* nodes;
};

// Whatever they lack, if that follows from the node alone or from a shape that is known. A Mish
// keeps the shape of the image; that of a Resize is unknown.
TEST(OnnxFileTest, NodesBehindOneWithoutCounterpartAreListed) {
  const char* const shared = R"(once = Conv <pads = [1, 1, 1, 1]> (first, once.weight[3, 3, 3, 3])
                                part = Conv (once, once.weight))";
  for (const auto& [first, listed, nodes] :
       std::vector<Behind>{{"Mish", "part (Reshape): of 192 values per image",
                            "part = Reshape (first, [0, 64, 3])"},
                           {"Resize", "part (MaxPool): with dilations",
                            "part = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (first)"},
                           {"Mish", "part (Conv): shares its kernel", shared},
                           {"Resize", "part (Conv): shares its kernel", shared},
                           {"Resize", "part (Transpose): of a value",
                            "part = Transpose <perm = [0, 2, 3, 1]> (first)"},
                           {"Resize", "part (Erf)",  // reads nothing that is refused
                            R"(shape = Shape (first)
               two = Constant <value_int = 2> ()
               side = Gather (shape, two)
               more = Add (side, two)
               image = Reshape (first, more)
               part = Erf (image))"}}) {
    const OnnxBytes file = file_of(std::string("first = ") + first + " (x)\n" + nodes +
                                   "\n a = Erf (part)\n b = Erf (a)\n flat = Flatten (b)");
    expect_error(ErrorKind::Config,
                 {std::string("net.onnx: 4 of "), std::string("first (") + first + "); " + listed,
                  std::string("; a (Erf); b (Erf)")},
                 [&] { (void)read(file); });
  }
}

// Converters note the shapes of values.
TEST(OnnxFileTest, ShapesThatTheFileNotesAreKnown) {
  OnnxBytes o = file_of("up = Resize (x)\n part = Reshape (up, [0, 64, 3])");
  (*o.graph().add_value_info() = o.graph().input(0)).set_name("up");
  expect_refused(o,
                 "2 of 2 nodes have no counterpart in millrace: up (Resize); "
                 "part (Reshape): of 192 values per image");
}

/// A change of plain_network().
struct Refusal {
  const char* message;
  ErrorKind kind;
  std::function<void(OnnxBytes&)> change;
};

TEST(OnnxFileTest, FilesAreRefusedByWhatIsWrong) {
  for (const Refusal& one : std::vector<Refusal>{
           {"no node makes the output 'z'", ErrorKind::Data,
            [](OnnxBytes& o) { o.graph().mutable_output(0)->set_name("z"); }},
           {"has two tensors 'c1.weight'", ErrorKind::Data,
            [](OnnxBytes& o) { o.weight("c1.weight", {1}, 1.0); }},
           {"tensor 'c1.weight' has the extent -8", ErrorKind::Data,
            [](OnnxBytes& o) { o.graph().mutable_initializer(0)->set_dims(0, -8); }},
           {"input 'x' leaves channels, height or width open: export the network with the size of "
            "its images",
            ErrorKind::Config,
            [](OnnxBytes& o) { input_shape(o).mutable_dim(2)->set_dim_param("H"); }},
           {"input 'x' has 3 axes, but images have 4", ErrorKind::Config,
            [](OnnxBytes& o) { input_shape(o).mutable_dim()->RemoveLast(); }},
           {"input 'x' has elements of type 2, not float32", ErrorKind::Config,
            [](OnnxBytes& o) {
              o.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(2);
            }},
           {"are larger than any network reads", ErrorKind::Data,
            [](OnnxBytes& o) { input_shape(o).mutable_dim(3)->set_dim_value(INT64_MAX); }},
           {"has the inputs 'x' and 'other'", ErrorKind::Config,
            [](OnnxBytes& o) { (*o.graph().add_input() = o.graph().input(0)).set_name("other"); }},
           {"has 2 outputs", ErrorKind::Config,
            [](OnnxBytes& o) { *o.graph().add_output() = o.graph().output(0); }},
           {"was written for opset 6: export it again", ErrorKind::Config,
            [](OnnxBytes& o) { o.model.mutable_opset_import(0)->set_version(6); }},
           {"is not a network in the format of ONNX", ErrorKind::Data,
            [](OnnxBytes& o) { o.graph().clear_node(); }}}) {
    OnnxBytes file = test::plain_network();
    one.change(file);
    expect_refused(one.kind, one.message, [&] { (void)read(file); });
  }
}

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
    expect_refused(ErrorKind::Config, why, [&, &at = location] { opened(at, "0"); });
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
