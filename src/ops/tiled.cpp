// SPDX-License-Identifier: Apache-2.0
//
// Convolution and dense as products of tiles, on every Kokkos backend, for devices without a
// library of kernels. Each pass of a group is a product (tile_product.hpp) over
//
//   pass              rows m          columns n    depth k
//   forward           output pixels   outputs      taps x inputs
//   backward input    input pixels    inputs       taps x outputs
//   backward weight   outputs         taps x inputs  output pixels, in parts
//
// with taps (r, q) of the window in row-major order.
#include <algorithm>

#include "ops/joined_sums.hpp"
#include "ops/linear_ops.hpp"
#include "ops/tile_product.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Where a window lies in an image: its first row and column, and the offset of its image.
struct Position {
  std::int64_t image;
  std::int32_t h;
  std::int32_t w;
};
/// A tap of a window and a channel of the image.
struct Tap {
  std::int64_t channel;
  std::int64_t left;  ///< channels of the group from it on
  std::int32_t h;
  std::int32_t w;
};
/// A run without an end.
constexpr std::int64_t kEndless = std::int64_t{1} << 30;

/// The elements of an image under windows, zero outside.
template <class T>
struct Windows {
  const T* data;
  Shape image;
  Shape pixels;  ///< of the windows' grid
  std::int64_t per_group;
  std::int64_t kernel_w;
  /// Row of a window's first element: grid row x step_h + first_h; the tap r is r x tap_h below.
  std::int32_t step_h = 1, step_w = 1;
  std::int32_t first_h = 0, first_w = 0;
  std::int32_t tap_h = 1, tap_w = 1;
  /// Only every divide_h-th row is in the image, which holds no others.
  std::int32_t divide_h = 1, divide_w = 1;

