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
// Tiles are computed in chunks, where possible of values that stay in a core's cache. A tile's
// outputs depend on no other tile, and a sum over tiles goes on from chunk to chunk as it goes on
// within one, so results depend neither on chunks nor on threads. What kernels call is inlined by
// force, as only then clang compiles it for the level at hand.
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
static_assert(kStrip % kProductRows == 0 && kStrip % kProductColumns == 0);

/// Rows of a product that has so many at least.
std::int64_t whole_rows(std::int64_t rows) {
  return tiling::quotient_up(rows, kProductRows) * kProductRows;
}

/// A forward pass, also that of a turned kernel. Work item i computes the i-th part of the chunks.
template <class T>
struct ConvolveTiles {
  Tiles tiles;
  std::int64_t chunk;  ///< tiles
  std::int64_t parts;
  std::int64_t panel;  ///< outputs
  float* scratch;
  std::int64_t part_scratch;  ///< floats of each part
  const float* kernel;
  const float* bias;  ///< or null
  T* y;
  const T* x;

  [[nodiscard]] std::int64_t chunks() const { return tiling::quotient_up(tiles.count(), chunk); }

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t part) const {
    float* const own = scratch + part * part_scratch;
    for (std::int64_t i = chunks() * part / parts; i < chunks() * (part + 1) / parts; ++i)
      run(i * chunk, std::min(chunk, tiles.count() - i * chunk), own);
  }

  KOKKOS_FORCEINLINE_FUNCTION void run(std::int64_t first, std::int64_t count, float* own) const {
    const std::int64_t rows = whole_rows(count);  // those past the end have any values
    const Planes inputs{own, rows, tiles.in.c};
    for (std::int64_t t = 0; t < count; ++t) transform_inputs(inputs, t, tiles, x, first + t);
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
    float outputs[kOutputs][kOutputs][kStrip];
    along_both<to_outputs, kPoints, kOutputs>(outputs[0][0], kOutputs * kStrip, kStrip,
                                              Columns<float>{sums, kPoints * plane, plane});
    const Tiles::Place at = tiles.place(tile);
    const Shape& out = tiles.out;
    T* const to = y + ((at.sample * out.h + at.row) * out.w + at.column) * out.c + channel;
    const std::int64_t height = std::min<std::int64_t>(kOutputs, out.h - at.row);
    const std::int64_t width = std::min<std::int64_t>(kOutputs, out.w - at.column);
    const float* const added = bias != nullptr ? bias + channel : kNoBias;
    for (std::int64_t i = 0; i < height; ++i)
      for (std::int64_t j = 0; j < width; ++j) {
        T* const pixel = to + (i * out.w + j) * out.c;
        MILLRACE_SIMD
        for (int n = 0; n < kStrip; ++n) pixel[n] = store_as<T>(outputs[i][j][n] + added[n]);
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
      for (int row = 0; row < kStrip; ++row)
        for (int tap = 0; tap < kTapsOfKernel; ++tap)
          if (turned) {
            const T* const outputs = kernel + ((i + row) * kTapsOfKernel + tap) * out + o;
            for (int n = 0; n < kStrip; ++n)
              taps[row][kTapsOfKernel - 1 - tap][n] = to_float(outputs[n]);
          } else {
            const T* const inputs = kernel + ((o + row) * kTapsOfKernel + tap) * in + i;
            for (int m = 0; m < kStrip; ++m) taps[m][tap][row] = to_float(inputs[m]);
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

/// Tiles of a chunk with so many channels at each point: as many as fit into the caches of `cores`
/// cores, but enough to use a kernel's values, or the sums of its gradient, often.
std::int64_t chunk_of(const Tiles& tiles, std::int64_t channels, std::int64_t cores) {
  constexpr std::int64_t kBytes = 1 << 19;
  constexpr std::int64_t kFewest = 64;
  const std::int64_t fitting = kBytes / (kPointsOfTile * (channels + kStrip) * kFloatBytes);
  return whole_rows(std::min(std::max(fitting, kFewest) * cores, tiles.count()));
}

std::int64_t panel_of(std::int64_t channels) { return channels % 32 == 0 ? 32 : kStrip; }

/// Images that are convolved, and how.
struct Convolved {
  Tiles tiles;
  std::int64_t chunk;
  std::int64_t parts;         ///< of the chunks, one for each thread
  std::int64_t part_scratch;  ///< floats of each part

  Convolved(const Tiles& images, std::int64_t threads) : tiles(images) {
    chunk = std::min(chunk_of(tiles, tiles.in.c, 1),
                     whole_rows(tiling::quotient_up(tiles.count(), threads)));
    parts = std::min(tiling::quotient_up(tiles.count(), chunk), threads);
    part_scratch = Planes{nullptr, chunk, tiles.in.c}.elements() +
                   kPointsOfTile * chunk * panel_of(tiles.out.c);
  }
  [[nodiscard]] std::int64_t scratch() const { return parts * part_scratch * kFloatBytes; }
};

Tiles forward_tiles(const WindowShape& w) { return {w.batch, w.in, w.out, w.pad_top, w.pad_left}; }
Tiles backward_tiles(const WindowShape& w) {
  return {w.batch, w.out, w.in, kTaps - 1 - w.pad_top, kTaps - 1 - w.pad_left};
}

template <class T>
class Winograd final : public LinearOp {
 public:
  Winograd(const ConvShape& shape, Passes passes, std::int64_t threads)
      : s_(shape),
        passes_(passes),
        forward_(forward_tiles(shape.window), threads),
        backward_(backward_tiles(shape.window), threads),
        weight_chunk_(chunk_of(forward_.tiles, shape.window.in.c + shape.window.out.c, threads)) {}

  [[nodiscard]] LinearBytes bytes() const override {
    const std::int64_t packed = kPointsOfTile * s_.window.in.c * s_.window.out.c * kFloatBytes;
    LinearBytes bytes;
    if (passes_.forward) {
      bytes.packed_forward = packed;
      bytes.scratch = forward_.scratch();
    }
    if (passes_.backward_input) {
      bytes.packed_backward = packed;
      bytes.scratch = std::max(bytes.scratch, backward_.scratch());
    }
    if (passes_.backward_weight) {
      const std::int64_t planes = Planes{nullptr, weight_chunk_, s_.window.in.c}.elements() +
                                  Planes{nullptr, weight_chunk_, s_.window.out.c}.elements();
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
    auto* const sums = as<float>(memory_.scratch);
    const Planes inputs{sums + kPointsOfTile * in * out, weight_chunk_, in};
    const Planes gradients{inputs.data + inputs.elements(), weight_chunk_, out};
    const Tiles& tiles = forward_.tiles;
    for (std::int64_t at = 0; at < tiles.count(); at += weight_chunk_) {
      const std::int64_t count = std::min(weight_chunk_, tiles.count() - at);
      parallel("winograd dw", space, count,
               TransformBoth<T>{tiles, at, inputs, gradients, as<T>(x), as<T>(dy)});
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
  void run(const ExecutionSpace& space, const Convolved& images, const std::byte* packed,
           const float* bias, std::byte* y, const std::byte* x) {
    parallel("winograd", space, images.parts,
             ConvolveTiles<T>{images.tiles, images.chunk, images.parts,
                              panel_of(images.tiles.out.c), as<float>(memory_.scratch),
                              images.part_scratch, as<float>(packed), bias, as<T>(y), as<T>(x)});
  }

  ConvShape s_;
  Passes passes_;
  Convolved forward_, backward_;
  std::int64_t weight_chunk_;
  LinearMemory memory_;
};

}  // namespace

std::int64_t winograd_tiles(const ConvShape& s) { return forward_tiles(s.window).count(); }

bool is_winograd(const ConvShape& s) {
  // Of the 16 outputs of a tile. In smaller images most products are for nothing, and gradients of
  // taps that see only padding are not exactly zero.
  constexpr std::int64_t kFewestUsed = 9;
  const WindowShape& w = s.window;
  return w.kernel_h == kTaps && w.kernel_w == kTaps && w.stride_h == 1 && w.stride_w == 1 &&
         s.dilation_h == 1 && s.dilation_w == 1 && s.groups == 1 && w.in.c % kStrip == 0 &&
         w.out.c % kStrip == 0 && w.pad_top < kTaps && w.pad_left < kTaps && s.pad_bottom < kTaps &&
         s.pad_right < kTaps && w.batch * w.out.pixels() >= kFewestUsed * winograd_tiles(s);
}

std::int64_t winograd_scratch(const ConvShape& s) {
  return Winograd<float>(s, {}, 1).bytes().scratch;
}

std::unique_ptr<LinearOp> make_winograd(const ConvShape& shape, DType type, Passes passes) {
  MILLRACE_ASSERT(is_winograd(shape));
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<LinearOp> {
    return std::make_unique<Winograd<T>>(shape, passes, device::kernel_threads());
  });
}

}  // namespace millrace::ops
