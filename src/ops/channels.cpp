// SPDX-License-Identifier: Apache-2.0
#include "ops/channels.hpp"

#include "core/error.hpp"
#include "ops/lanes.hpp"
#include "ops/pixel_sums.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

// A work item is a few pixels with all their channels on CPUs, a few channels of a pixel on GPUs.
constexpr bool kRows = device::kOnCores;
constexpr std::int64_t kItemElements = 4096;
constexpr int kWidth = 8;
// Number of channels of a sample that cores sum together in registers.
[[maybe_unused]] constexpr std::int64_t kStrip = 64;

/// Calls body.run<W>(pixel, c, lanes) for the channels [c, c + lanes) of work item i. On GPUs there
/// are W of them, and W > 1 only if `whole`: they can be accessed together.
template <class Body>
struct Pixels {
  Body body;
  std::int64_t pixels;
  std::int64_t channels;
  bool whole;

  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t item() const {
    if constexpr (!kRows) return whole ? channels / kWidth : channels;
    return kItemElements / channels > 1 ? kItemElements / channels : 1;
  }
  [[nodiscard]] std::int64_t items() const {
    return kRows ? (pixels + item() - 1) / item() : pixels * item();
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    if constexpr (kRows) {
      const std::int64_t run = item();
      const std::int64_t last = (i + 1) * run < pixels ? (i + 1) * run : pixels;
      for (std::int64_t p = i * run; p < last; ++p)
        body.template run<1>(p, 0, static_cast<int>(channels));
    } else {
      const Quotient place = divide(i, item());
      if (whole)
        body.template run<kWidth>(place.quotient, place.remainder * kWidth, kWidth);
      else
        body.template run<1>(place.quotient, place.remainder, 1);
    }
  }
};

/// `whole`: all channels of the kernel's pixels are multiples of kWidth, and addresses are aligned.
template <std::size_t kLabelSize, class Body>
void for_pixels(const char (&label)[kLabelSize], const ExecutionSpace& space, std::int64_t pixels,
                std::int64_t channels, bool whole, const Body& body) {
  const Pixels<Body> all{body, pixels, channels, whole};
  parallel(label, space, all.items(), all);
}

template <class T, Activation kFn>
struct ConcatForward {
  ChannelSlice s;
  T* y;
  const T* x;
  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t pixel, std::int64_t c, int lanes) const {
    LanesOut<W, T> target(y + pixel * s.all_channels + s.first + c);
    const LanesIn<W, T> source(x + pixel * s.channels + c);
    MILLRACE_SIMD
    for (int j = 0; j < lanes; ++j) target.set(j, store_fn<T, kFn>(to_float(source[j])));
  }
};

template <class T, Activation kFn>
struct ConcatBackward {
  ChannelSlice s;
  T* dx;
  const T* dy;
  const T* y;
  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t pixel, std::int64_t c, int lanes) const {
    const std::int64_t at = pixel * s.all_channels + s.first + c;
    LanesOut<W, T> target(dx + pixel * s.channels + c);
    const LanesIn<W, T> gradient(dy + at);
    const LanesIn<W, T> output((kFn == Activation::Relu ? y : dy) + at);
    MILLRACE_SIMD
    for (int j = 0; j < lanes; ++j) {
      float g = to_float(gradient[j]);
      if constexpr (kFn == Activation::Relu) g = Formula<kFn>::gradient(g, to_float(output[j]));
      target.set(j, store_exact<T>(g));
    }
  }
};

template <class T, Activation kFn, bool kSkip>
struct ScaleForward {
  ScaleShape s;
  T* y;
  const T* x;
  const T* scale;
  const T* skip;
  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t pixel, std::int64_t c, int lanes) const {
    const std::int64_t at = pixel * s.channels + c;
    const LanesIn<W, T> in(x + at);
    const LanesIn<W, T> factor(scale + divide(pixel, s.pixels).quotient * s.channels + c);
    const LanesIn<W, T> other((kSkip ? skip : x) + at);
    LanesOut<W, T> out(y + at);
    MILLRACE_SIMD
    for (int j = 0; j < lanes; ++j) {
      float z = rounded_as<T>(to_float(in[j]) * to_float(factor[j]));
      if constexpr (kSkip) z = rounded_as<T>(z + to_float(other[j]));
      out.set(j, store_fn<T, kFn>(z));
    }
  }
};

/// Of 16-bit types it must read 4 bytes an element and write 2, or none if x is a norm's input.
template <class T, class Input>
struct ScaleBackward {
  ScaleShape s;
  T* dx;
  T* dscale;
  const T* dy;
  const T* x;
  const T* scale;
  InlinedNorm norm;

