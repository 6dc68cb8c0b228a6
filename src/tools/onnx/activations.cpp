// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tools/onnx/importer.hpp"

namespace millrace::io {
namespace {

constexpr models::Activate kHardSwish = {Activation::HardSwish, {}};
constexpr models::Activate kHardSigmoid = {Activation::HardSigmoid, {1.0f / 6.0f, 0.5f}};

/// A node that is one op, and what its attributes alpha and beta are without a number of their own;
/// 0: it has none.
struct Function {
  std::string_view type;
  Activation function;
  double alpha = 0.0;
  double beta = 0.0;
};
constexpr auto kFunctions =
    std::to_array<Function>({{"HardSigmoid", Activation::HardSigmoid, 0.2, 0.5},
                             {"HardSwish", Activation::HardSwish},
                             {"LeakyRelu", Activation::LeakyRelu, 0.01},
                             {"Relu", Activation::Relu},
                             {"Sigmoid", Activation::Sigmoid}});

bool is_sixth(double number) { return std::abs(number - 1.0 / 6.0) < 1e-6; }

/// Which input of a node of two `name` is.
int input_named(const onnx::NodeProto& node, const std::string& name) {
  return node.input(0) == name ? 0 : 1;
}

}  // namespace

/// Products of a value z and its sigmoid, or of one and clip(z + 3, 0, 6) / 6.
void OnnxImporter::find_parts() {
  for (const onnx::NodeProto& node : file_.node()) {
    if (node.output_size() != 1 || !needed_.contains(&node)) continue;
    const OnnxNode gate(node, place_);
    if (gate.type() == "Clip") find_parts_around(gate);
    const bool hard = gate.type() == "HardSigmoid" && is_sixth(gate.real("alpha", 0.2)) &&
                      gate.real("beta", 0.5) == 0.5;
    if (gate.type() != "Sigmoid" && !hard) continue;
    const onnx::NodeProto* const product = product_with(node, gate.input(0));
    if (product == nullptr) continue;
    parts_[&node] = {};
    parts_[product] = {.makes = hard ? kHardSwish : models::Activate{Activation::Swish, {}}};
  }
}

/// clip(z + 3, 0, 6) / 6, a hard sigmoid, whose product with z is a hard swish. The division may
/// follow the product, too.
void OnnxImporter::find_parts_around(const OnnxNode& clip) {
  const auto bound = [&](const char* name, int input) {
    return clip.has(name) ? clip.real(name, 0.0) : literal(clip.input(input));
  };
  if (bound("min", 1) != 0.0 || bound("max", 2) != 6.0) return;
  const auto maker = makers_.find(clip.input(0));
  if (maker == makers_.end()) return;
  const onnx::NodeProto& sum = *maker->second;
  if (sum.op_type() != "Add" || sum.input_size() != 2 || sole_reader(sum) != &clip.proto()) return;
  const int three = literal(sum.input(0)) ? 0 : 1;
  const std::string& z = sum.input(1 - three);
  if (literal(sum.input(three)) != 3.0 || !of_images_.contains(z)) return;
  const onnx::NodeProto* const before = product_with(clip.proto(), z);
  const onnx::NodeProto* const sixth = sixth_of(before != nullptr ? *before : clip.proto());
  if (sixth == nullptr) return;
  parts_[&sum] = {.input = 1 - three};
  parts_[&clip.proto()] = {};
  if (before != nullptr) {
    parts_[before] = {.input = input_named(*before, z)};
    parts_[sixth] = {input_named(*sixth, before->output(0)), kHardSwish};
  } else if (const onnx::NodeProto* const after = product_with(*sixth, z)) {
    parts_[sixth] = {.input = input_named(*sixth, clip.output())};
    parts_[after] = {input_named(*after, z), kHardSwish};
  } else {
    parts_[sixth] = {input_named(*sixth, clip.output()), kHardSigmoid};
  }
}

/// The product of `gated` and what `gate` makes, if that is all that reads the gate.
const onnx::NodeProto* OnnxImporter::product_with(const onnx::NodeProto& gate,
                                                  const std::string& gated) const {
  const onnx::NodeProto* const reader = sole_reader(gate);
  if (reader == nullptr || reader->op_type() != "Mul" || reader->input_size() != 2) return nullptr;
  return reader->input(1 - input_named(*reader, gate.output(0))) == gated ? reader : nullptr;
}

/// What divides the node's value by 6, if that is all that reads it.
const onnx::NodeProto* OnnxImporter::sixth_of(const onnx::NodeProto& node) const {
  const onnx::NodeProto* const reader = sole_reader(node);
  if (reader == nullptr || reader->input_size() != 2) return nullptr;
  const int input = input_named(*reader, node.output(0));
  const double by = literal(reader->input(1 - input)).value_or(0.0);
  const bool divides = reader->op_type() == "Div" && input == 0 && by == 6.0;
  return divides || (reader->op_type() == "Mul" && is_sixth(by)) ? reader : nullptr;
}

void OnnxImporter::put_part(const OnnxNode& node, const Part& part) {
  const Value x = value(node, part.input);
  put(node, part.makes ? Value{add(node, *part.makes, {x.id}), x.flat} : x);
}

void OnnxImporter::activate(const OnnxNode& node, Activation function, ActivationNumbers numbers) {
  const Value x = value(node);
  put(node, {add(node, models::Activate{function, numbers}, {x.id}), x.flat});
}

void OnnxImporter::activation(const OnnxNode& node) {
  const Function& f = *std::ranges::find(kFunctions, node.type(), &Function::type);
  const auto number = [&](const char* name, double otherwise) {
    return otherwise == 0.0 ? 0.0f : static_cast<float>(node.real(name, otherwise));
  };
  activate(node, f.function, {number("alpha", f.alpha), number("beta", f.beta)});
}

void OnnxImporter::swish(const OnnxNode& node) {
  if (node.real("alpha", 1.0) != 1.0) throw Unsupported{"with alpha other than 1"};
  activate(node, Activation::Swish);
}

void OnnxImporter::clip(const OnnxNode& node) {
  const auto lowest = static_cast<double>(std::numeric_limits<float>::lowest());
  const auto highest = static_cast<double>(std::numeric_limits<float>::max());
  if (is_constant(node.input(0))) throw Unsupported{"of a constant"};
  const double low = node.has("min") ? node.real("min", 0.0) : number(node, 1).value_or(lowest);
  const double high = node.has("max") ? node.real("max", 0.0) : number(node, 2).value_or(highest);
  if (low == 0.0 && high >= 0.999 * highest) return activate(node, Activation::Relu);
  activate(
      node, Activation::Clip,
      {static_cast<float>(std::max(low, lowest)), static_cast<float>(std::min(high, highest))});
}

void OnnxImporter::softmax(const OnnxNode& node) {
  if (node.output() != file_.output(0).name())
    throw Unsupported{"within the network; the one at its end belongs to the loss"};
  notices_.push_back(fmt::format("{}: {} ({}) is left out: it is part of the loss", place_.label,
                                 node.name(), node.type()));
  pass(node);
}

}  // namespace millrace::io
