// SPDX-License-Identifier: Apache-2.0
//
// src/ops: what the primitive ops compute, as kernels on device memory.
//
// Streaming kernels (norm, elementwise, pool, softmax_loss, optimiser) are own Kokkos code: free
// functions that take an execution-space instance, outputs, inputs and a shape struct. Ops with a
// kernel tensor (convolution, dense) are where the arithmetic is; a *backend* prepares one object
// an op, bound once to its memory, with the three passes of training apart:
//
//   forward           y  = x * w            F of a schedule
//   backward_input    dx = dy * w^T         I
//   backward_weight   dw += x^T * dy        W
//
// Activations are NHWC in the storage type. Kernels come in the storage type, too, in canonical
// order
// ([out][h][w] [in/groups], dense [units][in]), as the update of the weights has stored them, and
// are packed once a step into whatever the backend likes. Products accumulate in float32. Weight
// gradients add up in float32 in the order of the calls.
//
// Backends: onednn (CPU), kokkos (plain loops: every Kokkos backend, and the reference in tests).
//
// 16-bit storage asks nothing of the processor. Where it has no 16-bit products, operands widen to
// float32, which is exact, and the result is rounded once: what a 16-bit product with float32 sums
// means as well.
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

/// A convolution: window, groups and dilation over NHWC images (channels of in and out included).
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

/// Which passes an op will be asked for; the others cost nothing.
struct Passes {
  bool backward_input = true;
  bool backward_weight = true;
  bool forward = true;
  friend bool operator==(const Passes&, const Passes&) = default;
};

/// Memory that a prepared op needs besides its activations, in bytes.
struct WeightedBytes {
  std::int64_t packed_forward = 0;
  std::int64_t packed_backward = 0;
  std::int64_t scratch = 0;   ///< may be shared with every other op of the device
  bool reads_kernel = false;  ///< some pass reads the kernel, not only what is packed of it
};

/// Where that memory is, and the op's parameters; fixed for the life of the op.
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

  /// Brings the packed copies up to date with the kernel. `backward` false: forward's only.
  virtual void pack(const device::ExecutionSpace& space, bool backward) = 0;
  virtual void forward(const device::ExecutionSpace& space, std::byte* y, const std::byte* x) = 0;
  virtual void backward_input(const device::ExecutionSpace& space, std::byte* dx,
                              const std::byte* dy) = 0;
  /// dkernel (+)= gradient; `first` overwrites.
  virtual void backward_weight(const device::ExecutionSpace& space, const std::byte* dy,
                               const std::byte* x, bool first) = 0;
};

/// Bytes that a vendor's kernels may take as scratch, by kind of op. Where none makes do with so
/// few, the one that needs fewest is taken: a cap costs speed, it stops no run.
struct ScratchCaps {
  std::int64_t convolution = std::numeric_limits<std::int64_t>::max();
  std::int64_t dense = std::numeric_limits<std::int64_t>::max();
};

/// Makes prepared ops. Errors: Internal when a shape is beyond the backend.
class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  /// Whether values of a 16-bit type are multiplied as they are, or else as float32.
  [[nodiscard]] virtual bool multiplies(DType type) const = 0;
  /// What the latter is due to, for people; "" where nothing could be otherwise.
  [[nodiscard]] virtual std::string why_not(DType) const { return {}; }
  /// Memory that the library takes for itself, whatever the ops, beyond some two megabytes.
  [[nodiscard]] virtual std::int64_t own_bytes() const { return 0; }
  [[nodiscard]] virtual std::unique_ptr<WeightedOp> convolution(const ConvShape& shape, DType type,
                                                                Passes passes) = 0;
  [[nodiscard]] virtual std::unique_ptr<WeightedOp> dense(const DenseShape& shape, DType type,
                                                          Passes passes) = 0;
};

/// Only in builds with oneDNN (MILLRACE_ONEDNN), which are those for CPUs.
[[nodiscard]] std::unique_ptr<Backend> make_onednn_backend(const ScratchCaps& caps = {});
[[nodiscard]] std::unique_ptr<Backend> make_kokkos_backend();
/// The fastest that this build has: oneDNN, or else the plain loops, which take no scratch.
[[nodiscard]] std::unique_ptr<Backend> make_default_backend(const ScratchCaps& caps = {});

/// How make_default_backend()'s kernels compute with `type`, for people: "bfloat16: stored in 16
/// bits, multiplied in float32: this processor has no 16-bit products".
[[nodiscard]] std::string describe_products(DType type);

}  // namespace millrace::ops
