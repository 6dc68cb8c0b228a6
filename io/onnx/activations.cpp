// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "io/onnx/importer.hpp"

namespace millrace::io {

void OnnxImporter::activate(const OnnxNode& node, Activation function, ActivationNumbers numbers) {
  const Value x = value(node);
  put(node, {add(node, models::Activate{function, numbers}, {x.id}), x.flat});
}

void OnnxImporter::relu(const OnnxNode& node) { activate(node, Activation::Relu); }
void OnnxImporter::sigmoid(const OnnxNode& node) {
  if (swishes_.contains(&node.proto())) return pass(node);
  activate(node, Activation::Sigmoid);
}
void OnnxImporter::swish(const OnnxNode& node) {
  if (node.real("alpha", 1.0) != 1.0) throw Unsupported{"with alpha other than 1"};
  activate(node, Activation::Swish);
}

void OnnxImporter::leaky_relu(const OnnxNode& node) {
  activate(node, Activation::LeakyRelu, {.a = static_cast<float>(node.real("alpha", 0.01))});
}
void OnnxImporter::hard_sigmoid(const OnnxNode& node) {
  if (swishes_.contains(&node.proto())) return pass(node);
  activate(
      node, Activation::HardSigmoid,
      {static_cast<float>(node.real("alpha", 0.2)), static_cast<float>(node.real("beta", 0.5))});
}
void OnnxImporter::hard_swish(const OnnxNode& node) { activate(node, Activation::HardSwish); }

void OnnxImporter::clip(const OnnxNode& node) {
  const auto lowest = static_cast<double>(std::numeric_limits<float>::lowest());
  const auto highest = static_cast<double>(std::numeric_limits<float>::max());
  if (is_constant(node.input(0))) throw Unsupported{"of a constant"};
  const double low = node.has("min") ? node.real("min", 0.0) : number(node, 1).value_or(lowest);
  const double high = node.has("max") ? node.real("max", 0.0) : number(node, 2).value_or(highest);
  if (low == 0.0 && high >= 0.999 * highest) return relu(node);
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
