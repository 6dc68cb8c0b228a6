// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/linear_op.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/vendor_scope.hpp"
#include "ops/elementwise.hpp"
#include "ops/sums.hpp"

namespace millrace::ops::cudnn {
namespace {

using device::ExecutionSpace;

void* address(const void* p) {
  return const_cast<void*>(p);
}  // the library takes no const pointers

std::int64_t scratch_of(const std::shared_ptr<const Plan>& plan) {
  return plan ? plan->scratch : 0;
}

}  // namespace

/// Stages are also planned before there is an Environment.
Descriptor properties_in_use() {
  int device = 0;
  if (Kokkos::is_initialized()) {
    device = ExecutionSpace().cuda_device();
  } else if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) {
    fail(ErrorKind::Internal, "CUDA has no device: {}", cudaGetErrorString(status));
  }
  return properties_of_device(device);
}

Context::Context() : device_(properties_in_use()) {}

cudnnHandle_t Context::handle() const {
  if (!handle_) {
    cudnnHandle_t handle = nullptr;
    check(cudnnCreate(&handle), "to start");
    handle_.reset(handle);
  }
  return handle_.get();
}

void Context::run(const ExecutionSpace& space, const Plan& plan,
                  std::span<const std::int64_t> numbers, std::span<void* const> tensors,
                  std::byte* scratch) const {
  const device::VendorScope vendor;
  Descriptor call(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  call.set_all(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, numbers)
      .set_all(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, tensors)
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, address(scratch))
      .finish();
  check(cudnnSetStream(handle(), space.cuda_stream()), "a stream");
  check(cudnnBackendExecute(handle(), plan.plan.get(), call.get()), "to run a plan");
}

CudnnOp::CudnnOp(std::shared_ptr<const Context> context, const ConvShape& shape, DType type,
                 PassPlans plans)
    : context_(std::move(context)), shape_(shape), type_(type), plans_(std::move(plans)) {}

std::int64_t CudnnOp::gradient_bytes() const {
  return device::aligned(shape_.kernel_elements() * size_of(type_));
}

/// Scratch of the weight gradient: the gradient of the micro-batch, then the library's own. The
/// sums of the bias' gradient come after both are done.
LinearBytes CudnnOp::bytes() const {
  LinearBytes bytes{.reads_kernel = true};
  std::int64_t weight = 0;
  if (plans_.backward_weight) {
    bytes.left_gradient = gradient_bytes();
    weight = gradient_bytes() + plans_.backward_weight->scratch;
    if (shape_.bias) weight = std::max(weight, channel_sums_bytes(shape_.window.out.c));
  }
  bytes.scratch = std::max({scratch_of(plans_.forward), scratch_of(plans_.backward_input), weight});
  return bytes;
}

void CudnnOp::forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) {
  const std::array<std::int64_t, 4> numbers = {kInput, kKernel, kOutput, kBias};
  const std::array<void*, 4> tensors = {address(x), address(memory_.kernel), y,
                                        address(memory_.bias)};
  const std::size_t count = shape_.bias ? 4 : 3;
  context_->run(space, *plans_.forward, std::span(numbers).first(count),
                std::span(tensors).first(count), memory_.scratch);
}

void CudnnOp::backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) {
  const std::array<std::int64_t, 3> numbers = {kInput, kKernel, kOutput};
  const std::array<void*, 3> tensors = {dx, address(memory_.kernel), address(dy)};
  context_->run(space, *plans_.backward_input, numbers, tensors, memory_.scratch);
}

void CudnnOp::backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                              bool first) {
  const bool leaves = memory_.left_gradient != nullptr;
  std::byte* const part = leaves ? memory_.left_gradient : memory_.scratch;
  const std::array<std::int64_t, 3> numbers = {kInput, kKernel, kOutput};
  const std::array<void*, 3> tensors = {address(x), part, address(dy)};
  context_->run(space, *plans_.backward_weight, numbers, tensors,
                memory_.scratch + gradient_bytes());
  device::dispatch(type_, [&]<class T>() {
    if (!leaves)
      accumulate(space, memory_.dkernel, as<T>(static_cast<const std::byte*>(part)),
                 shape_.kernel_elements(), first);
    if (shape_.bias)
      add_channel_sums(space, memory_.dbias, as<float>(memory_.scratch), as<T>(dy),
                       shape_.window.batch * shape_.window.out.pixels(), shape_.window.out.c,
                       first);
  });
}

}  // namespace millrace::ops::cudnn
