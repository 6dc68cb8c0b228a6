// SPDX-License-Identifier: Apache-2.0
//
// Files of ONNX, made node by node.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "onnx.pb.h"
#include "tests/support/named_uniform.hpp"

namespace millrace::test {

using Extents = std::vector<std::int64_t>;

class OnnxBytes {
 public:
  /// An input `x` and an output `y`. Extents below 0 are dynamic.
  explicit OnnxBytes(const Extents& input, const std::string& output = "y") {
    model.set_ir_version(8);
    model.add_opset_import()->set_version(17);
    declare(graph().add_input(), "x", input);
    declare(graph().add_output(), output, {-1, 10});
  }

  io::onnx::GraphProto& graph() { return *model.mutable_graph(); }
  std::string bytes() const { return model.SerializeAsString(); }

  io::onnx::NodeProto& node(const char* type, const std::string& name,
                            std::initializer_list<std::string> inputs, const std::string& output) {
    io::onnx::NodeProto& made = *graph().add_node();
    made.set_op_type(type);
    made.set_name(name);
    for (const std::string& input : inputs) made.add_input(input);
    made.add_output(output);
    return made;
  }

  static io::onnx::AttributeProto& attribute(io::onnx::NodeProto& node, const char* name,
                                             io::onnx::AttributeProto::AttributeType type) {
    io::onnx::AttributeProto& made = *node.add_attribute();
    made.set_name(name);
    made.set_type(type);
    return made;
  }
  static void set(io::onnx::NodeProto& node, const char* name, std::int64_t value) {
    attribute(node, name, io::onnx::AttributeProto::INT).set_i(value);
  }
  static void set(io::onnx::NodeProto& node, const char* name, float value) {
    attribute(node, name, io::onnx::AttributeProto::FLOAT).set_f(value);
  }
  static void set(io::onnx::NodeProto& node, const char* name, const Extents& values) {
    auto& made = attribute(node, name, io::onnx::AttributeProto::INTS);
    for (const std::int64_t value : values) made.add_ints(value);
  }

  io::onnx::TensorProto& tensor(const std::string& name, const Extents& extents) {
    io::onnx::TensorProto& made = *graph().add_initializer();
    made.set_name(name);
    made.set_data_type(io::onnx::TensorProto::FLOAT);
    for (const std::int64_t extent : extents) made.add_dims(extent);
    return made;
  }
  /// Elements offset + scale x NamedUniform(name@0).
  const std::string& weight(const std::string& name, const Extents& extents, double scale,
                            double offset = 0.0) {
    io::onnx::TensorProto& made = tensor(name, extents);
    const NamedUniform u(name + "@0");
    const std::int64_t count =
        std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
      made.add_float_data(static_cast<float>(offset + scale * u(i)));
    return made.name();
  }
  std::string integers(const std::string& name, const Extents& values) {
    io::onnx::TensorProto& made = tensor(name, {std::ssize(values)});
    made.set_data_type(io::onnx::TensorProto::INT64);
    for (const std::int64_t value : values) made.add_int64_data(value);
    return name;
  }

  // ---- layers as PyTorch exports them; each returns the name of its value

