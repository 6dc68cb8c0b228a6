// SPDX-License-Identifier: Apache-2.0
//
// Nodes that normalize.
#include <algorithm>
#include <vector>

#include "tools/onnx/importer.hpp"

namespace millrace::io {

using models::ValueId;

OnnxImporter::AffineSource OnnxImporter::affine(const OnnxNode& node, int input,
                                                std::int64_t channels) const {
  const Constant& found = constant(node, input);
  const bool single = found.tensor != nullptr && found.fixed && channels != 1 &&
                      std::ranges::all_of(found.extents, [](auto extent) { return extent == 1; });
  if (found.fill || single)
    return {{.fill = static_cast<float>(number(node, input).value_or(0.0))}, true};
  Integers wanted = {channels};
  if (found.extents.size() == 3) wanted = {channels, 1, 1};
  if (found.extents.size() == 4) wanted = {1, channels, 1, 1};
  return {weight(node, input, wanted), found.fixed};
}

/// Constants behind the node that learn become part of its scale and shift.
models::FixedAffine OnnxImporter::fixed(const OnnxNode& node, const AffineSource& gamma,
                                        const AffineSource& beta) const {
  const Behind more = behind(node);
  return {gamma.fixed && !more.learned_factor, beta.fixed && !more.learned_addend};
}

void OnnxImporter::batch_norm(const OnnxNode& node) {
  if (node.integer("spatial", 1) != 1) throw Unsupported{"with a mean for every pixel"};
  const Value x = value(node);
  if (x.flat && shape(x).pixels() != 1)
    throw Unsupported{"of a flattened image: every number would have its own mean"};
  const Integers channels = {shape(x).c};
  const AffineSource gamma = affine(node, 1, shape(x).c);
  const AffineSource beta = affine(node, 2, shape(x).c);
  normalises_ = true;
  put(node, {add(node,
                 models::BatchNorm{.epsilon = node.real("epsilon", 1e-5),
                                   .decay = node.real("momentum", 0.9),
                                   .fixed = fixed(node, gamma, beta)},
                 {x.id},
                 {gamma.source, beta.source, weight(node, 3, channels), weight(node, 4, channels)}),
             x.flat});
}

void OnnxImporter::put_group_norm(const OnnxNode& node, const OnnxNode& named_by, ValueId x,
                                  models::GroupNorm norm, const AffineSource& gamma,
                                  int beta_input) {
  const AffineSource beta = affine(node, beta_input, shape(x).c);
  normalises_ = true;
  norm.fixed = fixed(node, gamma, beta);
  put(node, {add(named_by, norm, {x}, {gamma.source, beta.source})});
}

void OnnxImporter::group_norm(const OnnxNode& node) {
  const ValueId x = image(node);
  const std::int64_t channels = shape(x).c;
  if (constant(node, 1).extents != std::vector{channels})
    throw Unsupported{"with a scale for every group, as before opset 21"};
  const std::int64_t groups = node.integer("num_groups", 0);
  put_group_norm(node, node, x, {.groups = groups, .epsilon = node.real("epsilon", 1e-5)},
                 affine(node, 1, channels), 2);
}

const OnnxImporter::GroupedNorm* OnnxImporter::norm_of(const std::string& name,
                                                       GroupedNorm::Reached reached) const {
  const auto found = values_.find(name);
  if (found == values_.end() || found->second.norm == nullptr) return nullptr;
  return found->second.norm->reached == reached ? found->second.norm : nullptr;
}

void OnnxImporter::put(const OnnxNode& node, const Value& x, GroupedNorm next) {
  norms_.push_back(next);
  put(node, Value{.id = x.id, .norm = &norms_.back()});
}

/// Of groups, as part of a group normalization, or of channels, which is one of single channels.
void OnnxImporter::instance_norm(const OnnxNode& node) {
  const double epsilon = node.real("epsilon", 1e-5);
  if (const auto* const groups = norm_of(node.input(0), GroupedNorm::Reached::Groups)) {
    for (const int input : {1, 2}) {
      const Constant& neutral = constant(node, input);
      const double wanted = input == 1 ? 1.0 : 0.0;
      const std::vector<float> values =
          neutral.tensor != nullptr ? floats_of(*neutral.tensor, place_)
                                    : std::vector{static_cast<float>(neutral.fill.value_or(-1.0))};
      if (std::ranges::any_of(values, [&](float v) { return static_cast<double>(v) != wanted; }))
        throw Unsupported{"that scales or shifts groups of channels"};
    }
    GroupedNorm next = *groups;
    next.reached = GroupedNorm::Reached::Normal;
    next.epsilon = epsilon;
    next.named_by = &node.proto();
    return put(node, values_.at(node.input(0)), next);
  }
  const ValueId x = image(node);
  const std::int64_t channels = shape(x).c;
  put_group_norm(node, node, x, {.groups = channels, .epsilon = epsilon}, affine(node, 1, channels),
                 2);
}

void OnnxImporter::scale_groups(const OnnxNode& node, int input) {
  const Value x = values_.at(node.input(input));
  GroupedNorm next = *x.norm;
  next.reached = GroupedNorm::Reached::Scaled;
  next.gamma = affine(node, 1 - input, shape(x).c);
  if (next.gamma.source.tensor != nullptr && !kernels_.insert(next.gamma.source.tensor).second)
    throw Unsupported{"shares its scale with another node"};
  put(node, x, next);
}

void OnnxImporter::shift_groups(const OnnxNode& node, int input) {
  const Value x = values_.at(node.input(input));
  const GroupedNorm& norm = *x.norm;
  const OnnxNode named_by(*norm.named_by, place_);
  put_group_norm(node, named_by, x.id, {.groups = norm.groups, .epsilon = norm.epsilon}, norm.gamma,
                 1 - input);
  foldable_[node.output()] = foldable_.at(named_by.output());
}

}  // namespace millrace::io
