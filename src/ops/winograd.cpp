// SPDX-License-Identifier: Apache-2.0
//
// Convolutions 3x3 with stride 1 on cores, by Winograd's F(4x4, 3x3): a tile of 4x4 outputs takes
// 36 products for each pair of channels instead of 144.
//
//   x    6x6 inputs of a tile -> 36 values       [point][tile][channel]
//   k    3x3 taps             -> 36 values       [panel of outputs][point][input][output]
//   y    at each point a product of matrices, tiles x inputs by inputs x outputs; 36 -> 4x4 outputs
//   dx   the same with dy as images and the kernel turned by 180 degrees
//   dk   at each point dy^T x, outputs x tiles by tiles x inputs; 36 -> 3x3 taps
//
// Tiles are computed in chunks whose values stay in a core's cache. A tile's outputs depend on no
// other tile, and sums over tiles have fixed chunks, so results do not depend on the number of
// threads. All that kernels call is inlined, as only then clang compiles it for the level at hand.
#include <algorithm>

#include "device/arena.hpp"
#include "device/environment.hpp"
#include "ops/linear.hpp"
#include "ops/register_tile.hpp"
#include "ops/sums.hpp"
#include "ops/winograd_transforms.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;
using namespace winograd;

constexpr auto kFloatBytes = static_cast<std::int64_t>(sizeof(float));
constexpr float kNoBias[kStrip] = {};

/// A forward pass. Work item i computes the i-th part of the chunks with scratch of its own.
template <class T>
struct Forward {
  Tiles tiles;
  std::int64_t chunk;  ///< tiles
  std::int64_t parts;
  std::int64_t panel;  ///< outputs
  float* scratch;      ///< of each part
  std::int64_t part_scratch;
  const float* kernel;
  const float* bias;  ///< or null
  T* y;
  const T* x;

  [[nodiscard]] std::int64_t chunks() const { return (tiles.count() + chunk - 1) / chunk; }

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t part) const {
    float* const own = scratch + part * part_scratch;
    for (std::int64_t i = chunks() * part / parts; i < chunks() * (part + 1) / parts; ++i)
      run(i * chunk, std::min(chunk, tiles.count() - i * chunk), own);
  }

  KOKKOS_FORCEINLINE_FUNCTION void run(std::int64_t first, std::int64_t count, float* own) const {
    const std::int64_t rows = (count + kProductRows - 1) / kProductRows * kProductRows;
    const Planes inputs{own, rows, tiles.in.c};
    for (std::int64_t t = 0; t < count; ++t) transform_inputs(inputs, t, tiles, x, first + t);
    for (int p = 0; p < kPointsOfTile; ++p)
      std::fill_n(inputs.data + p * inputs.plane() + count * inputs.row(),
                  (rows - count) * inputs.row(), 0.0f);
    float* const sums = own + inputs.elements();  // [point][tile][output of the panel]
    for (std::int64_t out = 0; out < tiles.out.c; out += panel) {
      const float* const k = kernel + out * kPointsOfTile * tiles.in.c;
      for (int p = 0; p < kPointsOfTile; ++p)
        multiply(sums + p * rows * panel, panel, {inputs.data + p * inputs.plane(), inputs.row()},
                 {k + p * tiles.in.c * panel, panel}, rows, panel, tiles.in.c, false);
      for (std::int64_t t = 0; t < count; ++t)
        for (std::int64_t c = 0; c < panel; c += kStrip)
          store(first + t, out + c, sums + t * panel + c, rows * panel);
    }
  }

  /// A strip of the outputs of a tile.
  KOKKOS_FORCEINLINE_FUNCTION void store(std::int64_t tile, std::int64_t channel, const float* sums,
                                         std::int64_t plane) const {
    float half[kOutputs][kPoints][kStrip];
    for (int j = 0; j < kPoints; ++j)
      along_axis<to_outputs, kPoints, kOutputs>(half[0][j], kPoints * kStrip,
                                                Strips<float>{sums + j * plane, kPoints * plane});
    const Tiles::Place at = tiles.place(tile);
    const Shape& out = tiles.out;
    T* const to = y + ((at.sample * out.h + at.row) * out.w + at.column) * out.c + channel;
    const std::int64_t height = std::min<std::int64_t>(kOutputs, out.h - at.row);
    const std::int64_t width = std::min<std::int64_t>(kOutputs, out.w - at.column);
    const float* const added = bias != nullptr ? bias + channel : kNoBias;
    for (std::int64_t i = 0; i < height; ++i) {
      float outputs[kOutputs][kStrip];
      along_axis<to_outputs, kPoints, kOutputs>(outputs[0], kStrip,
                                                Strips<float>{half[i][0], kStrip});
      for (std::int64_t j = 0; j < width; ++j) {
        T* const pixel = to + (i * out.w + j) * out.c;
        MILLRACE_SIMD
        for (int n = 0; n < kStrip; ++n) pixel[n] = store_as<T>(outputs[j][n] + added[n]);
      }
    }
  }
};

