// SPDX-License-Identifier: Apache-2.0
//
// Files of ONNX, and the networks that they become.
#pragma once

#include "io/onnx/onnx_file.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/onnx_bytes.hpp"

namespace millrace::io {

using models::Graph;
using models::Op;
using test::Extents;
using test::OnnxBytes;

inline OnnxFile read(const OnnxBytes& file) { return OnnxFile(file.bytes(), "net.onnx", "net"); }
inline Graph graph_of(const OnnxBytes& file) { return read(file).graph(); }

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

/// A network of one image op and a dense op behind it.
inline OnnxBytes around(const std::function<std::string(OnnxBytes&)>& add, std::int64_t features) {
  OnnxBytes o({-1, 3, 8, 8});
  const std::string x = add(o);
  io::onnx::NodeProto& fc =
      o.node("Gemm", "fc", {x, o.weight("fc.weight", {10, features}, 1.0)}, "y");
  OnnxBytes::set(fc, "transB", std::int64_t{1});
  return o;
}

inline std::string number_of(OnnxBytes& o, const std::string& name, std::int64_t value) {
  OnnxBytes::set(o.node("Constant", name, {}, name), "value_int", value);
  return name;
}

}  // namespace millrace::io
