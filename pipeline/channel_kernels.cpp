// SPDX-License-Identifier: Apache-2.0
#include "pipeline/kernels.hpp"
#include "pipeline/op_shapes.hpp"

namespace millrace::pipeline {
namespace {

using device::ExecutionSpace;

template <class T>
Kernel concat(const Binding& b) {
  const ops::ChannelSlice slice =
      concat_slice(b.graph, b.call.op, static_cast<std::size_t>(b.call.part), b.batch);
  const auto y = b.operand<T>(Role::Y);
  if (b.call.kind == KernelKind::ConcatForward) {
    return [=, x = b.operand<T>(Role::X), fn = b.fn()](const ExecutionSpace& space,
                                                       const RunContext& c) {
      ops::concat_forward<T>(space, slice, y(c), x(c), fn);
    };
  }
  return [=, dx = b.operand<T>(Role::Dx), dy = b.operand<T>(Role::Dy), fn = b.fn()](
             const ExecutionSpace& space, const RunContext& c) {
    ops::concat_backward<T>(space, slice, dx(c), dy(c), y(c), fn);
  };
}

template <class T>
Kernel scale(const Binding& b) {
  const ops::ScaleShape shape = scale_shape(b.graph, b.call.op, b.batch);
  const auto x = b.operand<T>(Role::X);
  const auto factor = b.operand<T>(Role::Scale);
  if (b.call.kind == KernelKind::ScaleForward) {
    return [=, y = b.operand<T>(Role::Y), skip = b.operand<T>(Role::Skip), fn = b.fn()](
               const ExecutionSpace& space, const RunContext& c) {
      ops::scale_forward<T>(space, shape, y(c), x(c), factor(c), skip(c), fn);
    };
  }
  return [=, dx = b.operand<T>(Role::Dx), dscale = b.operand<T>(Role::Dscale),
          dy = b.operand<T>(Role::Dy)](const ExecutionSpace& space, const RunContext& c) {
    ops::scale_backward<T>(space, shape, dx(c), dscale(c), dy(c), x(c), factor(c));
  };
}

}  // namespace

template <class T>
Kernel make_channel_kernel(const Binding& b) {
  const bool concatenates =
      b.call.kind == KernelKind::ConcatForward || b.call.kind == KernelKind::ConcatBackward;
  return concatenates ? concat<T>(b) : scale<T>(b);
}

template Kernel make_channel_kernel<float>(const Binding&);
template Kernel make_channel_kernel<bfloat16>(const Binding&);
template Kernel make_channel_kernel<float16>(const Binding&);

}  // namespace millrace::pipeline
