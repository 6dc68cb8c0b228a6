// SPDX-License-Identifier: Apache-2.0
//
// Forward and backward input of a depthwise convolution. A team has a block of channels, whose
// kernel it copies to its shared memory, and a number of runs of neighboring pixels in a row. A
// thread computes one run at a time for a few neighboring channels. It loads each pixel of the
// other side once per row of the kernel and adds its products to all outputs of the run that need
// it:
//
//   x     [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]        3x3, stride 1
//   y          [ 0 ][ 1 ][ 2 ][ 3 ]             a run
//
// Sums have the order of the plain loops, so their bits are the same.
#include <algorithm>

#include "device/teams.hpp"
#include "ops/lanes.hpp"
#include "ops/linear.hpp"
#include "ops/tiling.hpp"

// A short loop whose index must be known to the compiler, so that arrays stay in registers.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define MILLRACE_UNROLL _Pragma("GCC unroll 16")
#else
#define MILLRACE_UNROLL _Pragma("unroll")
#endif

namespace millrace::ops {
namespace {

using device::ExecutionSpace;

constexpr int kRun = 4;  ///< pixels
constexpr int kChannelBlock = 64;
constexpr int kRunsOfTeam = 64;
constexpr int kWidth = 8;  ///< neighboring channels of a thread, if their number allows it

/// The pixels that a pass writes, as runs.
struct Runs {
  std::int64_t batch;
  Shape shape;
  std::int64_t of_row;  ///< runs in a row
  std::int64_t blocks;  ///< of channels

  Runs(std::int64_t images, const Shape& written)
      : batch(images),
        shape(written),
        of_row((written.w + kRun - 1) / kRun),
        blocks((written.c + kChannelBlock - 1) / kChannelBlock) {}
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t count() const {
    return batch * shape.h * of_row;
  }
  [[nodiscard]] std::int64_t teams() const {
    return (count() + kRunsOfTeam - 1) / kRunsOfTeam * blocks;
  }
};

/// The first pixel of a run.
struct RunStart {
  std::int64_t n, h, w;
};
KOKKOS_INLINE_FUNCTION RunStart run_at(const Runs& runs, std::int64_t i) {
  const Quotient in_row = divide(i, runs.of_row);
  const Quotient row = divide(in_row.quotient, runs.shape.h);
  return {row.quotient, row.remainder, in_row.remainder * kRun};
}

/// y from x, for windows of K x K and a horizontal stride of kStride. Pixel p of the other side,
/// counted from the first one that the run needs, is seen by output o through tap p - o kStride.
template <int K, int kStride>
struct ForwardTaps {
  WindowShape w;
  static constexpr int kPixels = (kRun - 1) * kStride + K;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static constexpr int tap(int p, int o) {
    return p - o * kStride;
  }
  [[nodiscard]] const Shape& from() const { return w.in; }
  [[nodiscard]] const Shape& to() const { return w.out; }
  /// The row of the other side for a row of taps, or -1.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t row(std::int64_t h, int r) const {
    const std::int64_t at = h * w.stride_h - w.pad_top + r;
    return at < w.in.h ? at : -1;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t column(std::int64_t first, int p) const {
    const std::int64_t at = first * kStride - w.pad_left + p;
    return at < w.in.w ? at : -1;
  }
};

/// dx from dy. Pixels are counted from the last one that the run needs, so that taps ascend.
template <int K, int kStride>
struct BackwardTaps {
  WindowShape w;
  static constexpr int kPixels = kRun - 1 + K;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static constexpr int tap(int p, int o) {
    return p + o - (kRun - 1);
  }
  [[nodiscard]] const Shape& from() const { return w.out; }
  [[nodiscard]] const Shape& to() const { return w.in; }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t row(std::int64_t h, int r) const {
    const auto at = static_cast<std::int32_t>(h + w.pad_top) - r;
    const auto stride = static_cast<std::int32_t>(w.stride_h);
    return at >= 0 && at % stride == 0 && at / stride < w.out.h ? at / stride : -1;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t column(std::int64_t first, int p) const {
    const auto at = static_cast<std::int32_t>(first + w.pad_left) + kRun - 1 - p;
    return at >= 0 && at % kStride == 0 && at / kStride < w.out.w ? at / kStride : -1;
  }
};

template <class T, int K, class Taps>
struct DepthwisePixels {
  static constexpr int kThreads = device::threads_of_team(128);
  static constexpr std::size_t kSharedBytes = K * K * kChannelBlock * sizeof(float);

  Runs runs;
  Taps taps;
  T* to;
  const T* from;
  const T* kernel;  ///< [channel][tap]
  Shape source;     ///< shape of `from`

