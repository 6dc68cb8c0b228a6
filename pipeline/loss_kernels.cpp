// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax_loss.hpp"
#include "pipeline/kernels.hpp"

namespace millrace::pipeline {
namespace {

using device::ExecutionSpace;

/// The shape over all logits; there may be more logits than classes.
ops::SoftmaxLossShape loss_shape(const Binding& b) {
  const models::Op& op = b.graph.op(b.call.op);
  return {b.batch, b.graph.value(op.inputs.front()).shape.c, b.label_smoothing.share,
          b.label_smoothing.form};
}

template <class T>
Kernel loss_forward(const Binding& b) {
  const ops::SoftmaxLossShape shape = loss_shape(b);
  const auto mixing = b.operand<const ImageMixing>(Role::Mixing);
  const auto loss = b.operand<float>(Role::Loss);
  const auto rank = b.operand<std::int32_t>(Role::Rank);
  const auto x = b.operand<T>(Role::X);
  const auto labels = b.operand<std::int32_t>(Role::Labels);
  return [=](const ExecutionSpace& space, const RunContext& c) {
    ops::softmax_loss_forward<T>(space, shape, loss(c), rank(c), x(c), labels(c), mixing(c));
  };
}

template <class T>
Kernel loss_backward(const Binding& b) {
  const ops::SoftmaxLossShape shape = loss_shape(b);
  const auto mixing = b.operand<const ImageMixing>(Role::Mixing);
  const auto dx = b.operand<T>(Role::Dx);
  const auto x = b.operand<T>(Role::X);
  const auto labels = b.operand<std::int32_t>(Role::Labels);
  return [=, scaling = b.loss_scaling](const ExecutionSpace& space, const RunContext& c) {
    const float scale = *scaling / static_cast<float>(shape.batch);
    ops::softmax_loss_backward<T>(space, shape, dx(c), x(c), labels(c), scale, mixing(c));
  };
}

}  // namespace

Kernel make_loss_kernel(const Binding& b) {
  return device::dispatch(b.type, [&]<class T>() {
    return b.call.kind == KernelKind::LossForward ? loss_forward<T>(b) : loss_backward<T>(b);
  });
}

}  // namespace millrace::pipeline
