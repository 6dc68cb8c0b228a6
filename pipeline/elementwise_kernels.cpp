// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.hpp"

#include "pipeline/kernels.hpp"

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
Kernel activation_forward(const Binding& b) {
  return [n = elements(b), fn = b.call.fn, y = b.operand<T>(Role::Y), x = b.operand<T>(Role::X)](
             const ExecutionSpace& space, const RunContext& c) {
    ops::activation_forward<T>(space, y(c), x(c), n, fn);
  };
}

template <class T>
Kernel activation_backward(const Binding& b) {
  const auto dx = b.operand<T>(Role::Dx);
  const auto dy = b.operand<T>(Role::Dy);
  // The derivative is computed from the output if it is kept, otherwise from the input.
  const auto kept = b.operand<T>(b.call.has(Role::Y) ? Role::Y : Role::X);
  return [=, n = elements(b), fn = b.call.fn](const ExecutionSpace& space, const RunContext& c) {
    ops::activation_backward<T>(space, dx(c), dy(c), kept(c), n, fn);
  };
}

template <class T>
Kernel add_forward(const Binding& b) {
  return [n = elements(b), fn = b.call.fn, y = b.operand<T>(Role::Y), x = b.operand<T>(Role::X),
          skip = b.operand<T>(Role::Skip)](const ExecutionSpace& space, const RunContext& c) {
    ops::add_forward<T>(space, y(c), x(c), skip(c), n, fn);
  };
}

template <class T>
Kernel add_gradients(const Binding& b) {
  return [n = elements(b), dz = b.operand<T>(Role::Dz), dy = b.operand<T>(Role::Dy),
          dy2 = b.operand<T>(Role::Dy2)](const ExecutionSpace& space, const RunContext& c) {
    ops::add_gradients<T>(space, dz(c), dy(c), dy2(c), n);
  };
}

}  // namespace

Kernel make_elementwise_kernel(const Binding& b) {
  return device::dispatch(b.type, [&]<class T>() {
    if (b.call.kind == KernelKind::ActivationForward) return activation_forward<T>(b);
    if (b.call.kind == KernelKind::ActivationBackward) return activation_backward<T>(b);
    return b.call.kind == KernelKind::AddForward ? add_forward<T>(b) : add_gradients<T>(b);
  });
}

}  // namespace millrace::pipeline
