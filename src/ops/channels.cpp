// SPDX-License-Identifier: Apache-2.0
#include "ops/channels.hpp"

#include "core/error.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

// A work item is a few pixels with all their channels on CPUs, one element on GPUs.
constexpr bool kRows = device::kOnCores;
constexpr std::int64_t kItemElements = 4096;
// Number of channels of a sample that are summed together in registers.
constexpr std::int64_t kStrip = kRows ? 64 : 1;

/// Calls body(pixel, first, last) for every pixel and channels [first, last) of work item i.
template <class Body>
struct Pixels {
  Body body;
  std::int64_t pixels;
  std::int64_t channels;
  std::int64_t run;  ///< pixels of a work item

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    if constexpr (kRows) {
      const std::int64_t last = (i + 1) * run < pixels ? (i + 1) * run : pixels;
      for (std::int64_t p = i * run; p < last; ++p) body(p, std::int64_t{0}, channels);
    } else {
      body(i / channels, i % channels, i % channels + 1);
    }
  }
};

template <std::size_t kLabelSize, class Body>
void for_pixels(const char (&label)[kLabelSize], const ExecutionSpace& space, std::int64_t pixels,
                std::int64_t channels, const Body& body) {
  const std::int64_t run = kItemElements / channels > 1 ? kItemElements / channels : 1;
  const std::int64_t items = kRows ? (pixels + run - 1) / run : pixels * channels;
  parallel(label, space, items, Pixels<Body>{body, pixels, channels, run});
}

template <class T, Activation kFn>
struct ConcatForward {
  ChannelSlice s;
  T* y;
  const T* x;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t pixel, std::int64_t first,
                                         std::int64_t last) const {
    T* target = y + pixel * s.all_channels + s.first;
    const T* source = x + pixel * s.channels;
    MILLRACE_SIMD
    for (std::int64_t c = first; c < last; ++c) target[c] = store_fn<T, kFn>(to_float(source[c]));
  }
};

template <class T, Activation kFn>
struct ConcatBackward {
  ChannelSlice s;
  T* dx;
  const T* dy;
  const T* y;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t pixel, std::int64_t first,
                                         std::int64_t last) const {
    T* target = dx + pixel * s.channels;
    const std::int64_t at = pixel * s.all_channels + s.first;
    MILLRACE_SIMD
    for (std::int64_t c = first; c < last; ++c) {
      float g = to_float(dy[at + c]);
      if constexpr (kFn == Activation::Relu) g = Formula<kFn>::gradient(g, to_float(y[at + c]));
      target[c] = store_exact<T>(g);
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
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t pixel, std::int64_t first,
                                         std::int64_t last) const {
    const std::int64_t at = pixel * s.channels;
    const T* factor = scale + pixel / s.pixels * s.channels;
    MILLRACE_SIMD
    for (std::int64_t c = first; c < last; ++c) {
      float z = rounded_as<T>(to_float(x[at + c]) * to_float(factor[c]));
      if constexpr (kSkip) z = rounded_as<T>(z + to_float(skip[at + c]));
      y[at + c] = store_fn<T, kFn>(z);
    }
  }
};

/// One work item per sample and strip of channels.
template <class T>
struct ScaleBackward {
  ScaleShape s;
  std::int64_t strips;
  T* dx;
  T* dscale;
  const T* dy;
  const T* x;
  const T* scale;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t sample = item / strips;
    const std::int64_t first = item % strips * kStrip;
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
};

}  // namespace

template <class T>
void concat_forward(const ExecutionSpace& space, const ChannelSlice& slice, T* y, const T* x,
                    Activation fn) {
  dispatch_fn(fn, [&]<Activation kFn>() {
    for_pixels("concat", space, slice.pixels, slice.channels, ConcatForward<T, kFn>{slice, y, x});
  });
}

template <class T>
void concat_backward(const ExecutionSpace& space, const ChannelSlice& slice, T* dx, const T* dy,
                     const T* y, Activation fn) {
  MILLRACE_ASSERT(fn == Activation::None || fn == Activation::Relu);
  if (fn == Activation::Relu) {
    for_pixels("concat dx", space, slice.pixels, slice.channels,
               ConcatBackward<T, Activation::Relu>{slice, dx, dy, y});
  } else {
    for_pixels("concat dx", space, slice.pixels, slice.channels,
               ConcatBackward<T, Activation::None>{slice, dx, dy, y});
  }
}

template <class T>
void scale_forward(const ExecutionSpace& space, const ScaleShape& shape, T* y, const T* x,
                   const T* scale, const T* skip, Activation fn) {
  const std::int64_t pixels = shape.samples * shape.pixels;
  dispatch_fn(fn, [&]<Activation kFn>() {
    if (skip == nullptr) {
      for_pixels("scale", space, pixels, shape.channels,
                 ScaleForward<T, kFn, false>{shape, y, x, scale, skip});
    } else {
      for_pixels("scale add", space, pixels, shape.channels,
                 ScaleForward<T, kFn, true>{shape, y, x, scale, skip});
    }
  });
}

template <class T>
void scale_backward(const ExecutionSpace& space, const ScaleShape& shape, T* dx, T* dscale,
                    const T* dy, const T* x, const T* scale) {
  const std::int64_t strips = (shape.channels + kStrip - 1) / kStrip;
  parallel("scale dx", space, shape.samples * strips,
           ScaleBackward<T>{shape, strips, dx, dscale, dy, x, scale});
}

MILLRACE_INSTANTIATE(concat_forward)
MILLRACE_INSTANTIATE(concat_backward)
MILLRACE_INSTANTIATE(scale_forward)
MILLRACE_INSTANTIATE(scale_backward)

}  // namespace millrace::ops
