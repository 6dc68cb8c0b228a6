// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "ops/inner_kernel.hpp"
#include "ops/linear.hpp"

namespace millrace::ops {

/// A convolution without bias that another one computes, whose kernel holds this one's and zeros.
/// Scratch holds the gradient of the wide kernel during backward weight, and may hold the wide
/// kernel during packing.
class WideKernel : public LinearOp {
 public:
  [[nodiscard]] LinearBytes bytes() const final;
  void bind(const LinearMemory& memory) final;
  void pack(const device::ExecutionSpace& space, bool backward) final;
  void forward(const device::ExecutionSpace& space, std::byte* y, const std::byte* x) final;
  void backward_input(const device::ExecutionSpace& space, std::byte* dx,
                      const std::byte* dy) override;
  void backward_weight(const device::ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) final;

 protected:
  /// `wide` has a kernel of `elements` elements, each of `element_bytes`.
  WideKernel(std::unique_ptr<LinearOp> wide, std::int64_t elements, std::int64_t element_bytes);

 private:
  /// Fills the wide kernel.
  virtual void widen(const device::ExecutionSpace& space, std::byte* wide,
                     const std::byte* narrow) const = 0;
  /// Takes the gradient out of that of the wide kernel; adds it if not `first`.
  virtual void narrow(const device::ExecutionSpace& space, float* narrow, const float* wide,
                      bool first) const = 0;
  [[nodiscard]] float* wide_gradient() const { return reinterpret_cast<float*>(memory_.scratch); }

  std::unique_ptr<LinearOp> wide_;
  InnerKernel kernel_;
  std::int64_t gradient_bytes_;
  LinearMemory memory_;
};

}  // namespace millrace::ops
