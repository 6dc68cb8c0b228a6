// SPDX-License-Identifier: Apache-2.0
//
// A depthwise convolution does kernel_h x kernel_w products an element and is bound by loads, so
// the loops keep what they can in registers: a strip of channels of one pixel, or of one row of the
// weight gradient. Weights are packed [tap][channel] in float32, the values as the storage type has
// them, so that strips load them as they lie.
#include "ops/depthwise.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Chunks of rows that the weight gradient is summed in: partial sums of one lie in scratch.
constexpr std::int64_t kMostChunks = 16;

/// Calls f.template operator()<W>(c) so that strips [c, c + W) cover all channels.
template <class F>
KOKKOS_INLINE_FUNCTION void for_strips(std::int64_t channels, const F& f) {
  std::int64_t c = 0;
  if constexpr (device::kHostAccessible) {
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
  [[nodiscard]] std::int64_t taps() const { return w.kernel_h * w.kernel_w; }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t in_row(std::int64_t n, std::int64_t h) const {
    return (n * w.in.h + h) * w.in.w * w.in.c;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t out_row(std::int64_t n, std::int64_t h) const {
    return (n * w.out.h + h) * w.out.w * w.out.c;
  }
};

/// acc += x * weights over W neighbouring channels.
template <int W, class T>
KOKKOS_INLINE_FUNCTION void multiply_add(float* acc, const T* x, const float* weights) {
  MILLRACE_SIMD
  for (int j = 0; j < W; ++j) acc[j] += to_float(x[j]) * weights[j];
}

/// One row of the output.
template <class T, int K>
struct Forward {
  Depthwise s;
  T* y;
  const T* x;
  const float* weights;

  template <int W>
  KOKKOS_INLINE_FUNCTION void row(std::int64_t n, std::int64_t oh, std::int64_t c) const {
    const WindowShape& w = s.w;
    const std::int64_t top = oh * w.stride_h - w.pad_top;
    T* target = y + s.out_row(n, oh) + c;
    for (std::int64_t ow = 0; ow < w.out.w; ++ow, target += w.out.c) {
      const std::int64_t left = ow * w.stride_w - w.pad_left;
      const bool inside = left >= 0 && left + K <= w.in.w;
      float acc[W] = {};
      for (std::int64_t r = 0; r < K; ++r) {
        if (top + r < 0 || top + r >= w.in.h) continue;
        const T* source = x + s.in_row(n, top + r) + left * w.in.c + c;
        const float* taps = weights + r * K * w.in.c + c;
        if (inside) {
          for (std::int64_t q = 0; q < K; ++q)
            multiply_add<W>(acc, source + q * w.in.c, taps + q * w.in.c);
        } else {
          for (std::int64_t q = 0; q < K; ++q)
            if (left + q >= 0 && left + q < w.in.w)
              multiply_add<W>(acc, source + q * w.in.c, taps + q * w.in.c);
        }
      }
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) target[j] = store_as<T>(acc[j]);
    }
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for_strips(s.channels(),
               [&]<int W>(std::int64_t c) { row<W>(i / s.w.out.h, i % s.w.out.h, c); });
  }
};

/// One row of the input's gradient.
template <class T, int K>
struct BackwardInput {
  Depthwise s;
  T* dx;
  const T* dy;
  const float* weights;

  template <int W>
  KOKKOS_INLINE_FUNCTION void row(std::int64_t n, std::int64_t h, std::int64_t c) const {
    const WindowShape& w = s.w;
    T* target = dx + s.in_row(n, h) + c;
    for (std::int64_t v = 0; v < w.in.w; ++v, target += w.in.c) {
      float acc[W] = {};
      // Taps that reach this pixel are a stride apart.
      for (std::int64_t r = (h + w.pad_top) % w.stride_h; r < K; r += w.stride_h) {
        const std::int64_t oh = (h + w.pad_top - r) / w.stride_h;
        if (h + w.pad_top < r || oh >= w.out.h) continue;
        for (std::int64_t q = (v + w.pad_left) % w.stride_w; q < K; q += w.stride_w) {
          const std::int64_t ow = (v + w.pad_left - q) / w.stride_w;
          if (v + w.pad_left < q || ow >= w.out.w) continue;
          multiply_add<W>(acc, dy + s.out_row(n, oh) + ow * w.out.c + c,
                          weights + (r * K + q) * w.in.c + c);
        }
      }
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) target[j] = store_as<T>(acc[j]);
    }
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for_strips(s.channels(), [&]<int W>(std::int64_t c) { row<W>(i / s.w.in.h, i % s.w.in.h, c); });
  }
};

/// Sums of one chunk for one row of taps.
template <class T, int K>
struct PartialWeights {
  Depthwise s;
  float* partial;  // [chunk][tap][channel]
  const T* dy;
  const T* x;

