// SPDX-License-Identifier: Apache-2.0
//
// Files of ONNX, and the networks that they become.
#pragma once

#include "core/text.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/onnx_bytes.hpp"
#include "tools/onnx/onnx_file.hpp"

namespace millrace::io {

using models::Graph;
using models::Op;
using test::Extents;
using test::OnnxBytes;

// ---- files as text, in the words of onnx.parser: a node a line, such as
//
//   y = Conv <strides = [2, 2], auto_pad = "SAME_UPPER"> (x, w[4, 3, 3, 3])
//
// A node has the name of what it makes. An input may be a tensor of the file: [1, 2] of integers,
// {0.5} of floats, 1 and 0.5 of one number without an axis, and w[4, 3] one that is named and
// filled as OnnxBytes::weight does. As an attribute, {1} is a tensor as well.

/// What stands between the commas that are not within brackets.
inline std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (c != ',' || depth > 0) part += c;
    if (c == ',' && depth == 0) parts.push_back(std::exchange(part, {}));
  }
  if (!parts.empty() || !part.empty()) parts.push_back(part);
  return parts;
}

inline bool is_real(std::string_view text) { return text.find('.') != std::string_view::npos; }
/// What brackets, braces or quotes are around.
inline std::string_view within(std::string_view text) { return text.substr(1, text.size() - 2); }

inline Extents numbers_in(std::string_view list) {
  Extents numbers;
  for (const std::string& part : parts_of(within(list))) numbers.push_back(std::stoll(part));
  return numbers;
}

/// {1, 2}, [1, 2] or one number.
inline void fill(onnx::TensorProto& tensor, std::string_view text) {
  const bool listed = text.front() == '{' || text.front() == '[';
  const auto parts = parts_of(listed ? within(text) : text);
  if (listed) tensor.add_dims(std::ssize(parts));
  tensor.set_data_type(is_real(text) ? onnx::TensorProto::FLOAT : onnx::TensorProto::INT64);
  for (const std::string& part : parts)
    is_real(text) ? tensor.add_float_data(std::stof(part))
                  : tensor.add_int64_data(std::stoll(part));
}

inline std::string input_of(OnnxBytes& o, const std::string& text) {
  if (text.empty()) return text;
  const std::size_t bracket = text.find('[');
  if (bracket != 0 && bracket != std::string::npos)
    return o.weight(text.substr(0, bracket), numbers_in(text.substr(bracket)), 1.0);
  const bool literal = std::string_view("[{-0123456789").find(text.front()) != std::string::npos;
  const auto named = [&](const auto& tensor) { return tensor.name() == text; };
  if (literal && std::ranges::none_of(o.graph().initializer(), named))
    fill(o.tensor(text, {}), text);
  return text;
}

inline void set_attribute(onnx::NodeProto& node, const char* name, const std::string& text) {
  using Attribute = onnx::AttributeProto;
  if (text.front() == '"') {
    OnnxBytes::attribute(node, name, Attribute::STRING).set_s(std::string(within(text)));
  } else if (text.front() == '{') {
    fill(*OnnxBytes::attribute(node, name, Attribute::TENSOR).mutable_t(), text);
  } else if (text.front() == '[' && is_real(text)) {
    Attribute& list = OnnxBytes::attribute(node, name, Attribute::FLOATS);
    for (const std::string& part : parts_of(within(text))) list.add_floats(std::stof(part));
  } else if (text.front() == '[') {
    OnnxBytes::set(node, name, numbers_in(text));
  } else if (is_real(text)) {
    OnnxBytes::set(node, name, std::stof(text));
  } else {
    OnnxBytes::set(node, name, std::int64_t{std::stoll(text)});
  }
}

/// Adds nodes; the name of the last.
inline std::string add_nodes(OnnxBytes& o, const std::string& text) {
  std::string last;
  for (std::string line : split_list(text, '\n')) {
    std::erase(line, ' ');
    if (line.empty()) continue;
    const std::size_t type = line.find('=') + 1;
    const std::size_t inputs = line.rfind('(') + 1;
    const std::size_t attributes = std::min(line.find('<'), inputs - 1);
    last = line.substr(0, type - 1);
    onnx::NodeProto made;
    for (const std::string& input : parts_of(line.substr(inputs, line.size() - 1 - inputs)))
      made.add_input(input_of(o, input));
    made.set_name(last);
    made.add_output(last);
    const std::string called = line.substr(type, attributes - type);
    const std::size_t dot = called.rfind('.') + 1;
    made.set_op_type(called.substr(dot));
    if (dot > 0) made.set_domain(called.substr(0, dot - 1));
    if (line[attributes] == '<')
      for (const std::string& one : parts_of(line.substr(attributes + 1, inputs - attributes - 3)))
        set_attribute(made, one.substr(0, one.find('=')).c_str(), one.substr(one.find('=') + 1));
    *o.graph().add_node() = std::move(made);
  }
  return last;
}

/// A file of these nodes, of which the last one makes the logits.
inline OnnxBytes file_of(const std::string& nodes, const Extents& input = {-1, 3, 8, 8}) {
  OnnxBytes o(input);
  o.graph().mutable_output(0)->set_name(add_nodes(o, nodes));
  return o;
}

/// The same with a dense op `fc` behind the last one.
inline OnnxBytes classifier(const std::string& nodes, std::int64_t features,
                            OnnxBytes o = OnnxBytes({-1, 3, 8, 8})) {
  const std::string weight = o.weight("fc.weight", {10, features}, 1.0);
  OnnxBytes::set(o.node("Gemm", "fc", {add_nodes(o, nodes), weight}, "y"), "transB",
                 std::int64_t{1});
  return o;
}

// ---- what is read

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

inline std::vector<float> values_of(const NetworkFile& file, const std::string& name) {
  for (std::size_t i = 0; i < file.graph.parameters.size(); ++i)
    if (file.graph.parameters[i].name == name) return file.values({static_cast<std::int32_t>(i)});
  ADD_FAILURE() << name;
  return {};
}

/// The message of a refusal contains `part`.
template <class Action>
void expect_refused(ErrorKind kind, const std::string& part, const Action& action) {
  expect_error(kind, std::initializer_list<std::string>{part}, action);
}

inline void expect_refused(const OnnxBytes& file, const std::string& part) {
  expect_refused(ErrorKind::Config, part, [&] { (void)read(file); });
}

}  // namespace millrace::io
