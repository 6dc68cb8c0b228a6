// SPDX-License-Identifier: Apache-2.0
#include "pipeline/kernels.hpp"

#include "core/float16.hpp"
#include "ops/elementwise.hpp"
#include "ops/prepare_images.hpp"
#include "ops/softmax_loss.hpp"

namespace millrace::pipeline {
namespace {

using device::ExecutionSpace;

/// Elements of the op's output, or of the loss's input.
std::int64_t elements(const Binding& b) {
  const models::Op& op = b.graph.op(b.call.op);
  const models::ValueId shaped = op.output.valid() ? op.output : op.inputs.front();
  return b.batch * b.graph.value(shaped).shape.elements();
}

template <class T>
Kernel activation_backward(const Binding& b) {
  const auto dx = b.operand<T>(Role::Dx);
  const auto dy = b.operand<T>(Role::Dy);
  // The derivative is computed from the output if it is kept, otherwise from the input.
  const auto kept = b.operand<T>(b.call.has(Role::Y) ? Role::Y : Role::X);
  return [=, n = elements(b), fn = b.fn()](const ExecutionSpace& space, const RunContext& c) {
    ops::activation_backward<T>(space, dx(c), dy(c), kept(c), n, fn);
  };
}

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

template <class T>
Kernel prepare_images(const Binding& b) {
  const ops::PrepareImagesShape shape{b.batch, b.graph.input_shape};
  const auto y = b.operand<T>(Role::Y);
  const auto mixing = b.operand<const ImageMixing>(Role::Mixing);
  if (b.call.has(Role::Scaling))
    return [=, bytes = b.operand<const std::uint8_t>(Role::X),
            scaling = b.operand<const PixelScaling>(Role::Scaling)](const ExecutionSpace& space,
                                                                    const RunContext& c) {
      ops::prepare_bytes<T>(space, shape, y(c), bytes(c), scaling(c), mixing(c));
    };
  const auto from = [&]<class Stored>(Stored) -> Kernel {
    return [=, x = b.operand<const Stored>(Role::X)](const ExecutionSpace& space,
                                                     const RunContext& c) {
      ops::prepare_floats<T, Stored>(space, shape, y(c), x(c), mixing(c));
    };
  };
  if (b.images == DType::F16) return from(float16{});
  return b.images == DType::F32 ? from(float{}) : from(bfloat16{});
}

template <class T>
Kernel make(const Binding& b) {
  const auto x = b.operand<T>(Role::X);
  const auto y = b.operand<T>(Role::Y);
  switch (b.call.kind) {
    case KernelKind::ActivationForward:
      return [=, n = elements(b), fn = b.fn()](const ExecutionSpace& space, const RunContext& c) {
        ops::activation_forward<T>(space, y(c), x(c), n, fn);
      };
    case KernelKind::ActivationBackward:
      return activation_backward<T>(b);
    case KernelKind::AddForward:
      return [=, skip = b.operand<T>(Role::Skip), n = elements(b), fn = b.fn()](
                 const ExecutionSpace& space, const RunContext& c) {
        ops::add_forward<T>(space, y(c), x(c), skip(c), n, fn);
      };
    case KernelKind::AddGradients:
      return
          [dz = b.operand<T>(Role::Dz), dy = b.operand<T>(Role::Dy), dy2 = b.operand<T>(Role::Dy2),
           n = elements(b)](const ExecutionSpace& space, const RunContext& c) {
            ops::add_gradients<T>(space, dz(c), dy(c), dy2(c), n);
          };
    case KernelKind::LossForward:
      return loss_forward<T>(b);
    case KernelKind::LossBackward:
      return loss_backward<T>(b);
    case KernelKind::ConcatForward:
    case KernelKind::ConcatBackward:
    case KernelKind::ScaleForward:
    case KernelKind::ScaleBackward:
      return make_channel_kernel<T>(b);
    case KernelKind::DropoutForward:
    case KernelKind::DropoutBackward:
    case KernelKind::DropConnectForward:
    case KernelKind::DropConnectBackward:
      return make_dropout_kernel<T>(b);
    case KernelKind::PrepareImages:
      return prepare_images<T>(b);
    default:
      break;
  }
  return is_norm(b.call.kind) ? make_norm_kernel<T>(b) : make_pool_kernel<T>(b);
}

}  // namespace

ops::Fn Binding::fn() const {
  switch (call.fn) {
    case FusedFn::None:
      return ops::Fn::None;
    case FusedFn::Relu:
      return ops::Fn::Relu;
    case FusedFn::Swish:
      return ops::Fn::Swish;
    case FusedFn::Sigmoid:
      return ops::Fn::Sigmoid;
  }
  return ops::Fn::None;
}

Kernel make_kernel(const Binding& binding, DType type) {
  return device::dispatch(type, [&]<class T>() { return make<T>(binding); });
}

}  // namespace millrace::pipeline
