// SPDX-License-Identifier: Apache-2.0
//
// Products with constants and sums of them, by channel, become part of the convolution, dense op or
// normalization right before them.
#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "io/onnx/importer.hpp"

namespace millrace::io {
namespace {

/// Whether a constant of these extents has one value, or one for each of `channels`.
bool fits_channels(const std::vector<std::int64_t>& extents, std::int64_t channels, bool flat) {
  const std::size_t behind = flat ? 0 : 2;  // axes behind that of the channels
  if (extents.size() > behind + 2) return false;
  for (std::size_t i = 0; i < extents.size(); ++i)
    if (extents[i] != 1 && (extents[i] != channels || extents.size() - 1 - i != behind))
      return false;
  return true;
}

}  // namespace

bool OnnxImporter::is_learned(std::string name) const {
  constexpr int kMostNodes = 8;  // that only arrange it: Unsqueeze, Reshape, Cast
  for (int i = 0; i < kMostNodes; ++i) {
    const auto maker = makers_.find(name);
    if (maker == makers_.end()) break;
    if (maker->second->input_size() == 0) return false;
    name = maker->second->input(0);
  }
  return constants_.contains(name) && constants_.at(name).tensor != nullptr;
}

OnnxImporter::Behind OnnxImporter::behind(const OnnxNode& node) const {
  Behind found;
  const onnx::NodeProto* at = &node.proto();
  while (const onnx::NodeProto* const next = sole_reader(*at)) {
    const bool adds = next->op_type() == "Add" || next->op_type() == "Sum";
    if ((!adds && next->op_type() != "Mul") || next->input_size() != 2 || next->output_size() != 1)
      break;
    const std::string& other = next->input(next->input(0) == at->output(0) ? 1 : 0);
    if (of_images_.contains(other)) break;
    found.adds = found.adds || adds;
    (adds ? found.learned_addend : found.learned_factor) |= is_learned(other);
    at = next;
  }
  return found;
}

std::optional<int> OnnxImporter::beside_constant(const OnnxNode& node) const {
  for (const int input : {0, 1})
    if (is_constant(node.input(1 - input))) return input;
  return {};
}

void OnnxImporter::fold(const OnnxNode& node, int input) {
  const Value x = value(node, input);
  const Constant& by = constant(node, 1 - input);
  const auto before = foldable_.find(node.input(input));
  const auto maker = makers_.find(node.input(input));
  if (before == foldable_.end() || sole_reader(*maker->second) != &node.proto())
    throw Unsupported{
        "with a constant; only a convolution, a dense op or a normalization right before it, that "
        "nothing else reads, takes one"};
  if (!fits_channels(by.extents, shape(x).c, x.flat) || (by.tensor == nullptr && !by.fill) ||
      (by.tensor != nullptr && has_integers(*by.tensor)))
    throw Unsupported{"with a constant other than one number, or one for each channel"};
  const ChannelStep step = {.multiplies = node.type() == "Mul",
                            .tensor = by.tensor,
                            .fill = static_cast<float>(by.fill.value_or(0.0))};
  const Foldable at = before->second;
  for (std::size_t i = step.multiplies ? 0 : 1; i < at.count; ++i)
    sources_[at.first + i].steps.push_back(step);
  foldable_[node.output()] = at;
  put(node, x);
}

}  // namespace millrace::io
