// SPDX-License-Identifier: Apache-2.0
//
// The weight gradient of a depthwise convolution needs only kernel_h x kernel_w products per
// element, so loads limit its speed. The loops therefore keep one row of the gradient, for a strip
// of channels, in registers.
//
// Partial sums over chunks of rows are added in ascending order: on cores few chunks in one level;
// on accelerators, where a thread has a strip of 8 channels and neighboring threads have
// neighboring strips, many chunks in two levels. The threads of all rows of taps read the same rows
// at about the same time, all but the first one from the cache.
#include <algorithm>

#include "core/error.hpp"
#include "core/portable.hpp"
#include "ops/lanes.hpp"
#include "ops/linear.hpp"
#include "ops/row_pixels.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Maximum number of chunks of rows for the weight gradient on cores; scratch holds the partial
/// sums of each.
constexpr std::int64_t kMostChunks = 16;
/// Number of threads that keep an accelerator busy, with eight and more pixels on their way each.
constexpr std::int64_t kManyThreads = 65536;
/// Channels of a thread on accelerators.
constexpr int kWidth = 8;
/// Minimum number of rows in a chunk, so that there are few partial sums compared with elements.
constexpr std::int64_t kFewestRows = 4;

/// On cores: calls f.template operator()<W>(c) so that strips [c, c + W) cover all channels.
template <class F>
KOKKOS_INLINE_FUNCTION void for_strips(std::int64_t channels, const F& f) {
  std::int64_t c = 0;
  for (; c + 32 <= channels; c += 32) f.template operator()<32>(c);
  for (; c + 8 <= channels; c += 8) f.template operator()<8>(c);
  for (; c < channels; ++c) f.template operator()<1>(c);
}

struct Depthwise {
  WindowShape w;
  std::int64_t chunk_rows;  ///< rows of the output, over all samples, in a chunk

  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t channels() const { return w.in.c; }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t rows() const { return w.batch * w.out.h; }
  [[nodiscard]] std::int64_t chunks() const { return (rows() + chunk_rows - 1) / chunk_rows; }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t strips() const {
    return (w.in.c + kWidth - 1) / kWidth;
  }
  /// Chunks that the first level of the sum adds up: the square root of their number.
  [[nodiscard]] std::int64_t fan() const {
    std::int64_t fan = 1;
    while (!device::kOnCores && fan * fan < chunks()) ++fan;
    return fan;
  }
  [[nodiscard]] std::int64_t groups() const { return (chunks() + fan() - 1) / fan(); }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t end_of(std::int64_t chunk) const {
    return (chunk + 1) * chunk_rows < rows() ? (chunk + 1) * chunk_rows : rows();
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t in_row(std::int64_t n, std::int64_t h) const {
    return (n * w.in.h + h) * w.in.w * w.in.c;
  }
};

/// The sums of one chunk for one row of taps, in [chunk][tap][channel].
template <int K, int W>
KOKKOS_INLINE_FUNCTION void store_sums(const Depthwise& s, float* partial, std::int64_t chunk,
                                       std::int64_t r, std::int64_t c, const float (&sums)[K][W]) {
  float* out = partial + (chunk * K + r) * K * s.w.in.c + c;
  for (int q = 0; q < K; ++q) {
    LanesOut<W, float> row(out + q * s.w.in.c);
    for (int j = 0; j < W; ++j) row.set(j, sums[q][j]);
  }
}

/// Partial sums of one chunk for one row of taps, on cores.
template <class T, int K>
struct PartialWeights {
  Depthwise s;
  float* partial;
  const T* dy;
  const T* x;

  /// acc[q] += dy * x at one pixel, for the taps q inside the image.
  template <int W>
  KOKKOS_INLINE_FUNCTION void edge(float (&acc)[K][W], const T* g, const T* source,
                                   std::int64_t left) const {
    for (std::int64_t q = 0; q < K; ++q) {
      if (left + q < 0 || left + q >= s.w.in.w) continue;
      const T* pixel = source + q * s.w.in.c;
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) acc[q][j] += to_float(g[j]) * to_float(pixel[j]);
    }
  }

