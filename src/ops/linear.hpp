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
#include <memory>
#include <optional>

#include "core/dtype.hpp"
#include "core/error.hpp"
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
  /// Shape of an image of x in memory if it is not window.in (ops/prepare_images.hpp).
  std::optional<Shape> stored = {};

  [[nodiscard]] std::int64_t kernel_elements() const {
    return window.out.c * window.kernel_h * window.kernel_w * (window.in.c / groups);
  }
  friend bool operator==(const ConvShape&, const ConvShape&) = default;
};

struct DenseShape {
  std::int64_t batch = 1;
  std::int64_t in = 1;
  std::int64_t units = 1;
  bool bias = true;
};
/// A dense op as a 1x1 convolution of 1x1 images.
[[nodiscard]] ConvShape as_convolution(const DenseShape& shape);

/// The passes that an op will run; others are not prepared.
struct Passes {
  bool backward_input = true;
  bool backward_weight = true;
  bool forward = true;
  friend bool operator==(const Passes&, const Passes&) = default;
  /// Those of both.
  friend constexpr Passes operator&(const Passes& a, const Passes& b) {
    return {a.backward_input && b.backward_input, a.backward_weight && b.backward_weight,
            a.forward && b.forward};
  }
  /// Those of `a` that `b` has not.
  friend constexpr Passes operator-(const Passes& a, const Passes& b) {
    return a & Passes{!b.backward_input, !b.backward_weight, !b.forward};
  }
  [[nodiscard]] constexpr bool any() const { return backward_input || backward_weight || forward; }
};
inline constexpr Passes kOnlyWeight = {
    .backward_input = false, .backward_weight = true, .forward = false};

/// Memory in bytes that a prepared op needs in addition to its activations.
struct LinearBytes {
  std::int64_t packed_forward = 0;
  std::int64_t packed_backward = 0;
  std::int64_t scratch = 0;   ///< may be shared among all ops of a device
  bool reads_kernel = false;  ///< some pass reads the kernel itself, not its packed copy
  /// The gradient of the kernel in the storage type, if backward_weight() can leave it to be added.
  std::int64_t left_gradient = 0;
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
  /// Where backward_weight() leaves that gradient instead of adding it to dkernel; or null.
  std::byte* left_gradient = nullptr;
};

/// A convolution or dense op prepared for one shape and storage type. It has the passes that it was
/// prepared for; others are not called.
class LinearOp {
 public:
  virtual ~LinearOp() = default;
  [[nodiscard]] virtual LinearBytes bytes() const = 0;
  virtual void bind(const LinearMemory& memory) = 0;

  /// Updates the packed copies from the kernel; only the forward pass's copy if `backward` is
  /// false.
  virtual void pack(const device::ExecutionSpace&, bool /*backward*/) {}
  virtual void forward(const device::ExecutionSpace&, std::byte* /*y*/, const std::byte* /*x*/) {
    fail(ErrorKind::Internal, "a linear op without a forward pass");
  }
  virtual void backward_input(const device::ExecutionSpace&, std::byte* /*dx*/,
                              const std::byte* /*dy*/) {
    fail(ErrorKind::Internal, "a linear op without an input gradient");
  }
  /// dkernel += gradient, or dkernel = gradient if `first`, unless the gradient is left.
  virtual void backward_weight(const device::ExecutionSpace&, const std::byte* /*dy*/,
                               const std::byte* /*x*/, bool /*first*/) {
    fail(ErrorKind::Internal, "a linear op without a weight gradient");
  }
};

/// The values of a storage type at an address.
template <class T>
[[nodiscard]] T* as(std::byte* address) {
  return reinterpret_cast<T*>(address);
}
template <class T>
[[nodiscard]] const T* as(const std::byte* address) {
  return reinterpret_cast<const T*>(address);
}

// ---- our own ops, which read kernels in canonical order and pack nothing

/// Products of tiles, for all passes and every Kokkos backend: what runs where there is no library.
/// Scratch holds parts of weight gradients.
[[nodiscard]] std::unique_ptr<LinearOp> make_tiled(const ConvShape& shape, DType type);
[[nodiscard]] std::unique_ptr<LinearOp> make_tiled(const DenseShape& shape, DType type);

/// Plain loops, slow and simple: the reference of the others.
[[nodiscard]] std::unique_ptr<LinearOp> make_plain(const ConvShape& shape, DType type);
[[nodiscard]] std::unique_ptr<LinearOp> make_plain(const DenseShape& shape, DType type);

/// A depthwise convolution with a 3x3 or 5x5 window, without dilation and bias.
[[nodiscard]] bool is_depthwise(const ConvShape& shape);
/// The weight gradient of a convolution that is_depthwise, and no other pass: loops over NHWC
/// images, a register strip of channels at a time.
[[nodiscard]] std::unique_ptr<LinearOp> make_depthwise_gradient(const ConvShape& shape, DType type);

/// One that is_depthwise, with a horizontal stride of 1 or 2.
[[nodiscard]] bool has_depthwise_pixels(const ConvShape& shape);
/// Its forward and backward input, without a weight gradient, with the bits of plain loops.
[[nodiscard]] std::unique_ptr<LinearOp> make_depthwise_pixels(const ConvShape& shape, DType type);

/// Tiles of 4x4 outputs in a batch.
[[nodiscard]] std::int64_t winograd_tiles(const ConvShape& shape);
/// A 3x3 convolution with stride 1 whose channels are multiples of 16 and whose outputs fill most
/// of the tiles.
[[nodiscard]] bool is_winograd(const ConvShape& shape);
/// Bytes of scratch of all its passes by one thread: the same wherever it runs.
[[nodiscard]] std::int64_t winograd_scratch(const ConvShape& shape);
/// Its passes by Winograd's F(4x4, 3x3), on cores, with sums in float32: a quarter of the products,
/// packed kernels of four times the size. The error is about twice that of a sum of products (up to
/// 2.7 times with 16 channels), where what counts are the largest products of a tile, not those of
/// an output.
[[nodiscard]] std::unique_ptr<LinearOp> make_winograd(const ConvShape& shape, DType type,
                                                      Passes passes);

}  // namespace millrace::ops
