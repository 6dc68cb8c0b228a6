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
// with taps (r, q) of the window in row-major order. With a stride, an input pixel was multiplied
// by some taps only. Backward input is a product for each set of pixels that have the same taps:
// with stride 2, four products of a quarter of the pixels each, with a quarter of the taps.
#include <algorithm>

#include "ops/linear.hpp"
#include "ops/sums.hpp"
#include "ops/tile_operands.hpp"
#include "ops/tile_product.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Teams that keep a device busy. Fixed, because the cut of a sum must not depend on the machine.
constexpr std::int64_t kEnoughTeams = device::kOnCores ? 32 : 512;
/// Tiles with fewer rows or columns for narrow groups.
constexpr int kWide = 64;
constexpr int kNarrow = 16;
constexpr int kMiddle = 32;
/// Tiles of activations are as much taller on cores, and narrower, so that 32 channels fill one.
constexpr int kTaller = 2;
constexpr int kColumns = device::kOnCores ? kMiddle : kWide;

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

  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    const std::int64_t depth = taps_ * inputs_;
    const WindowRows<T> left{windows(x)};
    const KernelByOutput<T> right{{kernel()}, outputs_, depth};
    const StoreActivation<T> store{as<T>(y), s_.window.out.c, outputs_,
                                   s_.bias ? memory_.bias : nullptr};
    const ProductShape product{s_.groups, pixels_out(), outputs_, depth};
    run_activation("conv", space, product, left, right, store);
  }

  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    const WindowShape& w = s_.window;
    for (std::int64_t row = 0; row < std::min(w.stride_h, w.in.h); ++row)
      for (std::int64_t column = 0; column < std::min(w.stride_w, w.in.w); ++column)
        backward_input(
            space, dx, dy,
            strided_axis(row, w.in.h, w.kernel_h, w.stride_h, w.pad_top, s_.dilation_h),
            strided_axis(column, w.in.w, w.kernel_w, w.stride_w, w.pad_left, s_.dilation_w));
  }

  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    auto* const parts = as<float>(memory_.scratch);
    const std::int64_t depth = taps_ * inputs_;
    const GradientRows<T> left{{as<T>(dy)}, outputs_, s_.window.out.c};
    const TapColumns<T> right{windows(x)};
    const StoreParts store{parts, s_.kernel_elements(), outputs_, depth};
    const ProductShape product{s_.groups, outputs_, depth, pixels_out(), parts_};
    if (outputs_ <= kNarrow)
      run<TileSizes<kNarrow, kMiddle>>("conv dw", space, product, left, right, store);
    else
      run<TileSizes<kWide, kWide>>("conv dw", space, product, left, right, store);
    parallel("conv dw sum", space, s_.kernel_elements(),
             JoinParts{memory_.dkernel, parts, s_.kernel_elements(), parts_, first});
    if (s_.bias)
      add_channel_sums(space, memory_.dbias, parts, as<T>(dy), pixels_out(), s_.window.out.c,
                       first);
  }

 private:
  /// For the pixels of two axes.
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy,
                      const StridedAxis& h, const StridedAxis& w) const {
    const WindowShape& window = s_.window;
    const WindowRows<T> left{{.data = as<T>(dy),
                              .image = window.out,
                              .pixels = {h.pixels, w.pixels, window.in.c},
                              .per_group = outputs_,
                              .kernel_w = w.taps,
                              .first_h = h.output,
                              .first_w = w.output,
                              .tap_h = h.next_output,
                              .tap_w = w.next_output}};
    const KernelByInput<T> right{{kernel()}, outputs_, window.kernel_w, taps_, inputs_, h, w};
    const StoreStrided<T> store{{as<T>(dx), window.in.c, inputs_, nullptr}, window.in, h, w};
    const ProductShape product{s_.groups, window.batch * h.pixels * w.pixels, inputs_,
                               h.taps * w.taps * outputs_};
    run_activation("conv dx", space, product, left, right, store);
  }

  [[nodiscard]] const T* kernel() const { return as<T>(memory_.kernel); }
  [[nodiscard]] std::int64_t pixels_out() const { return s_.window.batch * s_.window.out.pixels(); }

  template <class Sizes, std::size_t kLabelSize, class A, class B, class Store>
  static void run(const char (&label)[kLabelSize], const ExecutionSpace& space,
                  const ProductShape& shape, const A& a, const B& b, const Store& store) {
    const TileProduct<Sizes, A, B, Store> product{shape, a, b, store};
    device::parallel_teams(label, space, product.teams(), product);
  }

  /// A product whose rows are pixels and whose columns are the channels of a group.
  template <std::size_t kLabelSize, class A, class B, class Store>
  static void run_activation(const char (&label)[kLabelSize], const ExecutionSpace& space,
                             const ProductShape& shape, const A& a, const B& b,
                             const Store& store) {
    if (shape.columns <= kNarrow)
      run<TileSizes<kWide, kNarrow, kTaller>>(label, space, shape, a, b, store);
    else
      run<TileSizes<kWide, kColumns, kTaller>>(label, space, shape, a, b, store);
  }

  static std::int32_t small(std::int64_t n) { return static_cast<std::int32_t>(n); }
  /// The windows of x, one for each output pixel.
  [[nodiscard]] Windows<T> windows(const std::byte* x) const {
    const WindowShape& w = s_.window;
    return {.data = as<T>(x),
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
