// SPDX-License-Identifier: Apache-2.0
//
// How each kind of op becomes kernel calls. There is one `lowering` for every kind in
// models::OpKind; a kind without one does not compile.
#pragma once

#include <variant>

#include "models/op.hpp"
#include "pipeline/compiler.hpp"

namespace millrace::pipeline {

enum class FusedActivation { None, Relu, Any };

/// What runs in the same kernel as an op. Without an entry here the op runs alone.
struct Fusion {
  /// The activation that follows; Any: one that is_fused.
  FusedActivation activation = FusedActivation::None;
  bool addition = false;         ///< an addition that follows, of another value
  bool relu_of_sum = false;      ///< a ReLU that follows the addition
  bool adds_inputs = false;      ///< the op is the addition; its second input becomes `skip`
  bool joins_inputs = false;     ///< every input becomes one of the node's `parts`
  bool separate_kernel = false;  ///< the fused activation is a kernel of its own, in place
};

struct Lowering {
  Fusion fusion = {};
  bool training_only = false;  ///< the identity in evaluation
  /// Emits the calls of the forward pass, or of its repetition before the backward pass.
  void (&forward)(Compiler& compiler, const Node& node, ForwardPass& pass);
  /// Takes the gradient of the node's output and contributes those of its inputs.
  void (&backward)(Compiler& compiler, const Node& node);
};

[[nodiscard]] Lowering lowering(const models::Conv&);
[[nodiscard]] Lowering lowering(const models::Dense&);
[[nodiscard]] Lowering lowering(const models::BatchNorm&);
[[nodiscard]] Lowering lowering(const models::GroupNorm&);
[[nodiscard]] Lowering lowering(const models::Activate&);
[[nodiscard]] Lowering lowering(const models::Add&);
[[nodiscard]] Lowering lowering(const models::Concat&);
[[nodiscard]] Lowering lowering(const models::ScaleChannels&);
[[nodiscard]] Lowering lowering(const models::Pool&);
[[nodiscard]] Lowering lowering(const models::GlobalAveragePool&);
[[nodiscard]] Lowering lowering(const models::ShortcutPad&);
[[nodiscard]] Lowering lowering(const models::Dropout&);
[[nodiscard]] Lowering lowering(const models::DropConnect&);
[[nodiscard]] Lowering lowering(const models::SoftmaxLoss&);

[[nodiscard]] inline Lowering lowering_of(const models::Op& op) {
  return std::visit([](const auto& kind) { return lowering(kind); }, op.kind);
}

}  // namespace millrace::pipeline