  /// The same where all taps are inside.
  template <int W>
  KOKKOS_INLINE_FUNCTION void inside(float (&acc)[K][W], const T* g, const T* source) const {
    const std::int64_t step = s.w.in.c;
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) {
      const float gradient = to_float(g[j]);
      for (int q = 0; q < K; ++q) acc[q][j] += gradient * to_float(source[q * step + j]);
    }
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t chunk, std::int64_t r, std::int64_t c) const {
    const WindowShape& w = s.w;
    float acc[K][W] = {};
    for (std::int64_t row = chunk * s.chunk_rows; row < s.end_of(chunk); ++row) {
      const Quotient image = divide(row, w.out.h);
      const std::int64_t n = image.quotient;
      const std::int64_t h = image.remainder * w.stride_h - w.pad_top + r;
      if (h < 0 || h >= w.in.h) continue;
      const T* g = dy + row * w.out.w * w.out.c + c;
      for (std::int64_t ow = 0; ow < w.out.w; ++ow, g += w.out.c) {
        const std::int64_t left = ow * w.stride_w - w.pad_left;
        const T* source = x + s.in_row(n, h) + left * w.in.c + c;
        if (left < 0 || left + K > w.in.w) {
          edge<W>(acc, g, source, left);
          continue;
        }
        inside<W>(acc, g, source);
      }
    }
    store_sums(s, partial, chunk, r, c, acc);
  }

  [[nodiscard]] std::int64_t work_items() const { return s.chunks() * K; }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for_strips(s.channels(), [&]<int W>(std::int64_t c) { run<W>(i / K, i % K, c); });
  }
};

/// The same on accelerators, for a strip of channels and a horizontal stride of kStride: by runs of
/// neighboring pixels of dy, which are loaded together with the pixels of x that they meet.
template <class T, int K, int kStride>
struct PartialRuns {
  static constexpr int kRun = 4;
  static constexpr int kPixels = (kRun - 1) * kStride + K;
  Depthwise s;
  float* partial;
  const T* dy;
  const T* x;

  template <int W>
  KOKKOS_INLINE_FUNCTION void add_run(float (&acc)[K][W], const T* dy_row, const T* x_row,
                                      int first) const {
    RowPixels<W, kRun, T> gradients;
    RowPixels<W, kPixels, T> pixels;
    const int channels = as_int(s.channels());
    MILLRACE_UNROLL
    for (int o = 0; o < kRun; ++o)
      gradients.load(o, dy_row, first + o, as_int(s.w.out.w), channels);
    const int left = first * kStride - as_int(s.w.pad_left);
    MILLRACE_UNROLL
    for (int p = 0; p < kPixels; ++p) pixels.load(p, x_row, left + p, as_int(s.w.in.w), channels);
    MILLRACE_UNROLL
    for (int o = 0; o < kRun; ++o) {
      const lanes::Pack<T, W> gradient = gradients[o];
      MILLRACE_UNROLL
      for (int q = 0; q < K; ++q) {
        const lanes::Pack<T, W> pixel = pixels[o * kStride + q];
        for (int j = 0; j < W; ++j)
          acc[q][j] =
              multiply_add(to_float(gradient.values[j]), to_float(pixel.values[j]), acc[q][j]);
      }
    }
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t chunk, std::int64_t r, std::int64_t c) const {
    const WindowShape& w = s.w;
    float acc[K][W] = {};
    for (std::int64_t row = chunk * s.chunk_rows; row < s.end_of(chunk); ++row) {
      const Quotient image = divide(row, w.out.h);
      const std::int64_t h = image.remainder * w.stride_h - w.pad_top + r;
      if (h < 0 || h >= w.in.h) continue;
      const T* const dy_row = dy + row * w.out.w * w.out.c + c;
      const T* const x_row = x + s.in_row(image.quotient, h) + c;
      for (int first = 0; first < as_int(w.out.w); first += kRun)
        add_run<W>(acc, dy_row, x_row, first);
    }
    store_sums(s, partial, chunk, r, c, acc);
  }

  [[nodiscard]] std::int64_t work_items() const { return s.chunks() * K * s.strips(); }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Quotient strip = divide(i, s.strips());
    const Quotient row = divide(strip.quotient, K);
    const std::int64_t first = strip.remainder * kWidth;
    if (s.channels() % kWidth == 0) return run<kWidth>(row.quotient, row.remainder, first);
    const std::int64_t last = first + kWidth < s.channels() ? first + kWidth : s.channels();
    for (std::int64_t c = first; c < last; ++c) run<1>(row.quotient, row.remainder, c);
  }
};

