// SPDX-License-Identifier: Apache-2.0
#include "ops/wide_kernel.hpp"

#include <algorithm>
#include <utility>

#include "device/arena.hpp"

namespace millrace::ops {

using device::ExecutionSpace;

WideKernel::WideKernel(std::unique_ptr<LinearOp> wide, std::int64_t elements,
                       std::int64_t element_bytes)
    : wide_(std::move(wide)),
      kernel_(*wide_, elements * element_bytes),
      gradient_bytes_(device::aligned(elements * static_cast<std::int64_t>(sizeof(float)))) {}

LinearBytes WideKernel::bytes() const {
  LinearBytes bytes = wide_->bytes();
  bytes.packed_forward = kernel_.packed_bytes();
  bytes.scratch = std::max(bytes.scratch + gradient_bytes_, kernel_.scratch_bytes());
  bytes.reads_kernel = false;
  return bytes;
}

void WideKernel::bind(const LinearMemory& memory) {
  memory_ = memory;
  LinearMemory rest = memory;
  rest.kernel = kernel_.in(memory);
  rest.dkernel = wide_gradient();
  rest.scratch += gradient_bytes_;
  wide_->bind(rest);
}

void WideKernel::pack(const ExecutionSpace& space, bool backward) {
  widen(space, kernel_.in(memory_), memory_.kernel);
  wide_->pack(space, backward);
}

void WideKernel::forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) {
  wide_->forward(space, y, x);
}

void WideKernel::backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) {
  wide_->backward_input(space, dx, dy);
}

void WideKernel::backward_weight(const ExecutionSpace& space, const std::byte* dy,
                                 const std::byte* x, bool first) {
  wide_->backward_weight(space, dy, x, true);
  narrow(space, memory_.dkernel, wide_gradient(), first);
}

}  // namespace millrace::ops