  std::string conv(const std::string& name, const std::string& x, const Extents& kernel,
                   std::int64_t stride, std::int64_t pad, std::int64_t groups = 1,
                   bool bias = false) {
    const double fan_in = static_cast<double>(kernel[1] * kernel[2] * kernel[3]);
    const std::string w = weight(name + ".weight", kernel, std::sqrt(6.0 / fan_in));
    io::onnx::NodeProto& made = node("Conv", name, {x, w}, name + "_out");
    if (bias) made.add_input(weight(name + ".bias", {kernel[0]}, 0.1));
    set(made, "kernel_shape", Extents{kernel[2], kernel[3]});
    set(made, "strides", Extents{stride, stride});
    set(made, "pads", Extents{pad, pad, pad, pad});
    set(made, "group", groups);
    return made.output(0);
  }
  std::string norm(const std::string& name, const std::string& x, std::int64_t channels) {
    const std::string gamma = weight(name + ".weight", {channels}, 0.2, 1.0);
    const std::string beta = weight(name + ".bias", {channels}, 0.1);
    const std::string mean = weight(name + ".running_mean", {channels}, 0.0);
    const std::string variance = weight(name + ".running_var", {channels}, 0.0, 1.0);
    io::onnx::NodeProto& made =
        node("BatchNormalization", name, {x, gamma, beta, mean, variance}, name + "_out");
    set(made, "epsilon", 1e-5f);
    set(made, "momentum", 0.9f);
    return made.output(0);
  }
  std::string plain(const char* type, const std::string& name,
                    std::initializer_list<std::string> inputs) {
    return node(type, name, inputs, name + "_out").output(0);
  }
  std::string pool(const char* type, const std::string& name, const std::string& x,
                   std::int64_t size) {
    io::onnx::NodeProto& made = node(type, name, {x}, name + "_out");
    set(made, "kernel_shape", Extents{size, size});
    set(made, "strides", Extents{size, size});
    return made.output(0);
  }
  /// ReLU6.
  std::string clip(const std::string& name, const std::string& x) {
    tensor(name + ".low", {}).add_float_data(0.0f);
    tensor(name + ".high", {}).add_float_data(6.0f);
    return plain("Clip", name, {x, name + ".low", name + ".high"});
  }
  std::string swish(const std::string& name, const std::string& x) {
    const std::string gate = plain("Sigmoid", name + "/Sigmoid", {x});
    return plain("Mul", name + "/Mul", {x, gate});
  }

  io::onnx::ModelProto model;

