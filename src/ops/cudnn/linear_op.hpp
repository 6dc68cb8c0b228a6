// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/cudnn/plan.hpp"
#include "ops/linear.hpp"

namespace millrace::ops::cudnn {

/// The properties of the device that Kokkos uses, or will use.
[[nodiscard]] Descriptor properties_in_use();

/// The library on one device.
class Context {
 public:
  /// For the device that Kokkos uses.
  Context();

  [[nodiscard]] const Descriptor& device() const { return device_; }
  /// Queues a plan on the stream of `space`. Tensors are numbered as in its graph.
  void run(const device::ExecutionSpace& space, const Plan& plan,
           std::span<const std::int64_t> numbers, std::span<void* const> tensors,
           std::byte* scratch) const;

 private:
  struct Destroy {
    void operator()(cudnnHandle_t handle) const noexcept { cudnnDestroy(handle); }
  };
  [[nodiscard]] cudnnHandle_t handle() const;

  /// From the first run on: a plan needs none, and a handle opens the device.
  mutable std::unique_ptr<cudnnContext, Destroy> handle_;
  Descriptor device_;
};

/// Plans of the passes; null: the pass is not run.
struct PassPlans {
  std::shared_ptr<const Plan> forward, backward_input, backward_weight;
};

/// A convolution of cuDNN. It reads the kernel in canonical order, so nothing is packed. The
/// gradient of a micro-batch is rounded to the storage type; it is left, or summed over
/// micro-batches in float32, in their order. In 16 bits the vendor asks ops/cublas for products
/// first, which rounds nothing.
class CudnnOp final : public LinearOp {
 public:
  CudnnOp(std::shared_ptr<const Context> context, const ConvShape& shape, DType type,
          PassPlans plans);

  [[nodiscard]] LinearBytes bytes() const override;
  void bind(const LinearMemory& memory) override { memory_ = memory; }
  void forward(const device::ExecutionSpace& space, std::byte* y, const std::byte* x) override;
  void backward_input(const device::ExecutionSpace& space, std::byte* dx,
                      const std::byte* dy) override;
  void backward_weight(const device::ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override;

 private:
  [[nodiscard]] std::int64_t gradient_bytes() const;

  std::shared_ptr<const Context> context_;
  ConvShape shape_;
  DType type_;
  PassPlans plans_;
  LinearMemory memory_;
};

}  // namespace millrace::ops::cudnn
