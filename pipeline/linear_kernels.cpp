// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.hpp"

#include "pipeline/kernels.hpp"

namespace millrace::pipeline {

using device::ExecutionSpace;

Kernel make_linear_kernel(const Binding& b) {
  MILLRACE_ASSERT(b.linear != nullptr);
  const auto x = b.operand<std::byte>(Role::X);
  const auto dy = b.operand<std::byte>(Role::Dy);
  if (b.call.kind == KernelKind::LinearForward) {
    return
        [op = b.linear, x, y = b.operand<std::byte>(Role::Y)](
            const ExecutionSpace& space, const RunContext& c) { op->forward(space, y(c), x(c)); };
  }
  if (b.call.kind == KernelKind::LinearBackwardInput) {
    return [op = b.linear, dy, dx = b.operand<std::byte>(Role::Dx)](const ExecutionSpace& space,
                                                                    const RunContext& c) {
      op->backward_input(space, dx(c), dy(c));
    };
  }
  return [op = b.linear, x, dy](const ExecutionSpace& space, const RunContext& c) {
    op->backward_weight(space, dy(c), x(c), c.first);
  };
}

}  // namespace millrace::pipeline