/// The kernel at all points for a strip of outputs.
template <class T>
struct PackKernel {
  std::int64_t in, out;  ///< of the packed kernel
  std::int64_t panel;
  bool turned;
  float* packed;
  const T* kernel;  ///< canonical: [out][tap][in], or [in][tap][out] if turned

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t strip) const {
    const std::int64_t o = strip * kStrip;
    float* const to = packed + o / panel * panel * kPointsOfTile * in + o % panel;
    for (std::int64_t i = 0; i < in; i += kStrip) {
      float taps[kStrip][kTapsOfKernel][kStrip];  // [input][tap][output]
      for (int m = 0; m < kStrip; ++m)
        for (int tap = 0; tap < kTapsOfKernel; ++tap) {
          const int turned_tap = kTapsOfKernel - 1 - tap;
          if (turned)
            for (int n = 0; n < kStrip; ++n)
              taps[m][tap][n] =
                  to_float(kernel[((i + m) * kTapsOfKernel + turned_tap) * out + o + n]);
          else
            for (int n = 0; n < kStrip; ++n)
              taps[n][tap][m] = to_float(kernel[((o + m) * kTapsOfKernel + tap) * in + i + n]);
        }
      for (int m = 0; m < kStrip; ++m)
        along_both<of_taps, kTaps, kPoints>(to + (i + m) * panel, kPoints * panel * in, panel * in,
                                            Columns<float>{taps[m][0], kTaps * kStrip, kStrip});
    }
  }
};

/// x and dy of a chunk at all points.
template <class T>
struct TransformBoth {
  Tiles tiles;
  std::int64_t first;
  Planes inputs, gradients;
  const T* x;
  const T* dy;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t t) const {
    transform_inputs(inputs, t, tiles, x, first + t);
    const Tiles::Place at = tiles.place(first + t);
    transform_pixels<of_outputs, kOutputs>(gradients, t, dy + at.sample * tiles.out.elements(),
                                           tiles.out, at.row, at.column);
  }
};

/// Adds the products of a chunk: those of kStrip outputs at one point.
struct GradientAtPoint {
  Planes inputs, gradients;
  std::int64_t count;  ///< tiles
  float* sums;         ///< [point][output][input]
  bool add;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t strips = gradients.channels / kStrip;
    const std::int64_t p = i / strips;
    const std::int64_t out = i % strips * kStrip;
    float* const to = sums + (p * gradients.channels + out) * inputs.channels;
    multiply(to, inputs.channels,
             {gradients.data + p * gradients.plane() + out, 1, gradients.row()},
             {inputs.data + p * inputs.plane(), inputs.row()}, kStrip, inputs.channels, count, add);
  }
};

/// The taps of one output from its sums at all points.
struct GradientOfOutput {
  std::int64_t in, out;
  const float* sums;
  float* dkernel;
  bool first;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t o) const {
    for (std::int64_t c = 0; c < in; c += kStrip) {
      float taps[kTapsOfKernel][kStrip];
      along_both<to_taps, kPoints, kTaps>(
          taps[0], kTaps * kStrip, kStrip,
          Columns<float>{sums + o * in + c, kPoints * out * in, out * in});
      for (int tap = 0; tap < kTapsOfKernel; ++tap) {
        float* const to = dkernel + (o * kTapsOfKernel + tap) * in + c;
        const float* const from = taps[tap];
        MILLRACE_SIMD
        for (int n = 0; n < kStrip; ++n) to[n] = first ? from[n] : to[n] + from[n];
      }
    }
  }
};

/// Tiles of a chunk with so many channels at each point: as many as fit into a core's cache, but
/// enough to use a kernel's values, or the sums of its gradient, often.
std::int64_t chunk_of(const Tiles& tiles, std::int64_t channels) {
  constexpr std::int64_t kBytes = 1 << 19;
  constexpr std::int64_t kFewest = 64;
  const std::int64_t fitting = kBytes / (kPointsOfTile * (channels + kStrip) * kFloatBytes);
  const std::int64_t chunk = std::min(std::max(fitting, kFewest), tiles.count());
  return (chunk + kProductRows - 1) / kProductRows * kProductRows;
}

template <class T>
class Winograd final : public LinearOp {
 public:
  Winograd(const ConvShape& shape, Passes passes) : s_(shape), passes_(passes) {
    const WindowShape& w = shape.window;
    forward_ = {w.batch, w.in, w.out, w.pad_top, w.pad_left};
    backward_ = {w.batch, w.out, w.in, kTaps - 1 - w.pad_top, kTaps - 1 - w.pad_left};
  }

  [[nodiscard]] LinearBytes bytes() const override {
    const std::int64_t packed = kPointsOfTile * s_.window.in.c * s_.window.out.c * kFloatBytes;
    LinearBytes bytes;
    if (passes_.forward) {
      bytes.packed_forward = packed;
      bytes.scratch = parts_of(forward_) * part_scratch(forward_) * kFloatBytes;
    }
    if (passes_.backward_input) {
      bytes.packed_backward = packed;
      bytes.scratch =
          std::max(bytes.scratch, parts_of(backward_) * part_scratch(backward_) * kFloatBytes);
    }
    if (passes_.backward_weight) {
      const std::int64_t chunk = weight_chunk();
      const std::int64_t planes = Planes{nullptr, chunk, s_.window.in.c}.elements() +
                                  Planes{nullptr, chunk, s_.window.out.c}.elements();
      bytes.scratch = std::max(bytes.scratch, packed + planes * kFloatBytes);
      if (s_.bias) bytes.scratch = std::max(bytes.scratch, channel_sums_bytes(s_.window.out.c));
    }
    return bytes;
  }
  void bind(const LinearMemory& memory) override { memory_ = memory; }

