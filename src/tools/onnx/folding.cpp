// SPDX-License-Identifier: Apache-2.0
//
// Sums, differences, products and quotients with constants, by channel, become part of the
// convolution, dense op or normalization right before them.
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "tools/onnx/importer.hpp"

namespace millrace::io {
namespace {

/// Whether a constant of these extents has one value, or one for each of `channels`.
bool fits_channels(const Integers& extents, std::int64_t channels, bool flat) {
  const std::size_t behind = flat ? 0 : 2;  // axes behind that of the channels
  if (extents.size() > behind + 2) return false;
  for (std::size_t i = 0; i < extents.size(); ++i)
    if (extents[i] != 1 && (extents[i] != channels || extents.size() - 1 - i != behind))
      return false;
  return true;
}

bool adds(std::string_view type) { return type == "Add" || type == "Sum" || type == "Sub"; }
bool is_step(std::string_view type) { return adds(type) || type == "Mul" || type == "Div"; }

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

/// The only value of images, or, of several that a Sum adds, the first that can take constants.
std::optional<int> OnnxImporter::folding_input(const onnx::NodeProto& node) const {
  const std::string& type = node.op_type();
  const bool sums = type == "Sum";
  if (node.output_size() != 1 || (!sums && (node.input_size() != 2 || !is_step(type)))) return {};
  std::vector<int> values;
  for (int i = 0; i < node.input_size(); ++i)
    if (of_images_.contains(node.input(i))) values.push_back(i);
  if (values.empty() || std::ssize(values) == node.input_size()) return {};
  if (values.size() == 1)
    return type == "Div" && values[0] == 1 ? std::nullopt : std::optional(values[0]);
  for (const int i : values)
    if (const auto maker = makers_.find(node.input(i)); maker != makers_.end() &&
                                                        sole_reader(*maker->second) == &node &&
                                                        is_foldable(*maker->second))
      return i;
  return {};
}

bool OnnxImporter::is_foldable(const onnx::NodeProto& maker) const {
  constexpr auto kTypes =
      std::to_array<std::string_view>({"BatchNormalization", "Conv", "Gemm", "GroupNormalization",
                                       "InstanceNormalization", "MatMul"});
  constexpr int kMostNodes = 8;
  const onnx::NodeProto* at = &maker;
  for (int i = 0; i < kMostNodes; ++i) {
    const std::optional<int> input = folding_input(*at);
    if (!input) break;
    const auto before = makers_.find(at->input(*input));
    if (before == makers_.end() || sole_reader(*before->second) != at) return false;
    at = before->second;
  }
  return std::ranges::find(kTypes, at->op_type()) != kTypes.end();
}

OnnxImporter::Behind OnnxImporter::behind(const OnnxNode& node) const {
  Behind found;
  const onnx::NodeProto* at = &node.proto();
  while (const onnx::NodeProto* const next = sole_reader(*at)) {
    const std::optional<int> input = folding_input(*next);
    if (!input || next->input(*input) != at->output(0) || parts_.contains(next)) break;
    bool several = false;
    for (const std::string& other : next->input()) {
      if (other == at->output(0)) continue;
      several = several || of_images_.contains(other);
      found.adds = found.adds || adds(next->op_type());
      (adds(next->op_type()) ? found.learned_addend : found.learned_factor) |= is_learned(other);
    }
    if (several) break;
    at = next;
  }
  return found;
}

bool OnnxImporter::folds_pair(const OnnxNode& node) {
  for (const int input : {0, 1}) {
    if (!is_constant(node.input(1 - input))) continue;
    fold(node, input, 1 - input);
    foldable_[node.output()] = foldable_.at(node.input(input));
    put(node, Value(value(node, input)));
    return true;
  }
  return false;
}

void OnnxImporter::subtract_or_divide(const OnnxNode& node) {
  if (computes_constant(node)) return arithmetic(node);
  if (!folds_pair(node)) throw Unsupported{"of values"};
}

void OnnxImporter::fold(const OnnxNode& node, int input, int by) {
  using Does = ChannelStep::Does;
  const Value x = value(node, input);
  const Constant& with = constant(node, by);
  if (node.type() == "Div" && by == 0) throw Unsupported{"of a constant by a value"};
  const auto before = foldable_.find(node.input(input));
  const auto maker = makers_.find(node.input(input));
  if (before == foldable_.end() || sole_reader(*maker->second) != &node.proto() ||
      folding_input(node.proto()) != input)
    throw Unsupported{
        "with a constant; only a convolution, a dense op or a normalization right before it, that "
        "nothing else reads, takes one"};
  if (!fits_channels(with.extents, shape(x).c, x.flat) || (with.tensor == nullptr && !with.fill) ||
      (with.tensor != nullptr && has_integers(*with.tensor)))
    throw Unsupported{"with a constant other than one number, or one for each channel"};
  const Foldable at = before->second;
  const auto follow = [&](const ChannelStep& step) {
    const bool scales = step.does == Does::Multiply || step.does == Does::Divide;
    MILLRACE_ASSERT(scales || at.count != 1);  // behind() told of the sum
    for (std::size_t i = scales ? 0 : 1; i < at.count; ++i)
      sources_[at.first + i].steps.push_back(step);
  };
  const bool negates = node.type() == "Sub" && by == 0;
  if (negates) follow({.does = Does::Multiply, .fill = -1.0f});
  follow({.does = node.type() == "Mul"               ? Does::Multiply
                  : node.type() == "Div"             ? Does::Divide
                  : node.type() == "Sub" && !negates ? Does::Subtract
                                                     : Does::Add,
          .tensor = with.tensor,
          .fill = static_cast<float>(with.fill.value_or(0.0))});
}

}  // namespace millrace::io
