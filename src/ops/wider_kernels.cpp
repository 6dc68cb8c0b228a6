// SPDX-License-Identifier: Apache-2.0
#include "ops/wider_kernels.hpp"

#include <utility>

#include "core/error.hpp"
#include "device/parallel.hpp"
#include "ops/rewritten.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Pixels of a block, in both directions.
constexpr std::int64_t kSide = 2;

/// One direction of a convolution over blocks.
struct BlockAxis {
  std::int64_t before;   ///< padding, in blocks
  std::int64_t skipped;  ///< pixels of the first block that no tap reads
  std::int64_t taps;

  BlockAxis(std::int64_t padding, std::int64_t window)
      : before((padding + kSide - 1) / kSide),
        skipped(before * kSide - padding),
        taps((skipped + window + kSide - 1) / kSide) {}
  [[nodiscard]] std::int64_t after(std::int64_t blocks, std::int64_t outputs) const {
    return outputs + taps - 1 - blocks - before;
  }
};

/// A kernel with fewer channels within a wider one. Both have rows of channels, one for each filter
/// and tap.
struct WiderKernel {
  std::int64_t h, w;  ///< taps of the narrow kernel
  std::int64_t in;    ///< channels of its rows
  std::int64_t wide_h, wide_w, wide;
  std::int64_t block = 1;          ///< a wide row is that of so many taps in both directions
  std::int64_t top = 0, left = 0;  ///< taps of the first block before the first one
  std::int64_t out = 1;            ///< filters of a narrow group
  std::int64_t merged = 1;         ///< narrow groups in a wide one

  /// Where the row of a tap begins in the wide kernel.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t place(std::int64_t filter, std::int64_t r,
                                                          std::int64_t q) const {
    r += top;
    q += left;
    const std::int64_t row = (filter * wide_h + r / block) * wide_w + q / block;
    return row * wide + (r % block * block + q % block + filter / out % merged) * in;
  }
};

template <class T>
struct WidenRow {
  WiderKernel kernel;
  T* wide;
  const T* narrow;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const WiderKernel& k = kernel;
    for (std::int64_t c = 0; c < k.wide; ++c) wide[row * k.wide + c] = T{};
    const std::int64_t filter = row / k.wide_w / k.wide_h;
    const std::int64_t first_r = row / k.wide_w % k.wide_h * k.block - k.top;
    const std::int64_t first_q = row % k.wide_w * k.block - k.left;
    for (std::int64_t r = first_r; r < first_r + k.block; ++r)
      for (std::int64_t q = first_q; q < first_q + k.block; ++q) {
        if (r < 0 || q < 0 || r >= k.h || q >= k.w) continue;
        const T* const from = narrow + ((filter * k.h + r) * k.w + q) * k.in;
        T* const to = wide + k.place(filter, r, q);
        for (std::int64_t c = 0; c < k.in; ++c) to[c] = from[c];
      }
  }
};

/// Adds one row of the narrow kernel's gradient. What the wide one has beside it is left out.
struct NarrowRow {
  WiderKernel kernel;
  float* narrow;
  const float* wide;
  bool first;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const WiderKernel& k = kernel;
    const float* from = wide + k.place(row / k.w / k.h, row / k.w % k.h, row % k.w);
    float* to = narrow + row * k.in;
    for (std::int64_t c = 0; c < k.in; ++c) to[c] = first ? from[c] : to[c] + from[c];
  }
};

/// The operands of a convolution without bias: the gradient of a bias would be overwritten by every
/// micro-batch.
Operands with_wider_kernel(const ConvShape& s, const WiderKernel& kernel, DType type) {
  MILLRACE_ASSERT(!s.bias);
  const std::int64_t rows = s.window.out.c * kernel.h * kernel.w;
  const std::int64_t wide_rows = s.window.out.c * kernel.wide_h * kernel.wide_w;
  Operands operands;
  operands.kernel_bytes = wide_rows * kernel.wide * size_of(type);
  operands.kernel = [=](const ExecutionSpace& space, std::byte* wide, const std::byte* narrow) {
    device::dispatch(type, [&]<class T>() {
      parallel("widen kernel", space, wide_rows, WidenRow<T>{kernel, as<T>(wide), as<T>(narrow)});
    });
  };
  operands.gradient_bytes = wide_rows * kernel.wide * size_of(DType::F32);
  operands.add_gradient = [=](const ExecutionSpace& space, float* narrow, const float* wide,
                              bool first) {
    parallel("narrow gradient", space, rows, NarrowRow{kernel, narrow, wide, first});
  };
  return operands;
}