/// The first of two levels: sums each group of `fan` chunks, in ascending order.
struct JoinChunks {
  std::int64_t chunks;
  std::int64_t fan;
  std::int64_t values;  ///< of a chunk
  float* joined;
  const float* partial;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Quotient group = divide(i, values);
    const std::int64_t first = group.quotient * fan;
    const std::int64_t last = first + fan < chunks ? first + fan : chunks;
    float sum = 0.0f;
    for (std::int64_t k = first; k < last; ++k) sum += partial[k * values + group.remainder];
    joined[i] = sum;
  }
};

/// Sums one tap of the gradient over the chunks, in ascending order. Output order is
/// [channel][tap].
struct JoinWeights {
  std::int64_t chunks;
  std::int64_t taps;
  std::int64_t channels;
  float* dkernel;
  const float* partial;
  bool first;

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t tap, std::int64_t c) const {
    float sum[W] = {};
    for (std::int64_t k = 0; k < chunks; ++k) {
      const float* part = partial + (k * taps + tap) * channels + c;
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) sum[j] += part[j];
    }
    for (int j = 0; j < W; ++j) {
      float* to = dkernel + (c + j) * taps + tap;
      *to = first ? sum[j] : *to + sum[j];
    }
  }
  [[nodiscard]] std::int64_t work_items() const {
    return device::kOnCores ? taps : taps * channels;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    if constexpr (device::kOnCores) {
      for_strips(channels, [&]<int W>(std::int64_t c) { run<W>(i, c); });
    } else {
      const Quotient tap = divide(i, channels);
      run<1>(tap.quotient, tap.remainder);
    }
  }
};

template <class T, int K>
class DepthwiseGradient final : public LinearOp {
 public:
  explicit DepthwiseGradient(const ConvShape& shape) {
    s_.w = shape.window;
    s_.chunk_rows = device::kOnCores ? (s_.rows() + kMostChunks - 1) / kMostChunks
                                     : s_.rows() * s_.strips() * K / kManyThreads;
    s_.chunk_rows = std::max(s_.chunk_rows, kFewestRows);
  }

  [[nodiscard]] LinearBytes bytes() const override {
    const std::int64_t sets = s_.chunks() + (s_.fan() > 1 ? s_.groups() : 0);
    return {.scratch = sets * values() * static_cast<std::int64_t>(sizeof(float))};
  }
  void bind(const LinearMemory& memory) override { memory_ = memory; }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    auto* partial = as<float>(memory_.scratch);
    const auto sum_chunks = [&](const auto& weights) {
      parallel("depthwise dw", space, weights.work_items(), weights);
    };
    if constexpr (device::kOnCores)
      sum_chunks(PartialWeights<T, K>{s_, partial, as<T>(dy), as<T>(x)});
    else if (s_.w.stride_w == 1)
      sum_chunks(PartialRuns<T, K, 1>{s_, partial, as<T>(dy), as<T>(x)});
    else
      sum_chunks(PartialRuns<T, K, 2>{s_, partial, as<T>(dy), as<T>(x)});
    std::int64_t chunks = s_.chunks();
    if (s_.fan() > 1) {
      float* const joined = partial + chunks * values();
      parallel("depthwise join", space, s_.groups() * values(),
               JoinChunks{chunks, s_.fan(), values(), joined, partial});
      chunks = s_.groups();
      partial = joined;
    }
    const JoinWeights sum{chunks, taps(), s_.channels(), memory_.dkernel, partial, first};
    parallel("depthwise sum", space, sum.work_items(), sum);
  }

 private:
  [[nodiscard]] static constexpr std::int64_t taps() { return K * K; }
  [[nodiscard]] std::int64_t values() const { return taps() * s_.channels(); }

  Depthwise s_;
  LinearMemory memory_;
};

}  // namespace

bool is_depthwise(const ConvShape& s) {
  const WindowShape& w = s.window;
  const bool square = w.kernel_h == w.kernel_w && (w.kernel_h == 3 || w.kernel_h == 5);
  return square && s.groups == w.in.c && w.out.c == w.in.c && s.groups > 1 && !s.bias &&
         s.dilation_h == 1 && s.dilation_w == 1;
}

std::unique_ptr<LinearOp> make_depthwise_gradient(const ConvShape& shape, DType type) {
  MILLRACE_ASSERT(is_depthwise(shape));
  if (!device::kOnCores && !has_depthwise_pixels(shape)) return make_plain(shape, type);
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<LinearOp> {
    if (shape.window.kernel_h == 3) return std::make_unique<DepthwiseGradient<T, 3>>(shape);
    return std::make_unique<DepthwiseGradient<T, 5>>(shape);
  });
}

}  // namespace millrace::ops
