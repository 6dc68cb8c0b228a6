// SPDX-License-Identifier: Apache-2.0
#include "ops/prepare_images.hpp"

#include <limits>

#include "ops/lanes.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Images that arrive as floats of type Stored.
template <class T, class Stored>
struct FloatImages {
  const Stored* pixels;
  Shape image;

  struct Row {
    const Stored* values;
    std::int64_t channels;
    KOKKOS_FUNCTION float at(std::int64_t column, std::int64_t channel) const {
      return rounded_as<T>(to_float(values[column * channels + channel]));
    }
  };
  KOKKOS_FUNCTION Row row(std::int64_t n, std::int64_t y) const {
    return {pixels + (n * image.h + y) * image.w * image.c, image.c};
  }
};

/// Images that arrive as bytes.
template <class T>
struct ByteImages {
  const std::uint8_t* pixels;
  const PixelScaling* scaling;
  Shape image;

  struct Row {
    const std::uint8_t* bytes;
    const PixelScaling* scaling;
    std::int64_t left, right;  ///< columns inside `real`
    std::int64_t erased_from, erased_to;
    std::int64_t channels;
    KOKKOS_FUNCTION float at(std::int64_t column, std::int64_t channel) const {
      const auto byte = static_cast<float>(bytes[column * channels + channel]);
      const float x = (byte - scaling->mean[channel]) * scaling->scale[channel];
      const bool shown =
          column >= left && column < right && (column < erased_from || column >= erased_to);
      return shown ? to_float(store_as<T>(x)) : 0.0f;
    }
  };
  KOKKOS_FUNCTION Row row(std::int64_t n, std::int64_t y) const {
    const PixelScaling* const s = scaling + n;
    const bool real = y >= s->real.top && y < s->real.bottom;
    const bool erased = y >= s->erased.top && y < s->erased.bottom;
    return {pixels + (n * image.h + y) * image.w * image.c,
            s,
            real ? s->real.left : 0,
            real ? s->real.right : 0,
            erased ? s->erased.left : 0,
            erased ? s->erased.right : 0,
            image.c};
  }
};

/// On cores: a work item is a row of an image.
template <class T, class Source>
struct Prepare {
  Source source;
  Shape image;
  std::int64_t stored;  ///< channels of a pixel of y
  T* y;
  const ImageMixing* mixing;

