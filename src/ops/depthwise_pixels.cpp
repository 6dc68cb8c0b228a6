// SPDX-License-Identifier: Apache-2.0
//
// Forward and backward input of a depthwise convolution. A team has a block of channels, whose
// kernel it copies to its shared memory, and a number of runs of neighboring pixels in a row. A
// thread computes one run at a time for a few neighboring channels. For each row of the kernel it
// takes the weights and the pixels of the other side into registers, and adds each pixel's products
// to all outputs of the run that need it:
//
//   x     [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]        3x3, stride 1
//   y          [ 0 ][ 1 ][ 2 ][ 3 ]             a run
//
// Pixels outside the image are zeros. Sums have the order of the plain loops, so their bits are the
// same for finite weights.
#include <algorithm>

#include "core/portable.hpp"
#include "device/teams.hpp"
#include "ops/lanes.hpp"
#include "ops/linear.hpp"
#include "ops/row_pixels.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;

constexpr int kRun = 4;  ///< pixels
constexpr int kChannelBlock = 64;
constexpr int kRunsOfTeam = 64;
constexpr int kWidth = 8;  ///< neighboring channels of a thread, if their number allows it
constexpr int kHalf = kWidth / 2;

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
  std::int64_t n;
  int h, w;
};
KOKKOS_INLINE_FUNCTION RunStart run_at(const Runs& runs, std::int64_t i) {
  const Quotient in_row = divide(i, runs.of_row);
  const Quotient row = divide(in_row.quotient, runs.shape.h);
  return {row.quotient, static_cast<int>(row.remainder), static_cast<int>(in_row.remainder) * kRun};
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
  [[nodiscard]] KOKKOS_INLINE_FUNCTION int row(int h, int r) const {
    const int at = h * as_int(w.stride_h) - as_int(w.pad_top) + r;
    return at < as_int(w.in.h) ? at : -1;
  }
  /// Pixel p is in column(first) + step(p), for a run that begins with `first`.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION int column(int first) const {
    return first * kStride - as_int(w.pad_left);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static constexpr int step(int p) { return p; }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static constexpr bool is_there(int) { return true; }
};

/// dx from dy. Pixels are counted from the last one that the run needs, so that taps ascend. With
/// stride 2 every other one does not exist; kOdd, whether the padding is odd, says which.
template <int K, int kStride, int kOdd>
struct BackwardTaps {
  WindowShape w;
  static constexpr int kPixels = kRun - 1 + K;
  static_assert(kRun % kStride == 0);
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static constexpr int tap(int p, int o) {
    return p + o - (kRun - 1);
  }
  [[nodiscard]] const Shape& from() const { return w.out; }
  [[nodiscard]] const Shape& to() const { return w.in; }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION int row(int h, int r) const {
    const int at = h + as_int(w.pad_top) - r;
    const int stride = as_int(w.stride_h);
    return at >= 0 && at % stride == 0 && at / stride < as_int(w.out.h) ? at / stride : -1;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION int column(int first) const {
    return (first + as_int(w.pad_left) - kOdd) / kStride;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static constexpr int step(int p) {
    return (kOdd + kRun - 1 - p) / kStride;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static constexpr bool is_there(int p) {
    return (kOdd + kRun - 1 - p) % kStride == 0;
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

  /// Where the weights of channel c of the block begin; those of its taps follow, kChannelBlock
  /// apart. Halves of strips lie apart, so that the threads of a tap read neighboring words.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static constexpr int weights_of(int c) {
    return c % kWidth / kHalf * (kChannelBlock / 2) + c / kWidth * kHalf + c % kHalf;
  }

  /// Copies the kernel of channels [first, first + channels) to shared memory.
  KOKKOS_INLINE_FUNCTION void copy_kernel(const device::Team& team, float* weights,
                                          std::int64_t first, int channels) const {
    const T* const own = kernel + first * K * K;
    for (int i = team.rank(); i < channels * K * K; i += team.size())
      weights[i % (K * K) * kChannelBlock + weights_of(i / (K * K))] = to_float(own[i]);
    team.wait();
  }

  /// Adds the products of a row of taps, whose weights are those of channels [c, c + W).
  template <int W>
  KOKKOS_INLINE_FUNCTION void add_row(float (&sums)[kRun][W], const T* row, int column,
                                      const float* weights) const {
    RowPixels<W, Taps::kPixels, T> pixels;
    MILLRACE_UNROLL
    for (int p = 0; p < Taps::kPixels; ++p) {
      if (Taps::is_there(p))
        pixels.load(p, row, column + Taps::step(p), as_int(source.w), as_int(source.c));
    }
    constexpr int kPart = W < kHalf ? W : kHalf;
    float taken[K][W];
    MILLRACE_UNROLL
    for (int q = 0; q < K; ++q) {
      for (int first = 0; first < W; first += kPart) {
        const LanesIn<kPart, float> part(weights + q * kChannelBlock + weights_of(first));
        for (int j = 0; j < kPart; ++j) taken[q][first + j] = part[j];
      }
    }
    MILLRACE_UNROLL
    for (int p = 0; p < Taps::kPixels; ++p) {
      if (!Taps::is_there(p)) continue;
      const lanes::Pack<T, W> pixel = pixels[p];
      MILLRACE_UNROLL
      for (int o = 0; o < kRun; ++o) {
        const int q = Taps::tap(p, o);
        if (q < 0 || q >= K) continue;
        MILLRACE_SIMD
        for (int j = 0; j < W; ++j)
          sums[o][j] = multiply_add(to_float(pixel.values[j]), taken[q][j], sums[o][j]);
      }
    }
  }

  /// Channels [c, c + W) of a run; `weights` are theirs.
  template <int W>
  KOKKOS_INLINE_FUNCTION void compute(const RunStart& start, std::int64_t c,
                                      const float* weights) const {
    float sums[kRun][W] = {};
    const T* const image = from + start.n * source.elements() + c;
    for (int r = 0; r < K; ++r) {
      const int row = taps.row(start.h, r);
      if (row < 0) continue;
      add_row<W>(sums, image + row * as_int(source.w * source.c), taps.column(start.w),
                 weights + r * K * kChannelBlock);
    }
    const Shape& shape = runs.shape;
    T* const out = to + ((start.n * shape.h + start.h) * shape.w + start.w) * shape.c + c;
    MILLRACE_UNROLL
    for (int o = 0; o < kRun; ++o) {
      if (start.w + o >= shape.w) continue;
      LanesOut<W, T> pixel(out + o * as_int(shape.c));
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
      compute<W>(run_at(runs, run), first + c, weights + weights_of(c));
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
    if (kStride == 1 || window_.pad_left % kStride == 0)
      run("depthwise dx", space, BackwardTaps<K, kStride, 0>{window_}, dx, dy);
    else
      run("depthwise dx", space, BackwardTaps<K, kStride, kStride - 1>{window_}, dx, dy);
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
