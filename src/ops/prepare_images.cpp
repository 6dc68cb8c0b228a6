// SPDX-License-Identifier: Apache-2.0
#include "ops/prepare_images.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Images that arrive as the network stores them.
template <class T>
struct StoredImages {
  const T* pixels;
  Shape image;

  KOKKOS_FUNCTION float at(std::int64_t n, std::int64_t row, std::int64_t column,
                           std::int64_t channel) const {
    return to_float(pixels[((n * image.h + row) * image.w + column) * image.c + channel]);
  }
};

/// Images that arrive as bytes.
template <class T>
struct ByteImages {
  const std::uint8_t* pixels;
  const PixelScaling* scaling;
  Shape image;

  KOKKOS_FUNCTION float at(std::int64_t n, std::int64_t row, std::int64_t column,
                           std::int64_t channel) const {
    const PixelScaling& s = scaling[n];
    const bool real =
        row >= s.real.top && row < s.real.bottom && column >= s.real.left && column < s.real.right;
    if (!real) return 0.0f;
    const auto byte =
        static_cast<float>(pixels[((n * image.h + row) * image.w + column) * image.c + channel]);
    return to_float(store_as<T>((byte - s.mean[channel]) * s.scale[channel]));
  }
};

/// One row of one image a time: enough of them for any device, and long enough for a core.
template <class T, class Source>
struct Prepare {
  Source source;
  Shape image;
  T* y;
  const ImageMixing* mixing;

  /// share x image(n) + (1 - share) x image(partner), columns [begin, end) of a row.
  KOKKOS_FUNCTION void add(T* out, std::int64_t n, std::int64_t row, std::int64_t begin,
                           std::int64_t end) const {
    const float share = mixing[n].share;
    const float other = 1.0f - share;
    const std::int64_t partner = mixing[n].partner;
    for (std::int64_t x = begin; x < end; ++x)
      for (std::int64_t c = 0; c < image.c; ++c)
        out[x * image.c + c] =
            store_as<T>(share * source.at(n, row, x, c) + other * source.at(partner, row, x, c));
  }

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t n = i / image.h;
    const std::int64_t row = i % image.h;
    T* const out = y + i * image.w * image.c;
    if (mixing == nullptr) {
      for (std::int64_t x = 0; x < image.w; ++x)
        for (std::int64_t c = 0; c < image.c; ++c)
          out[x * image.c + c] = store_exact<T>(source.at(n, row, x, c));
      return;
    }
    const ImageMixing& m = mixing[n];
    const bool cut = row >= m.box.top && row < m.box.bottom;
    const std::int64_t left = cut ? m.box.left : image.w;
    const std::int64_t right = cut ? m.box.right : image.w;
    add(out, n, row, 0, left);
    add(out, m.donor, row, left, right);
    add(out, n, row, right, image.w);
  }
};

template <class T, class Source>
void prepare(const ExecutionSpace& space, const PrepareImagesShape& shape, T* y,
             const Source& source, const ImageMixing* mixing) {
  parallel("prepare images", space, shape.batch * shape.image.h,
           Prepare<T, Source>{source, shape.image, y, mixing});
}

}  // namespace

template <class T>
void prepare_bytes(const ExecutionSpace& space, const PrepareImagesShape& shape, T* y,
                   const std::uint8_t* bytes, const PixelScaling* scaling,
                   const ImageMixing* mixing) {
  MILLRACE_ASSERT(shape.image.c <= kMaxByteChannels);
  prepare(space, shape, y, ByteImages<T>{bytes, scaling, shape.image}, mixing);
}

template <class T>
void mix_images(const ExecutionSpace& space, const PrepareImagesShape& shape, T* y, const T* x,
                const ImageMixing* mixing) {
  prepare(space, shape, y, StoredImages<T>{x, shape.image}, mixing);
}

#define MILLRACE_INSTANTIATE(T)                                                                 \
  template void prepare_bytes<T>(const ExecutionSpace&, const PrepareImagesShape&, T*,          \
                                 const std::uint8_t*, const PixelScaling*, const ImageMixing*); \
  template void mix_images<T>(const ExecutionSpace&, const PrepareImagesShape&, T*, const T*,   \
                              const ImageMixing*);
MILLRACE_INSTANTIATE(float)
MILLRACE_INSTANTIATE(bfloat16)
#undef MILLRACE_INSTANTIATE

}  // namespace millrace::ops