  /// share x image(n) + (1 - share) x image(partner) for columns [begin, end) of a row.
  KOKKOS_FUNCTION void add(T* out, std::int64_t n, std::int64_t row, std::int64_t begin,
                           std::int64_t end) const {
    const float share = mixing[n].share;
    const float rest = 1.0f - share;
    const auto own = source.row(n, row);
    const auto other = source.row(mixing[n].partner, row);
    for (std::int64_t x = begin; x < end; ++x)
      for (std::int64_t c = 0; c < image.c; ++c)
        out[x * stored + c] = store_as<T>(share * own.at(x, c) + rest * other.at(x, c));
  }

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t n = i / image.h;
    const std::int64_t row = i % image.h;
    T* const out = y + i * image.w * stored;
    if (stored > image.c)
      for (std::int64_t k = 0; k < image.w * stored; ++k) out[k] = T{};
    if (mixing == nullptr) {
      const auto own = source.row(n, row);
      for (std::int64_t x = 0; x < image.w; ++x)
        for (std::int64_t c = 0; c < image.c; ++c)
          out[x * stored + c] = store_exact<T>(own.at(x, c));
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

/// On accelerators: a work item is kPieceOfRow neighboring values of a row, and neighboring items
/// are neighboring pieces. Places in a row fit in 32 bits.
inline constexpr int kPieceOfRow = 8;

template <class T, class Source>
struct PreparePieces {
  Source source;
  Shape image;
  std::int64_t stored;  ///< channels of a pixel of y
  T* y;
  const ImageMixing* mixing;
  std::int64_t pieces;  ///< of a row
  bool packs;           ///< whether all pieces are whole and aligned

  /// share x image(n) + (1 - share) x image(partner) at a column.
  KOKKOS_INLINE_FUNCTION T mixed(std::int64_t n, std::int64_t row, std::int32_t column,
                                 std::int32_t channel) const {
    const float share = mixing[n].share;
    const float rest = 1.0f - share;
    return store_as<T>(share * source.row(n, row).at(column, channel) +
                       rest * source.row(mixing[n].partner, row).at(column, channel));
  }
  KOKKOS_INLINE_FUNCTION T value(std::int64_t n, std::int64_t row, std::int32_t column,
                                 std::int32_t channel) const {
    if (channel >= image.c) return T{};
    if (mixing == nullptr) return store_exact<T>(source.row(n, row).at(column, channel));
    const PixelBox& box = mixing[n].box;
    const bool pasted =
        row >= box.top && row < box.bottom && column >= box.left && column < box.right;
    return mixed(pasted ? mixing[n].donor : n, row, column, channel);
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t n, std::int64_t row, std::int32_t first) const {
    const auto channels = static_cast<std::int32_t>(stored);
    std::int32_t column = first / channels;
    std::int32_t channel = first % channels;
    LanesOut<W, T> out(y + (n * image.h + row) * image.w * stored + first);
    for (int j = 0; j < W; ++j) {
      out.set(j, value(n, row, column, channel));
      if (++channel < channels) continue;
      channel = 0;
      ++column;
    }
  }

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Quotient piece = divide(i, pieces);
    const Quotient row = divide(piece.quotient, image.h);
    const auto first = static_cast<std::int32_t>(piece.remainder) * kPieceOfRow;
    if (packs) return run<kPieceOfRow>(row.quotient, row.remainder, first);
    const auto length = static_cast<std::int32_t>(image.w * stored);
    const std::int32_t last = first + kPieceOfRow < length ? first + kPieceOfRow : length;
    for (std::int32_t k = first; k < last; ++k) run<1>(row.quotient, row.remainder, k);
  }
};

template <class T, class Source>
void prepare(const ExecutionSpace& space, const PrepareImagesShape& shape, T* y,
             const Source& source, const ImageMixing* mixing) {
  const Shape& image = shape.image;
  const std::int64_t stored = shape.channels_in_memory();
  if constexpr (device::kOnCores) {
    parallel("prepare images", space, shape.batch * image.h,
             Prepare<T, Source>{source, image, stored, y, mixing});
  } else {
    const std::int64_t length = image.w * stored;
    MILLRACE_ASSERT(length <= std::numeric_limits<std::int32_t>::max() - kPieceOfRow);
    const std::int64_t pieces = (length + kPieceOfRow - 1) / kPieceOfRow;
    const bool packs = length % kPieceOfRow == 0 && are_aligned(y);
    parallel("prepare images", space, shape.batch * image.h * pieces,
             PreparePieces<T, Source>{source, image, stored, y, mixing, pieces, packs});
  }
}

}  // namespace

template <class T>
void prepare_bytes(const ExecutionSpace& space, const PrepareImagesShape& shape, T* y,
                   const std::uint8_t* bytes, const PixelScaling* scaling,
                   const ImageMixing* mixing) {
  MILLRACE_ASSERT(shape.image.c <= kMaxByteChannels);
  prepare(space, shape, y, ByteImages<T>{bytes, scaling, shape.image}, mixing);
}

template <class T, class Stored>
void prepare_floats(const ExecutionSpace& space, const PrepareImagesShape& shape, T* y,
                    const Stored* x, const ImageMixing* mixing) {
  prepare(space, shape, y, FloatImages<T, Stored>{x, shape.image}, mixing);
}

MILLRACE_INSTANTIATE(prepare_bytes)
MILLRACE_INSTANTIATE_WITH(prepare_floats, float)
MILLRACE_INSTANTIATE_WITH(prepare_floats, bfloat16)
MILLRACE_INSTANTIATE_WITH(prepare_floats, float16)

}  // namespace millrace::ops