  void pack(const ExecutionSpace& space, bool backward) override {
    const std::int64_t in = s_.window.in.c;
    const std::int64_t out = s_.window.out.c;
    const auto* const kernel = as<T>(memory_.kernel);
    if (passes_.forward)
      parallel(
          "winograd pack", space, out / kStrip,
          PackKernel<T>{in, out, panel_of(out), false, as<float>(memory_.packed_forward), kernel});
    if (passes_.backward_input && backward)
      parallel(
          "winograd pack", space, in / kStrip,
          PackKernel<T>{out, in, panel_of(in), true, as<float>(memory_.packed_backward), kernel});
  }

  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    run(space, forward_, memory_.packed_forward, s_.bias ? memory_.bias : nullptr, y, x);
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    run(space, backward_, memory_.packed_backward, nullptr, dx, dy);
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    const std::int64_t in = s_.window.in.c;
    const std::int64_t out = s_.window.out.c;
    const std::int64_t chunk = weight_chunk();
    auto* const sums = as<float>(memory_.scratch);
    const Planes inputs{sums + kPointsOfTile * in * out, chunk, in};
    const Planes gradients{inputs.data + inputs.elements(), chunk, out};
    for (std::int64_t at = 0; at < forward_.count(); at += chunk) {
      const std::int64_t count = std::min(chunk, forward_.count() - at);
      parallel("winograd dw", space, count,
               TransformBoth<T>{forward_, at, inputs, gradients, as<T>(x), as<T>(dy)});
      parallel("winograd dw", space, kPointsOfTile * out / kStrip,
               GradientAtPoint{inputs, gradients, count, sums, at > 0});
    }
    parallel("winograd dw sum", space, out,
             GradientOfOutput{in, out, sums, memory_.dkernel, first});
    if (s_.bias)
      add_channel_sums(space, memory_.dbias, sums, as<T>(dy),
                       s_.window.batch * s_.window.out.pixels(), out, first);
  }

 private:
  static std::int64_t panel_of(std::int64_t channels) { return channels % 32 == 0 ? 32 : kStrip; }
  static std::int64_t parts_of(const Tiles& tiles) {
    const std::int64_t chunk = chunk_of(tiles, tiles.in.c);
    return std::min<std::int64_t>((tiles.count() + chunk - 1) / chunk, device::kernel_threads());
  }
  static std::int64_t part_scratch(const Tiles& tiles) {
    const std::int64_t chunk = chunk_of(tiles, tiles.in.c);
    return Planes{nullptr, chunk, tiles.in.c}.elements() +
           kPointsOfTile * chunk * panel_of(tiles.out.c);
  }
  [[nodiscard]] std::int64_t weight_chunk() const {
    return chunk_of(forward_, s_.window.in.c + s_.window.out.c);
  }

  void run(const ExecutionSpace& space, const Tiles& tiles, const std::byte* packed,
           const float* bias, std::byte* y, const std::byte* x) {
    const std::int64_t parts = parts_of(tiles);
    parallel("winograd", space, parts,
             Forward<T>{tiles, chunk_of(tiles, tiles.in.c), parts, panel_of(tiles.out.c),
                        as<float>(memory_.scratch), part_scratch(tiles), as<float>(packed), bias,
                        as<T>(y), as<T>(x)});
  }

  ConvShape s_;
  Passes passes_;
  Tiles forward_, backward_;
  LinearMemory memory_;
};

}  // namespace

std::int64_t winograd_tiles(const ConvShape& s) {
  const WindowShape& w = s.window;
  return Tiles{w.batch, w.in, w.out, w.pad_top, w.pad_left}.count();
}

bool is_winograd(const ConvShape& s) {
  constexpr std::int64_t kFewestUsed = 9;  // of the 16 outputs of a tile
  const WindowShape& w = s.window;
  return w.kernel_h == kTaps && w.kernel_w == kTaps && w.stride_h == 1 && w.stride_w == 1 &&
         s.dilation_h == 1 && s.dilation_w == 1 && s.groups == 1 && w.in.c % kStrip == 0 &&
         w.out.c % kStrip == 0 && w.pad_top < kTaps && w.pad_left < kTaps && s.pad_bottom < kTaps &&
         s.pad_right < kTaps && w.batch * w.out.pixels() >= kFewestUsed * winograd_tiles(s);
}

std::unique_ptr<LinearOp> make_winograd(const ConvShape& shape, DType type, Passes passes) {
  MILLRACE_ASSERT(is_winograd(shape));
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<LinearOp> {
    return std::make_unique<Winograd<T>>(shape, passes);
  });
}

}  // namespace millrace::ops
