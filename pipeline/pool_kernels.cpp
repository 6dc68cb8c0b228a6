// SPDX-License-Identifier: Apache-2.0
#include "ops/pool.hpp"
#include "pipeline/kernels.hpp"
#include "pipeline/op_shapes.hpp"

namespace millrace::pipeline {
namespace {

using device::ExecutionSpace;

template <class T>
Kernel max_pool(const Binding& b, const ops::WindowShape& shape) {
  const auto winner = b.operand<std::uint8_t>(Role::Winner);
  if (b.call.kind == KernelKind::PoolForward) {
    return [=, y = b.operand<T>(Role::Y), x = b.operand<T>(Role::X)](const ExecutionSpace& space,
                                                                     const RunContext& c) {
      ops::max_pool_forward<T>(space, shape, y(c), winner(c), x(c));
    };
  }
  return [=, dx = b.operand<T>(Role::Dx), dy = b.operand<T>(Role::Dy)](const ExecutionSpace& space,
                                                                       const RunContext& c) {
    ops::max_pool_backward<T>(space, shape, dx(c), dy(c), winner(c));
  };
}

template <class T>
Kernel average_pool(const Binding& b, const ops::WindowShape& shape, bool count_padding) {
  if (b.call.kind == KernelKind::PoolForward) {
    return [=, y = b.operand<T>(Role::Y), x = b.operand<T>(Role::X)](const ExecutionSpace& space,
                                                                     const RunContext& c) {
      ops::average_pool_forward<T>(space, shape, y(c), x(c), count_padding);
    };
  }
  return [=, dx = b.operand<T>(Role::Dx), dy = b.operand<T>(Role::Dy)](const ExecutionSpace& space,
                                                                       const RunContext& c) {
    ops::average_pool_backward<T>(space, shape, dx(c), dy(c), count_padding);
  };
}

template <class T>
Kernel global_average(const Binding& b, const ops::WindowShape& shape) {
  if (b.call.kind == KernelKind::GlobalPoolForward) {
    return [=, y = b.operand<T>(Role::Y), x = b.operand<T>(Role::X)](const ExecutionSpace& space,
                                                                     const RunContext& c) {
      ops::global_average_forward<T>(space, shape.batch, shape.in, y(c), x(c));
    };
  }
  return [=, dx = b.operand<T>(Role::Dx), dy = b.operand<T>(Role::Dy)](const ExecutionSpace& space,
                                                                       const RunContext& c) {
    ops::global_average_backward<T>(space, shape.batch, shape.in, dx(c), dy(c));
  };
}

template <class T>
Kernel shortcut_pad(const Binding& b, const ops::WindowShape& shape, std::int64_t before) {
  if (b.call.kind == KernelKind::ShortcutForward) {
    return [=, y = b.operand<T>(Role::Y), x = b.operand<T>(Role::X)](const ExecutionSpace& space,
                                                                     const RunContext& c) {
      ops::shortcut_pad_forward<T>(space, shape, before, y(c), x(c));
    };
  }
  return [=, dx = b.operand<T>(Role::Dx), dy = b.operand<T>(Role::Dy)](const ExecutionSpace& space,
                                                                       const RunContext& c) {
    ops::shortcut_pad_backward<T>(space, shape, before, dx(c), dy(c));
  };
}

template <class T>
Kernel make(const Binding& b) {
  const models::OpKind& kind = b.graph.op(b.call.op).kind;
  if (const auto* pool = std::get_if<models::Pool>(&kind)) {
    const ops::WindowShape shape =
        window_shape(b.graph, b.call.op, b.batch, pool->kernel, pool->stride, pool->pad);
    return pool->kind == models::PoolKind::Max ? max_pool<T>(b, shape)
                                               : average_pool<T>(b, shape, pool->count_padding);
  }
  if (const auto* shortcut = std::get_if<models::ShortcutPad>(&kind)) {
    const ops::WindowShape shape =
        window_shape(b.graph, b.call.op, b.batch, {1, 1}, shortcut->stride);
    return shortcut_pad<T>(b, shape, shortcut->channels_before);
  }
  return global_average<T>(b, window_shape(b.graph, b.call.op, b.batch));
}

}  // namespace

Kernel make_pool_kernel(const Binding& b) {
  return device::dispatch(b.type, [&]<class T>() { return make<T>(b); });
}

}  // namespace millrace::pipeline