bool is_in_blocks(const ConvShape& s) { return s.stored->h < s.window.in.h; }

}  // namespace

std::optional<Shape> stored_image(const ConvShape& first, DType type, std::int64_t least,
                                  bool in_blocks) {
  constexpr std::int64_t kFew = 3;  // fewer would be zeros for the most part
  constexpr std::int64_t kLarge = 64 * 64;
  const WindowShape& w = first.window;
  const Shape& image = w.in;
  if (type == DType::F32 || first.groups > 1 || first.bias) return {};
  if (image.c < kFew || image.pixels() < kLarge) return {};
  const bool strided = w.stride_h == kSide && w.stride_w == kSide && w.kernel_h >= kSide &&
                       w.kernel_w >= kSide && first.dilation_h == 1 && first.dilation_w == 1;
  const bool whole = image.h % kSide == 0 && image.w % kSide == 0;
  if (in_blocks && strided && whole && kSide * kSide * image.c <= kMatrixChannels)
    return Shape{image.h / kSide, image.w / kSide, kMatrixChannels};
  if (image.c < least) return Shape{image.h, image.w, least};
  return {};
}

ConvShape as_stored(const ConvShape& shape) {
  ConvShape stored = shape;
  stored.stored.reset();
  WindowShape& w = stored.window;
  w.in = *shape.stored;
  if (!is_in_blocks(shape)) return stored;
  const BlockAxis rows(w.pad_top, w.kernel_h);
  const BlockAxis columns(w.pad_left, w.kernel_w);
  w.stride_h = w.stride_w = 1;
  w.kernel_h = rows.taps;
  w.kernel_w = columns.taps;
  w.pad_top = rows.before;
  w.pad_left = columns.before;
  stored.pad_bottom = rows.after(w.in.h, w.out.h);
  stored.pad_right = columns.after(w.in.w, w.out.w);
  return stored;
}

std::unique_ptr<LinearOp> make_stored(const ConvShape& shape, DType type,
                                      std::unique_ptr<LinearOp> wide) {
  MILLRACE_ASSERT(shape.groups == 1);
  const WindowShape& w = shape.window;
  const WindowShape stored = as_stored(shape).window;
  WiderKernel kernel{w.kernel_h, w.kernel_w, w.in.c, stored.kernel_h, stored.kernel_w, stored.in.c};
  if (is_in_blocks(shape)) {
    kernel.block = kSide;
    kernel.top = BlockAxis(w.pad_top, w.kernel_h).skipped;
    kernel.left = BlockAxis(w.pad_left, w.kernel_w).skipped;
  }
  Operands operands = with_wider_kernel(shape, kernel, type);
  operands.of_images = true;
  return make_rewritten(std::move(operands), std::move(wide));
}

ConvShape merged_shape(const ConvShape& shape, std::int64_t merged) {
  MILLRACE_ASSERT(merged > 0 && shape.groups % merged == 0);
  ConvShape wide = shape;
  wide.groups = shape.groups / merged;
  return wide;
}

std::unique_ptr<LinearOp> make_merged_groups(const ConvShape& s, std::int64_t merged, DType type,
                                             std::unique_ptr<LinearOp> wide) {
  const WindowShape& w = s.window;
  const std::int64_t in = w.in.c / s.groups;
  WiderKernel kernel{w.kernel_h, w.kernel_w, in, w.kernel_h, w.kernel_w, in * merged};
  kernel.out = w.out.c / s.groups;
  kernel.merged = merged;
  return make_rewritten(with_wider_kernel(s, kernel, type), std::move(wide));
}

}  // namespace millrace::ops
