// SPDX-License-Identifier: Apache-2.0
//
// src/ops: kernels of the primitive ops on device memory.
//
// Streaming kernels (norm, elementwise, pool, softmax_loss, optimiser) are our own Kokkos code:
// free functions that take an execution-space instance, outputs, inputs and a shape struct. Ops
// with a kernel tensor (convolution, dense) do most of the arithmetic. A *backend* prepares one
// object per op, which is bound once to its memory and has separate functions for the three passes:
//
//   forward           y  = x * w            F of a schedule
//   backward_input    dx = dy * w^T         I
//   backward_weight   dw += x^T * dy        W
//
// Activations are NHWC in the storage type. Kernel tensors are in the storage type and in canonical
// order ([out][h][w][in/groups], dense [units][in]), as the weight update stores them. They are
// packed once per step into the backend's preferred layout. Products accumulate in float32. Weight
// gradients accumulate in float32 in the order of the calls.
//
// Backends: onednn (CPU) and kokkos (plain loops for every Kokkos backend; the reference in tests).
//
// 16-bit storage works on every processor. If it has no 16-bit products, operands are widened to
// float32, which is exact, and the result is rounded once, as in a 16-bit product with float32
// sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
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
struct WeightedBytes {
  std::int64_t packed_forward = 0;
  std::int64_t packed_backward = 0;
  std::int64_t scratch = 0;   ///< may be shared among all ops of a device
  bool reads_kernel = false;  ///< some pass reads the kernel itself, not its packed copy
};

/// Addresses of that memory and of the op's parameters; fixed for the lifetime of the op.
struct WeightedMemory {
  const std::byte* kernel = nullptr;  ///< canonical, in the storage type
  const float* bias = nullptr;
  float* dkernel = nullptr;
  float* dbias = nullptr;
  std::byte* packed_forward = nullptr;
  std::byte* packed_backward = nullptr;
  std::byte* scratch = nullptr;
};

/// A convolution or dense op prepared for one shape and storage type.
class WeightedOp {
 public:
  virtual ~WeightedOp() = default;
  [[nodiscard]] virtual WeightedBytes bytes() const = 0;
  virtual void bind(const WeightedMemory& memory) = 0;

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

/// Maximum scratch bytes of a vendor's kernels, by kind of op. If no kernel stays within the limit,
/// the one with the smallest scratch is used: a low limit can make a run slower but does not stop
/// it.
struct ScratchCaps {
  std::int64_t convolution = std::numeric_limits<std::int64_t>::max();
  std::int64_t dense = std::numeric_limits<std::int64_t>::max();
};

/// Prepares ops. Errors: Internal, if the backend does not support a shape.
class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  /// Whether values of a 16-bit type are multiplied directly; otherwise they are converted to
  /// float32.
  [[nodiscard]] virtual bool multiplies(DType type) const = 0;
  /// Why values of the type are converted to float32, as text for messages; "" if there is no
  /// reason to give.
  [[nodiscard]] virtual std::string why_not(DType) const { return {}; }
  /// Memory that the library allocates for itself regardless of the ops, in excess of about 2 MB.
  [[nodiscard]] virtual std::int64_t own_bytes() const { return 0; }
  [[nodiscard]] virtual std::unique_ptr<WeightedOp> convolution(const ConvShape& shape, DType type,
                                                                Passes passes) = 0;
  [[nodiscard]] virtual std::unique_ptr<WeightedOp> dense(const DenseShape& shape, DType type,
                                                          Passes passes) = 0;
};

/// Only in builds with oneDNN (MILLRACE_ONEDNN), which are CPU builds.
[[nodiscard]] std::unique_ptr<Backend> make_onednn_backend(const ScratchCaps& caps = {});
[[nodiscard]] std::unique_ptr<Backend> make_kokkos_backend();
/// The fastest backend of this build: oneDNN if available, otherwise the plain loops, which need no
/// scratch.
[[nodiscard]] std::unique_ptr<Backend> make_default_backend(const ScratchCaps& caps = {});

/// Describes how make_default_backend()'s kernels compute with `type`: "bfloat16: stored in 16
/// bits, multiplied in float32: this processor has no 16-bit products".
[[nodiscard]] std::string describe_products(DType type);

}  // namespace millrace::ops