  // On cores: a work item is a sample and a strip of channels that are summed in registers.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t strips() const {
    return (s.channels + kStrip - 1) / kStrip;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t sample = item / strips();
    const std::int64_t first = item % strips() * kStrip;
    const std::int64_t lanes = s.channels - first < kStrip ? s.channels - first : kStrip;
    const std::int64_t row = sample * s.channels + first;
    float factor[kStrip] = {};
    float sum[kStrip] = {};
    for (std::int64_t j = 0; j < lanes; ++j) factor[j] = to_float(scale[row + j]);
    for (std::int64_t p = 0; p < s.pixels; ++p) {
      const std::int64_t at = (sample * s.pixels + p) * s.channels + first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < lanes; ++j) {
        const float g = to_float(dy[at + j]);
        sum[j] += g * to_float(x[at + j]);
        dx[at + j] = store_as<T>(g * factor[j]);
      }
    }
    for (std::int64_t j = 0; j < lanes; ++j) dscale[row + j] = store_as<T>(sum[j]);
  }

  // On accelerators, for PixelSums.
  static constexpr int kPixels = 4;
  template <int W>
  class Strip {
   public:
    KOKKOS_INLINE_FUNCTION Strip(const ScaleBackward& kernel, std::int64_t sample, std::int64_t c)
        : k_(kernel), at_(sample * kernel.s.channels + c), values_(kernel.norm, sample, c) {
      if constexpr (!Input::kInlined) factor_ = LanesIn<W, T>(kernel.scale + at_);
    }
    KOKKOS_INLINE_FUNCTION void add(float (&sum)[W], std::int64_t offset, std::int64_t step,
                                    int count) const {
      const PixelsIn<W, kPixels, T> gradient(k_.dy + offset, step, count);
      const PixelsIn<W, kPixels, T> in(k_.x + offset, step, count);
      for (int n = 0; n < kPixels; ++n) {
        if (n >= count) continue;
        for (int j = 0; j < W; ++j) sum[j] += gradient.at(n, j) * values_.of(j, in.at(n, j));
        if constexpr (!Input::kInlined) {
          LanesOut<W, T> out(k_.dx + offset + n * step);
          for (int j = 0; j < W; ++j)
            out.set(j, store_as<T>(gradient.at(n, j) * to_float(factor_[j])));
        }
      }
    }
    KOKKOS_INLINE_FUNCTION void finish(const float (&sum)[W]) const {
      LanesOut<W, T> out(k_.dscale + at_);
      for (int j = 0; j < W; ++j) out.set(j, store_as<T>(sum[j]));
    }

   private:
    const ScaleBackward& k_;
    std::int64_t at_;
    typename Input::template Values<W, T> values_;
    LanesIn<W, T> factor_;
  };
};

/// Whether strips of channels are aligned on both sides.
template <class T>
bool has_whole_strips(const ChannelSlice& s, const T* joined, const T* part) {
  return (s.all_channels | s.first | s.channels) % kWidth == 0 && are_aligned(joined, part);
}

}  // namespace

template <class T>
void concat_forward(const ExecutionSpace& space, const ChannelSlice& slice, T* y, const T* x,
                    Activation fn) {
  dispatch_fn(fn, [&]<Activation kFn>() {
    for_pixels("concat", space, slice.pixels, slice.channels, has_whole_strips(slice, y, x),
               ConcatForward<T, kFn>{slice, y, x});
  });
}

template <class T>
void concat_backward(const ExecutionSpace& space, const ChannelSlice& slice, T* dx, const T* dy,
                     const T* y, Activation fn) {
  MILLRACE_ASSERT(fn == Activation::None || fn == Activation::Relu);
  const bool whole = has_whole_strips(slice, dx, dy) && are_aligned(y);
  if (fn == Activation::Relu) {
    for_pixels("concat dx", space, slice.pixels, slice.channels, whole,
               ConcatBackward<T, Activation::Relu>{slice, dx, dy, y});
  } else {
    for_pixels("concat dx", space, slice.pixels, slice.channels, whole,
               ConcatBackward<T, Activation::None>{slice, dx, dy, y});
  }
}

template <class T>
void scale_forward(const ExecutionSpace& space, const ScaleShape& shape, T* y, const T* x,
                   const T* scale, const T* skip, Activation fn) {
  const std::int64_t pixels = shape.samples * shape.pixels;
  const bool whole = shape.channels % kWidth == 0 && are_aligned(y, x, scale, skip);
  dispatch_fn(fn, [&]<Activation kFn>() {
    if (skip == nullptr) {
      for_pixels("scale", space, pixels, shape.channels, whole,
                 ScaleForward<T, kFn, false>{shape, y, x, scale, skip});
    } else {
      for_pixels("scale add", space, pixels, shape.channels, whole,
                 ScaleForward<T, kFn, true>{shape, y, x, scale, skip});
    }
  });
}

template <class T>
void scale_backward(const ExecutionSpace& space, const ScaleShape& shape, T* dx, T* dscale,
                    const T* dy, const T* x, const T* scale, const InlinedNorm& norm) {
  dispatch_input(norm, [&]<class Input>() {
    const ScaleBackward<T, Input> kernel{shape, dx, dscale, dy, x, scale, norm};
    if constexpr (device::kOnCores)
      parallel("scale dx", space, shape.samples * kernel.strips(), kernel);
    else
      sum_pixels("scale dx", space, shape,
                 are_aligned(dx, dscale, dy, x, scale) && norm.is_aligned(), kernel);
  });
}

MILLRACE_INSTANTIATE(concat_forward)
MILLRACE_INSTANTIATE(concat_backward)
MILLRACE_INSTANTIATE(scale_forward)
MILLRACE_INSTANTIATE(scale_backward)

}  // namespace millrace::ops