  /// Copies the kernel of channels [first, first + channels) to shared memory: [tap][channel].
  KOKKOS_INLINE_FUNCTION void copy_kernel(const device::Team& team, float* weights,
                                          std::int64_t first, int channels) const {
    const T* const own = kernel + first * K * K;
    for (int i = team.rank(); i < channels * K * K; i += team.size())
      weights[i % (K * K) * kChannelBlock + i / (K * K)] = to_float(own[i]);
    team.wait();
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void add_row(float (&sums)[kRun][W], const T* row, std::int64_t first,
                                      const float* weights) const {
    MILLRACE_UNROLL
    for (int p = 0; p < Taps::kPixels; ++p) {
      const std::int64_t column = taps.column(first, p);
      if (column < 0) continue;
      const LanesIn<W, T> in(row + column * source.c);
      MILLRACE_UNROLL
      for (int o = 0; o < kRun; ++o) {
        const int q = Taps::tap(p, o);
        if (q < 0 || q >= K) continue;
        MILLRACE_SIMD
        for (int j = 0; j < W; ++j) sums[o][j] += to_float(in[j]) * weights[q * kChannelBlock + j];
      }
    }
  }

  /// Channels [c, c + W) of a run; `weights` are theirs.
  template <int W>
  KOKKOS_INLINE_FUNCTION void compute(const RunStart& start, std::int64_t c,
                                      const float* weights) const {
    float sums[kRun][W] = {};
    for (int r = 0; r < K; ++r) {
      const std::int64_t row = taps.row(start.h, r);
      if (row < 0) continue;
      add_row<W>(sums, from + (start.n * source.h + row) * source.w * source.c + c, start.w,
                 weights + r * K * kChannelBlock);
    }
    const Shape& shape = runs.shape;
    T* const out = to + ((start.n * shape.h + start.h) * shape.w + start.w) * shape.c + c;
    MILLRACE_UNROLL
    for (int o = 0; o < kRun; ++o) {
      if (start.w + o >= shape.w) continue;
      LanesOut<W, T> pixel(out + o * shape.c);
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) pixel.set(j, store_as<T>(sums[o][j]));
    }
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void compute_all(const device::Team& team, const float* weights,
                                          std::int64_t first_run, std::int64_t first,
                                          int channels) const {
    const int strips = channels / W;
    for (int i = team.rank(); i < kRunsOfTeam * strips; i += team.size()) {
      const std::int64_t run = first_run + i / strips;
      if (run >= runs.count()) return;
      const int c = i % strips * W;
      compute<W>(run_at(runs, run), first + c, weights + c);
    }
  }

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    auto* const weights = reinterpret_cast<float*>(team.shared());
    const Quotient block = divide(i, runs.blocks);
    const std::int64_t first = block.remainder * kChannelBlock;
    const std::int64_t left = source.c - first;
    const auto channels = static_cast<int>(left < kChannelBlock ? left : kChannelBlock);
    copy_kernel(team, weights, first, channels);
    const std::int64_t first_run = block.quotient * kRunsOfTeam;
    if (source.c % kWidth == 0)
      return compute_all<kWidth>(team, weights, first_run, first, channels);
    compute_all<1>(team, weights, first_run, first, channels);
  }
};

template <class T, int K, int kStride>
class Depthwise final : public LinearOp {
 public:
  explicit Depthwise(const ConvShape& shape) : window_(shape.window) {}

  [[nodiscard]] LinearBytes bytes() const override { return {.reads_kernel = true}; }
  void bind(const LinearMemory& memory) override { memory_ = memory; }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    run("depthwise", space, ForwardTaps<K, kStride>{window_}, y, x);
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    run("depthwise dx", space, BackwardTaps<K, kStride>{window_}, dx, dy);
  }

 private:
  template <std::size_t kLabelSize, class Taps>
  void run(const char (&label)[kLabelSize], const ExecutionSpace& space, const Taps& taps,
           std::byte* to, const std::byte* from) const {
    const Runs runs(window_.batch, taps.to());
    device::parallel_teams(label, space, runs.teams(),
                           DepthwisePixels<T, K, Taps>{runs, taps, as<T>(to), as<T>(from),
                                                       as<T>(memory_.kernel), taps.from()});
  }

  WindowShape window_;
  LinearMemory memory_;
};

}  // namespace

bool has_depthwise_pixels(const ConvShape& s) {
  const WindowShape& w = s.window;
  return is_depthwise(s) && (w.stride_w == 1 || w.stride_w == 2);
}

std::unique_ptr<LinearOp> make_depthwise_pixels(const ConvShape& s, DType type) {
  MILLRACE_ASSERT(has_depthwise_pixels(s));
  const bool small = s.window.kernel_h == 3;
  const bool dense = s.window.stride_w == 1;
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<LinearOp> {
    if (small && dense) return std::make_unique<Depthwise<T, 3, 1>>(s);
    if (small) return std::make_unique<Depthwise<T, 3, 2>>(s);
    if (dense) return std::make_unique<Depthwise<T, 5, 1>>(s);
    return std::make_unique<Depthwise<T, 5, 2>>(s);
  });
}

}  // namespace millrace::ops