  /// acc[q] += dy * x at one pixel, for the taps q that are on the image.
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

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t chunk, std::int64_t r, std::int64_t c) const {
    const WindowShape& w = s.w;
    const std::int64_t last =
        (chunk + 1) * s.chunk_rows < s.rows() ? (chunk + 1) * s.chunk_rows : s.rows();
    float acc[K][W] = {};
    for (std::int64_t row = chunk * s.chunk_rows; row < last; ++row) {
      const std::int64_t n = row / w.out.h;
      const std::int64_t h = row % w.out.h * w.stride_h - w.pad_top + r;
      if (h < 0 || h >= w.in.h) continue;
      const T* g = dy + row * w.out.w * w.out.c + c;
      for (std::int64_t ow = 0; ow < w.out.w; ++ow, g += w.out.c) {
        const std::int64_t left = ow * w.stride_w - w.pad_left;
        const T* source = x + s.in_row(n, h) + left * w.in.c + c;
        if (left < 0 || left + K > w.in.w) {
          edge<W>(acc, g, source, left);
          continue;
        }
        const std::int64_t step = w.in.c;
        MILLRACE_SIMD
        for (int j = 0; j < W; ++j) {
          const float gradient = to_float(g[j]);
          for (int q = 0; q < K; ++q) acc[q][j] += gradient * to_float(source[q * step + j]);
        }
      }
    }
    float* out = partial + (chunk * K + r) * K * w.in.c + c;
    for (int q = 0; q < K; ++q)
      for (int j = 0; j < W; ++j) out[q * w.in.c + j] = acc[q][j];
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for_strips(s.channels(), [&]<int W>(std::int64_t c) { run<W>(i / K, i % K, c); });
  }
};

/// One element of the gradient in canonical order [channel][tap]: its chunks, ascending.
struct JoinWeights {
  std::int64_t chunks;
  std::int64_t taps;
  std::int64_t channels;
  float* dkernel;
  const float* partial;
  bool first;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t channel = i / taps;
    const std::int64_t tap = i % taps;
    float sum = 0.0f;
    for (std::int64_t k = 0; k < chunks; ++k) sum += partial[(k * taps + tap) * channels + channel];
    dkernel[i] = first ? sum : dkernel[i] + sum;
  }
};

template <class T>
struct PackWeights {
  std::int64_t taps;
  std::int64_t channels;
  float* packed;
  const T* kernel;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    packed[i] = to_float(kernel[i % channels * taps + i / channels]);
  }
};

template <class T, int K>
class DepthwiseOp final : public WeightedOp {
 public:
  explicit DepthwiseOp(const ConvShape& shape) {
    s_.w = shape.window;
    s_.chunk_rows = std::max<std::int64_t>((s_.rows() + kMostChunks - 1) / kMostChunks, 1);
  }

  [[nodiscard]] WeightedBytes bytes() const override {
    const std::int64_t kernel =
        s_.taps() * s_.channels() * static_cast<std::int64_t>(sizeof(float));
    return {kernel, 0, s_.chunks() * kernel};
  }
  void bind(const WeightedMemory& memory) override { memory_ = memory; }
  void pack(const ExecutionSpace& space, bool) override {
    parallel("depthwise pack", space, s_.taps() * s_.channels(),
             PackWeights<T>{s_.taps(), s_.channels(), packed(), as(memory_.kernel)});
  }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    parallel("depthwise", space, s_.rows(), Forward<T, K>{s_, as(y), as(x), packed()});
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    parallel("depthwise dx", space, s_.w.batch * s_.w.in.h,
             BackwardInput<T, K>{s_, as(dx), as(dy), packed()});
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    auto* partial = reinterpret_cast<float*>(memory_.scratch);
    parallel("depthwise dw", space, s_.chunks() * K,
             PartialWeights<T, K>{s_, partial, as(dy), as(x)});
    parallel("depthwise sum", space, s_.taps() * s_.channels(),
             JoinWeights{s_.chunks(), s_.taps(), s_.channels(), memory_.dkernel, partial, first});
  }

 private:
  static T* as(std::byte* p) { return reinterpret_cast<T*>(p); }
  static const T* as(const std::byte* p) { return reinterpret_cast<const T*>(p); }
  [[nodiscard]] float* packed() const { return reinterpret_cast<float*>(memory_.packed_forward); }

  Depthwise s_;
  WeightedMemory memory_;
};

}  // namespace

bool is_depthwise(const ConvShape& s) {
  const WindowShape& w = s.window;
  const bool square = w.kernel_h == w.kernel_w && (w.kernel_h == 3 || w.kernel_h == 5);
  return square && s.groups == w.in.c && w.out.c == w.in.c && s.groups > 1 && !s.bias &&
         s.dilation_h == 1 && s.dilation_w == 1;
}

std::unique_ptr<WeightedOp> make_depthwise(const ConvShape& shape, DType type) {
  MILLRACE_ASSERT(is_depthwise(shape));
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<WeightedOp> {
    if (shape.window.kernel_h == 3) return std::make_unique<DepthwiseOp<T, 3>>(shape);
    return std::make_unique<DepthwiseOp<T, 5>>(shape);
  });
}

}  // namespace millrace::ops
