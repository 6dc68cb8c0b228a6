// SPDX-License-Identifier: Apache-2.0
//
// Linear ops: convolution and dense, which have a kernel tensor and do most of the arithmetic. They
// are prepared by a Backend (ops/backend.hpp), bound once to their memory, and have separate
// functions for the three passes:
//
//   forward           y  = x * w            F of a schedule
//   backward_input    dx = dy * w^T         I
//   backward_weight   dw += x^T * dy        W
//
// Activations are NHWC in the storage type. Kernel tensors are in the storage type and in canonical
// order ([out][h][w][in/groups], dense [units][in]), as the weight update stores them. They are
// packed once per step into the layout that the kernels prefer. Products accumulate in float32.
// Weight gradients accumulate in float32 in the order of the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/dtype.hpp"
#include "device/tensor.hpp"
#include "ops/pool.hpp"

namespace millrace::ops {

/// A convolution over NHWC images: window with input and output shapes, groups, dilation and bias.
struct ConvShape {
  WindowShape window;
  std::int64_t pad_bottom = 0;
  std::int64_t pad_right = 0;
  std::int64_t groups = 1;
  std::int64_t dilation_h = 1;
  std::int64_t dilation_w = 1;
  bool bias = false;
  /// Channels of a pixel of x in memory, where those behind window.in.c are zeros; 0: window.in.c.
  std::int64_t padded_channels = 0;

  [[nodiscard]] std::int64_t channels_in_memory() const {
    return padded_channels > 0 ? padded_channels : window.in.c;
  }
  [[nodiscard]] std::int64_t kernel_elements() const {
    return window.out.c * window.kernel_h * window.kernel_w * (window.in.c / groups);
  }
};

struct DenseShape {
  std::int64_t batch = 1;
  std::int64_t in = 1;
  std::int64_t units = 1;
  bool bias = true;
};

/// The passes that an op will run; others are not prepared.
struct Passes {
  bool backward_input = true;
  bool backward_weight = true;
  bool forward = true;
  friend bool operator==(const Passes&, const Passes&) = default;
};

/// Memory in bytes that a prepared op needs in addition to its activations.
struct LinearBytes {
  std::int64_t packed_forward = 0;
  std::int64_t packed_backward = 0;
  std::int64_t scratch = 0;   ///< may be shared among all ops of a device
  bool reads_kernel = false;  ///< some pass reads the kernel itself, not its packed copy
};

/// Addresses of that memory and of the op's parameters; fixed for the lifetime of the op.
struct LinearMemory {
  const std::byte* kernel = nullptr;  ///< canonical, in the storage type
  const float* bias = nullptr;
  float* dkernel = nullptr;
  float* dbias = nullptr;
  std::byte* packed_forward = nullptr;
  std::byte* packed_backward = nullptr;
  std::byte* scratch = nullptr;
};

/// A convolution or dense op prepared for one shape and storage type.
class LinearOp {
 public:
  virtual ~LinearOp() = default;
  [[nodiscard]] virtual LinearBytes bytes() const = 0;
  virtual void bind(const LinearMemory& memory) = 0;

  /// Updates the packed copies from the kernel; only the forward pass's copy if `backward` is
  /// false.
  virtual void pack(const device::ExecutionSpace& space, bool backward) = 0;
  virtual void forward(const device::ExecutionSpace& space, std::byte* y, const std::byte* x) = 0;
  virtual void backward_input(const device::ExecutionSpace& space, std::byte* dx,
                              const std::byte* dy) = 0;
  /// dkernel += gradient, or dkernel = gradient if `first`.
  virtual void backward_weight(const device::ExecutionSpace& space, const std::byte* dy,
                               const std::byte* x, bool first) = 0;
};

}  // namespace millrace::ops
