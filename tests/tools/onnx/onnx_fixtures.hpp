// SPDX-License-Identifier: Apache-2.0
//
// Files of ONNX, and the networks that they become.
#pragma once

#include "tests/support/expect_error.hpp"
#include "tests/support/onnx_bytes.hpp"
#include "tools/onnx/onnx_file.hpp"

namespace millrace::io {

using models::Graph;
using models::Op;
using test::Extents;
using test::OnnxBytes;

inline NetworkFile read(const OnnxBytes& file) {
  return parse_onnx(file.bytes(), "net.onnx", "net");
}
inline Graph graph_of(const OnnxBytes& file) { return read(file).graph; }

/// "conv:Conv relu:Activation", without the loss.
inline std::string ops_of(const Graph& graph) {
  std::string text;
  for (const Op& op : graph.ops) {
    const auto kind = std::visit([](const auto& k) { return std::string(k.kName); }, op.kind);
    if (kind != "SoftmaxLoss") text += (text.empty() ? "" : " ") + op.name + ":" + kind;
  }
  return text;
}

inline const Op& op_named(const Graph& graph, const std::string& name) {
  return graph.op(graph.find(name));
}

/// The message of a refusal contains `part`.
template <class Action>
void expect_refused(ErrorKind kind, const std::string& part, const Action& action) {
  expect_error(kind, std::initializer_list<std::string>{part}, action);
}

inline void expect_refused(const OnnxBytes& file, const std::string& part) {
  expect_refused(ErrorKind::Config, part, [&] { (void)read(file); });
}

/// A network of one image op and a dense op behind it.
inline OnnxBytes around(const std::function<std::string(OnnxBytes&)>& add, std::int64_t features) {
  OnnxBytes o({-1, 3, 8, 8});
  const std::string x = add(o);
  io::onnx::NodeProto& fc =
      o.node("Gemm", "fc", {x, o.weight("fc.weight", {10, features}, 1.0)}, "y");
  OnnxBytes::set(fc, "transB", std::int64_t{1});
  return o;
}

/// A node that makes a vector.
inline std::string constant(OnnxBytes& o, const std::string& name,
                            const std::vector<float>& values) {
  io::onnx::NodeProto& made = o.node("Constant", name, {}, name);
  io::onnx::TensorProto& tensor =
      *OnnxBytes::attribute(made, "value", io::onnx::AttributeProto::TENSOR).mutable_t();
  tensor.set_data_type(io::onnx::TensorProto::FLOAT);
  tensor.add_dims(std::ssize(values));
  for (const float value : values) tensor.add_float_data(value);
  return name;
}

inline std::vector<float> values_of(const NetworkFile& file, const std::string& name) {
  for (std::size_t i = 0; i < file.graph.parameters.size(); ++i)
    if (file.graph.parameters[i].name == name) return file.values({static_cast<std::int32_t>(i)});
  ADD_FAILURE() << name;
  return {};
}

inline std::string number_of(OnnxBytes& o, const std::string& name, std::int64_t value) {
  OnnxBytes::set(o.node("Constant", name, {}, name), "value_int", value);
  return name;
}

}  // namespace millrace::io
