// SPDX-License-Identifier: Apache-2.0
//
// The weight gradient of a depthwise convolution needs only kernel_h x kernel_w products per
// element, so loads limit its speed. The loops therefore keep one row of the gradient, for a strip
// of channels, in registers.
//
// Partial sums over chunks of rows are added in ascending order: on cores few chunks in one level;
// on accelerators, where a thread has a strip of 8 channels and neighboring threads have
// neighboring strips, many chunks in two levels.
#include <algorithm>

#include "core/error.hpp"
#include "ops/lanes.hpp"
#include "ops/linear.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Maximum number of chunks of rows for the weight gradient on cores; scratch holds the partial
/// sums of each.
constexpr std::int64_t kMostChunks = 16;
/// Number of threads that keep an accelerator busy.
constexpr std::int64_t kManyThreads = 131072;
/// Channels of a thread on accelerators.
constexpr int kWidth = 8;
/// Minimum number of rows in a chunk, so that there are few partial sums compared with elements.
constexpr std::int64_t kFewestRows = 4;

/// Calls f.template operator()<W>(c) so that strips [c, c + W) cover all channels.
template <class F>
KOKKOS_INLINE_FUNCTION void for_strips(std::int64_t channels, const F& f) {
  std::int64_t c = 0;
  if constexpr (device::kOnCores) {
    for (; c + 32 <= channels; c += 32) f.template operator()<32>(c);
    for (; c + 8 <= channels; c += 8) f.template operator()<8>(c);
  }
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
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t in_row(std::int64_t n, std::int64_t h) const {
    return (n * w.in.h + h) * w.in.w * w.in.c;
  }
};

/// Partial sums of one chunk for one row of taps.
template <class T, int K>
struct PartialWeights {
  Depthwise s;
  float* partial;  // [chunk][tap][channel]
  const T* dy;
  const T* x;

  /// acc[q] += dy * x at one pixel, for the taps q inside the image.
  template <int W>
  KOKKOS_INLINE_FUNCTION void edge(float (&acc)[K][W], const T* g, const T* source,
                                   std::int64_t left) const {
    for (std::int64_t q = 0; q < K; ++q) {
      if (left + q < 0 || left + q >= s.w.in.w) continue;
      const LanesIn<W, T> gradient(g);
      const LanesIn<W, T> pixel(source + q * s.w.in.c);
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) acc[q][j] += to_float(gradient[j]) * to_float(pixel[j]);
    }
  }

  /// The same where all taps are inside.
  template <int W>
  KOKKOS_INLINE_FUNCTION void inside(float (&acc)[K][W], const T* g, const T* source) const {
    const std::int64_t step = s.w.in.c;
    if constexpr (device::kOnCores) {
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        const float gradient = to_float(g[j]);
        for (int q = 0; q < K; ++q) acc[q][j] += gradient * to_float(source[q * step + j]);
      }
    } else {
      const LanesIn<W, T> gradient(g);
      for (int q = 0; q < K; ++q) {
        const LanesIn<W, T> pixel(source + q * step);
        for (int j = 0; j < W; ++j) acc[q][j] += to_float(gradient[j]) * to_float(pixel[j]);
      }
    }
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t chunk, std::int64_t r, std::int64_t c) const {
    const WindowShape& w = s.w;
    const std::int64_t last =
        (chunk + 1) * s.chunk_rows < s.rows() ? (chunk + 1) * s.chunk_rows : s.rows();
    float acc[K][W] = {};
    for (std::int64_t row = chunk * s.chunk_rows; row < last; ++row) {
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
    float* out = partial + (chunk * K + r) * K * w.in.c + c;
    for (int q = 0; q < K; ++q) {
      LanesOut<W, float> row(out + q * w.in.c);
      for (int j = 0; j < W; ++j) row.set(j, acc[q][j]);
    }
  }

  [[nodiscard]] std::int64_t work_items() const {
    return s.chunks() * K * (device::kOnCores ? 1 : s.strips());
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    if constexpr (device::kOnCores) {
      for_strips(s.channels(), [&]<int W>(std::int64_t c) { run<W>(i / K, i % K, c); });
    } else {
      const Quotient strip = divide(i, s.strips());
      const Quotient row = divide(strip.quotient, K);
      const std::int64_t first = strip.remainder * kWidth;
      if (s.channels() % kWidth == 0) return run<kWidth>(row.quotient, row.remainder, first);
      const std::int64_t last = first + kWidth < s.channels() ? first + kWidth : s.channels();
      for (std::int64_t c = first; c < last; ++c) run<1>(row.quotient, row.remainder, c);
    }
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
    const PartialWeights<T, K> weights{s_, partial, as<T>(dy), as<T>(x)};
    parallel("depthwise dw", space, weights.work_items(), weights);
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
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<LinearOp> {
    if (shape.window.kernel_h == 3) return std::make_unique<DepthwiseGradient<T, 3>>(shape);
    return std::make_unique<DepthwiseGradient<T, 5>>(shape);
  });
}

}  // namespace millrace::ops