  [[nodiscard]] KOKKOS_INLINE_FUNCTION Position position(std::int64_t pixel) const {
    const Quotient column = divide(pixel, pixels.w);
    const Quotient row = divide(column.quotient, pixels.h);
    return {row.quotient * image.h * image.w * image.c,
            static_cast<std::int32_t>(row.remainder) * step_h + first_h,
            static_cast<std::int32_t>(column.remainder) * step_w + first_w};
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Tap tap(std::int64_t group, std::int64_t k) const {
    const Quotient channel = divide(k, per_group);
    const Quotient row = divide(channel.quotient, kernel_w);
    return {group * per_group + channel.remainder, per_group - channel.remainder,
            static_cast<std::int32_t>(row.quotient) * tap_h,
            static_cast<std::int32_t>(row.remainder) * tap_w};
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION const T* at(const Position& p, const Tap& t) const {
    std::int32_t h = p.h + t.h;
    std::int32_t w = p.w + t.w;
    if (h < 0 || w < 0) return nullptr;
    if (divide_h > 1) {
      if (h % divide_h != 0) return nullptr;
      h /= divide_h;
    }
    if (divide_w > 1) {
      if (w % divide_w != 0) return nullptr;
      w /= divide_w;
    }
    if (h >= image.h || w >= image.w) return nullptr;
    return data + p.image + (h * image.w + w) * image.c + t.channel;
  }
};

/// Windows as the left operand: a row is a window.
template <class T>
struct WindowRows {
  using Outer = Position;
  using Inner = Tap;
  static constexpr bool kInnerIsDense = true;
  Windows<T> windows;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Position outer(std::int64_t, std::int64_t m) const {
    return windows.position(m);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Tap inner(std::int64_t group, std::int64_t k) const {
    return windows.tap(group, k);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION const T* pointer(const Position& p, const Tap& t) const {
    return windows.at(p, t);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t run(const Position&, const Tap& t) const {
    return t.left;
  }
};

/// Windows as the right operand: a column is a tap.
template <class T>
struct TapColumns {
  using Outer = Tap;
  using Inner = Position;
  static constexpr bool kInnerIsDense = false;
  Windows<T> windows;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Tap outer(std::int64_t group, std::int64_t n) const {
    return windows.tap(group, n);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Position inner(std::int64_t, std::int64_t k) const {
    return windows.position(k);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION const T* pointer(const Tap& t, const Position& p) const {
    return windows.at(p, t);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t run(const Tap& t, const Position&) const {
    return t.left;
  }
};

/// A tensor whose element is at the sum of two offsets.
template <class T, bool kInner>
struct Stored {
  using Outer = std::int64_t;
  using Inner = std::int64_t;
  static constexpr bool kInnerIsDense = kInner;
  const T* data;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION const T* pointer(std::int64_t outer,
                                                        std::int64_t inner) const {
    return data + outer + inner;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static std::int64_t run(std::int64_t, std::int64_t) {
    return kEndless;
  }
};

/// Columns are outputs: kernel[group x outputs + n][k].
template <class T>
struct KernelByOutput : Stored<T, true> {
  std::int64_t outputs, depth;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t outer(std::int64_t g, std::int64_t n) const {
    return (g * outputs + n) * depth;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t inner(std::int64_t, std::int64_t k) const {
    return k;
  }
};

/// Columns are inputs: kernel[group x outputs + o][tap][n], with k = tap x outputs + o.
template <class T>
struct KernelByInput : Stored<T, false> {
  std::int64_t outputs, taps, inputs;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t outer(std::int64_t, std::int64_t n) const {
    return n;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t inner(std::int64_t g, std::int64_t k) const {
    const Quotient tap = divide(k, outputs);
    return ((g * outputs + tap.remainder) * taps + tap.quotient) * inputs;
  }
};

/// Rows are channels of a gradient, k are its pixels.
template <class T>
struct GradientRows : Stored<T, false> {
  std::int64_t outputs, channels;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t outer(std::int64_t g, std::int64_t m) const {
    return g * outputs + m;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t inner(std::int64_t, std::int64_t k) const {
    return k * channels;
  }
};

/// Stores the activation of pixel m and channel n of a group.
template <class T>
struct StoreActivation {
  T* data;
  std::int64_t channels, per_group;
  const float* bias;  ///< null: none
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t g, std::int64_t, std::int64_t m,
                                         std::int64_t n, float sum) const {
    const std::int64_t c = g * per_group + n;
    data[m * channels + c] = store_as<T>(bias != nullptr ? sum + bias[c] : sum);
  }
};

/// Stores a part of the sums of output m and tap x input n.
struct StoreParts {
  float* parts;  // [part][output][tap][input]
  std::int64_t elements, outputs, depth;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t g, std::int64_t part, std::int64_t m,
                                         std::int64_t n, float sum) const {
    parts[part * elements + (g * outputs + m) * depth + n] = sum;
  }
};

/// Teams that keep a device busy. Fixed, because the cut of a sum must not depend on the machine.
constexpr std::int64_t kEnoughTeams = device::kOnCores ? 32 : 512;
/// Tiles with fewer rows or columns for narrow groups.
constexpr int kWide = 64;
constexpr int kNarrow = 16;
/// Tiles of activations are as much taller on cores.
constexpr int kTaller = 2;

/// Parts of the sum over pixels: enough teams, but each with some slices of its own.
std::int64_t parts_of(const ConvShape& s) {
  constexpr std::int64_t kFewestPixels = 256;
  const WindowShape& w = s.window;
  const auto tiles = [](std::int64_t n) { return (n + kWide - 1) / kWide; };
  const std::int64_t depth = w.kernel_h * w.kernel_w * w.in.c / s.groups;
  const std::int64_t teams = s.groups * tiles(w.out.c / s.groups) * tiles(depth);
  const std::int64_t pixels = w.batch * w.out.pixels();
  return std::clamp<std::int64_t>((kEnoughTeams + teams - 1) / teams, 1,
                                  std::max<std::int64_t>(1, pixels / kFewestPixels));
}

template <class T>
class TiledConvolution final : public LinearOp {
 public:
  explicit TiledConvolution(const ConvShape& shape)
      : s_(shape),
        inputs_(shape.window.in.c / shape.groups),
        outputs_(shape.window.out.c / shape.groups),
        taps_(shape.window.kernel_h * shape.window.kernel_w),
        parts_(parts_of(shape)) {}

  [[nodiscard]] LinearBytes bytes() const override {
    const auto bytes = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t bias = s_.bias ? channel_sums_bytes(s_.window.out.c) : 0;
    return {.scratch = std::max(parts_ * s_.kernel_elements() * bytes, bias), .reads_kernel = true};
  }
  void bind(const LinearMemory& memory) override { memory_ = memory; }
  void pack(const ExecutionSpace&, bool) override {}

  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    const std::int64_t depth = taps_ * inputs_;
    const WindowRows<T> left{windows(x)};
    const KernelByOutput<T> right{{kernel()}, outputs_, depth};
    const StoreActivation<T> store{as(y), s_.window.out.c, outputs_,
                                   s_.bias ? memory_.bias : nullptr};
    const ProductShape product{s_.groups, pixels_out(), outputs_, depth};
    run_activation("conv", space, product, left, right, store);
  }

  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    const std::int64_t depth = taps_ * outputs_;
    const WindowRows<T> left{turned_windows(dy)};
    const KernelByInput<T> right{{kernel()}, outputs_, taps_, inputs_};
    const StoreActivation<T> store{as(dx), s_.window.in.c, inputs_, nullptr};
    const ProductShape product{s_.groups, s_.window.batch * s_.window.in.pixels(), inputs_, depth};
    run_activation("conv dx", space, product, left, right, store);
  }

  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    auto* const parts = reinterpret_cast<float*>(memory_.scratch);
    const std::int64_t depth = taps_ * inputs_;
    const GradientRows<T> left{{as(dy)}, outputs_, s_.window.out.c};
    const TapColumns<T> right{windows(x)};
    const StoreParts store{parts, s_.kernel_elements(), outputs_, depth};
    const ProductShape product{s_.groups, outputs_, depth, pixels_out(), parts_};
    if (outputs_ <= kNarrow)
      run<TileSizes<kNarrow, kWide>>("conv dw", space, product, left, right, store);
    else
      run<TileSizes<kWide, kWide>>("conv dw", space, product, left, right, store);
    parallel("conv dw sum", space, s_.kernel_elements(),
             JoinParts{memory_.dkernel, parts, s_.kernel_elements(), parts_, first});
    if (s_.bias)
      add_channel_sums(space, memory_.dbias, parts, as(dy), pixels_out(), s_.window.out.c, first);
  }

 private:
  static T* as(std::byte* p) { return reinterpret_cast<T*>(p); }
  static const T* as(const std::byte* p) { return reinterpret_cast<const T*>(p); }
  [[nodiscard]] const T* kernel() const { return as(memory_.kernel); }
  [[nodiscard]] std::int64_t pixels_out() const { return s_.window.batch * s_.window.out.pixels(); }

  template <class Sizes, std::size_t kLabelSize, class A, class B, class Store>
  static void run(const char (&label)[kLabelSize], const ExecutionSpace& space,
                  const ProductShape& shape, const A& a, const B& b, const Store& store) {
    const TileProduct<Sizes, A, B, Store> product{shape, a, b, store};
    device::parallel_teams(label, space, product.teams(), product);
  }

  /// A product whose rows are pixels and whose columns are the channels of a group.
  template <std::size_t kLabelSize, class A, class B>
  static void run_activation(const char (&label)[kLabelSize], const ExecutionSpace& space,
                             const ProductShape& shape, const A& a, const B& b,
                             const StoreActivation<T>& store) {
    if (shape.columns <= kNarrow)
      run<TileSizes<kWide, kNarrow, kTaller>>(label, space, shape, a, b, store);
    else
      run<TileSizes<kWide, kWide, kTaller>>(label, space, shape, a, b, store);
  }

  static std::int32_t small(std::int64_t n) { return static_cast<std::int32_t>(n); }
  /// The windows of x, one for each output pixel.
  [[nodiscard]] Windows<T> windows(const std::byte* x) const {
    const WindowShape& w = s_.window;
    return {.data = as(x),
            .image = w.in,
            .pixels = w.out,
            .per_group = inputs_,
            .kernel_w = w.kernel_w,
            .step_h = small(w.stride_h),
            .step_w = small(w.stride_w),
            .first_h = small(-w.pad_top),
            .first_w = small(-w.pad_left),
            .tap_h = small(s_.dilation_h),
            .tap_w = small(s_.dilation_w)};
  }
  /// The windows of dy, one for each input pixel: the taps that an input pixel was multiplied by.
  [[nodiscard]] Windows<T> turned_windows(const std::byte* dy) const {
    const WindowShape& w = s_.window;
    return {.data = as(dy),
            .image = w.out,
            .pixels = w.in,
            .per_group = outputs_,
            .kernel_w = w.kernel_w,
            .first_h = small(w.pad_top),
            .first_w = small(w.pad_left),
            .tap_h = small(-s_.dilation_h),
            .tap_w = small(-s_.dilation_w),
            .divide_h = small(w.stride_h),
            .divide_w = small(w.stride_w)};
  }

  ConvShape s_;
  std::int64_t inputs_;   ///< of a group
  std::int64_t outputs_;  ///< of a group
  std::int64_t taps_;
  std::int64_t parts_;
  LinearMemory memory_;
};

}  // namespace

std::unique_ptr<LinearOp> make_tiled(const ConvShape& shape, DType type) {
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<LinearOp> {
    return std::make_unique<TiledConvolution<T>>(shape);
  });
}

std::unique_ptr<LinearOp> make_tiled(const DenseShape& shape, DType type) {
  return make_tiled(as_convolution(shape), type);
}

}  // namespace millrace::ops
