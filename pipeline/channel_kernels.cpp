// SPDX-License-Identifier: Apache-2.0
#include "ops/channels.hpp"

#include "pipeline/kernels.hpp"

namespace millrace::pipeline {
namespace {

using device::ExecutionSpace;

/// Operand `part` of a concatenation.
ops::ChannelSlice concat_slice(const Binding& b) {
  const auto part = static_cast<std::size_t>(b.call.part);
  const models::Op& concat = b.graph.op(b.call.op);
  const Shape& all = b.graph.value(concat.output).shape;
  const auto channels = [&](std::size_t i) { return b.graph.value(concat.inputs[i]).shape.c; };
  ops::ChannelSlice slice{b.batch * all.pixels(), all.c, 0, channels(part)};
  for (std::size_t i = 0; i < part; ++i) slice.first += channels(i);
  return slice;
}

template <class T>
Kernel concat(const Binding& b) {
  const ops::ChannelSlice slice = concat_slice(b);
  const auto y = b.operand<T>(Role::Y);
  if (b.call.kind == KernelKind::ConcatForward) {
    return [=, x = b.operand<T>(Role::X), fn = b.call.fn](const ExecutionSpace& space,
                                                          const RunContext& c) {
      ops::concat_forward<T>(space, slice, y(c), x(c), fn);
    };
  }
  return [=, dx = b.operand<T>(Role::Dx), dy = b.operand<T>(Role::Dy), fn = b.call.fn](
             const ExecutionSpace& space, const RunContext& c) {
    ops::concat_backward<T>(space, slice, dx(c), dy(c), y(c), fn);
  };
}

template <class T>
Kernel scale(const Binding& b) {
  const Shape& shape_of_x = b.graph.value(b.graph.op(b.call.op).inputs.front()).shape;
  const ops::ScaleShape shape{b.batch, shape_of_x.pixels(), shape_of_x.c};
  const auto x = b.operand<T>(Role::X);
  const auto factor = b.operand<T>(Role::Scale);
  if (b.call.kind == KernelKind::ScaleForward) {
    return [=, y = b.operand<T>(Role::Y), skip = b.operand<T>(Role::Skip), fn = b.call.fn](
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

Kernel make_channel_kernel(const Binding& b) {
  const bool concatenates =
      b.call.kind == KernelKind::ConcatForward || b.call.kind == KernelKind::ConcatBackward;
  return device::dispatch(b.type,
                          [&]<class T>() { return concatenates ? concat<T>(b) : scale<T>(b); });
}

}  // namespace millrace::pipeline