 private:
  static void declare(io::onnx::ValueInfoProto* value, const std::string& name,
                      const Extents& extents) {
    value->set_name(name);
    io::onnx::TypeProto::Tensor* type = value->mutable_type()->mutable_tensor_type();
    type->set_elem_type(io::onnx::TensorProto::FLOAT);
    for (const std::int64_t extent : extents) {
      auto* dimension = type->mutable_shape()->add_dim();
      extent < 0 ? dimension->set_dim_param("N") : dimension->set_dim_value(extent);
    }
  }
};

// ---- networks that nothing here was made for; tests/golden/record_own_networks.py has them, too

/// Convolutions, one of them strided, a pool, and a dense op that reads a flattened 4x4 image.
inline OnnxBytes plain_network(std::int64_t side = 16) {
  OnnxBytes o({-1, 3, side, side});
  std::string x = o.conv("c1", "x", {8, 3, 3, 3}, 1, 1);
  x = o.plain("Relu", "r1", {o.norm("n1", x, 8)});
  x = o.pool("MaxPool", "p1", x, 2);
  x = o.plain("Relu", "r2", {o.conv("c2", x, {12, 8, 3, 3}, 2, 1, 1, true)});
  io::onnx::NodeProto& flat = o.node("Flatten", "flat", {x}, "flat_out");
  OnnxBytes::set(flat, "axis", std::int64_t{1});
  io::onnx::NodeProto& fc =
      o.node("Gemm", "fc",
             {"flat_out", o.weight("fc.weight", {10, 12 * side * side / 16}, 0.02),
              o.weight("fc.bias", {10}, 0.1)},
             "y");
  OnnxBytes::set(fc, "transB", std::int64_t{1});
  return o;
}

/// Dense connections: each convolution reads what all before it made.
inline OnnxBytes dense_network(std::int64_t side = 16) {
  OnnxBytes o({-1, 3, side, side});
  std::string x = o.conv("stem", "x", {8, 3, 3, 3}, 1, 1);
  std::int64_t channels = 8;
  for (const char* layer : {"d1", "d2", "d3"}) {
    const std::string at = layer;
    const std::string y = o.plain("Relu", at + ".relu", {o.norm(at + ".norm", x, channels)});
    const std::string more = o.conv(at + ".conv", y, {4, channels, 3, 3}, 1, 1);
    io::onnx::NodeProto& both = o.node("Concat", at + ".cat", {x, more}, at + "_out");
    OnnxBytes::set(both, "axis", std::int64_t{1});
    x = both.output(0);
    channels += 4;
  }
  x = o.conv("transition", x, {10, channels, 1, 1}, 1, 0);
  x = o.pool("AveragePool", "pool", x, 2);
  x = o.plain("Relu", "relu", {o.norm("norm", x, 10)});
  x = o.plain("GlobalAveragePool", "mean", {x});
  x = o.plain("Flatten", "flat", {x});
  o.node("MatMul", "fc", {x, o.weight("fc.weight", {10, 10}, 0.08)}, "product");
  o.node("Add", "fc.add", {"product", o.weight("fc.bias", {10}, 0.1)}, "y");
  return o;
}

/// A depthwise convolution, squeeze and excite, and a sum with the block's input.
inline OnnxBytes depthwise_network(std::int64_t side = 16) {
  OnnxBytes o({-1, 3, side, side});
  std::string x = o.swish("silu1", o.norm("n1", o.conv("c1", "x", {8, 3, 3, 3}, 2, 1), 8));
  std::string y = o.conv("dw", x, {8, 1, 3, 3}, 1, 1, 8);
  y = o.swish("silu2", o.norm("n2", y, 8));
  io::onnx::NodeProto& mean =
      o.node("ReduceMean", "squeeze", {y, o.integers("axes", {2, 3})}, "squeeze_out");
  OnnxBytes::set(mean, "keepdims", std::int64_t{1});
  std::string s = o.conv("reduce", "squeeze_out", {2, 8, 1, 1}, 1, 0, 1, true);
  s = o.conv("expand", o.plain("Relu", "relu", {s}), {8, 2, 1, 1}, 1, 0, 1, true);
  y = o.plain("Mul", "scale", {y, o.plain("Sigmoid", "gate", {s})});
  y = o.norm("n3", o.conv("project", y, {8, 8, 1, 1}, 1, 0), 8);
  x = o.plain("Add", "sum", {y, x});
  io::onnx::NodeProto& pooled =
      o.node("ReduceMean", "mean", {x, o.integers("last_axes", {-1, -2})}, "mean_out");
  OnnxBytes::set(pooled, "keepdims", std::int64_t{0});
  io::onnx::NodeProto& fc = o.node(
      "Gemm", "fc",
      {"mean_out", o.weight("fc.weight", {10, 8}, 0.1), o.weight("fc.bias", {10}, 0.1)}, "y");
  OnnxBytes::set(fc, "transB", std::int64_t{1});
  return o;
}

/// An inverted residual with the activations of MobileNets and Darknet, and a sum of three.
inline OnnxBytes mobile_network(std::int64_t side = 16) {
  OnnxBytes o({-1, 3, side, side});
  const std::string x =
      o.plain("HardSwish", "h_swish", {o.norm("n1", o.conv("c1", "x", {8, 3, 3, 3}, 2, 1), 8)});
  std::string y = o.clip("relu6", o.norm("n2", o.conv("widen", x, {16, 8, 1, 1}, 1, 0), 16));
  y = o.norm("n3", o.conv("dw", y, {16, 1, 3, 3}, 1, 1, 16), 16);
  OnnxBytes::set(o.node("LeakyRelu", "leaky", {y}, "leaky_out"), "alpha", 0.1f);
  std::string s = o.plain("GlobalAveragePool", "squeeze", {"leaky_out"});
  s = o.plain("Relu", "relu", {o.conv("reduce", s, {4, 16, 1, 1}, 1, 0, 1, true)});
  s = o.conv("expand", s, {16, 4, 1, 1}, 1, 0, 1, true);
  io::onnx::NodeProto& gate = o.node("HardSigmoid", "gate", {s}, "gate_out");
  OnnxBytes::set(gate, "alpha", 1.0f / 6.0f);
  OnnxBytes::set(gate, "beta", 0.5f);
  y = o.plain("Mul", "scale", {"leaky_out", "gate_out"});
  y = o.norm("n4", o.conv("project", y, {8, 16, 1, 1}, 1, 0), 8);
  const std::string z = o.norm("n5", o.conv("beside", x, {8, 8, 1, 1}, 1, 0), 8);
  y = o.plain("GlobalAveragePool", "mean", {o.plain("Sum", "sum", {x, y, z})});
  y = o.plain("Flatten", "flat", {y});
  io::onnx::NodeProto& fc = o.node(
      "Gemm", "fc", {y, o.weight("fc.weight", {10, 8}, 0.1), o.weight("fc.bias", {10}, 0.1)}, "y");
  OnnxBytes::set(fc, "transB", std::int64_t{1});
  return o;
}

}  // namespace millrace::test
