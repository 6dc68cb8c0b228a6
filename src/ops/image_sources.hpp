// SPDX-License-Identifier: Apache-2.0
//
// The images that ops/prepare_images.hpp prepares, as its kernels read them: on cores rows, on
// accelerators pieces of rows.
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "core/image_records.hpp"
#include "device/parallel.hpp"
#include "device/tensor.hpp"
#include "ops/lanes.hpp"
#include "ops/prepare_images.hpp"

namespace millrace::ops {

/// Where the pixels of images lie as they are stored.
struct Placement {
  Shape image;
  Shape stored;
  /// Binary digits of a row or column that are its place in a block: 1 in blocks of 2x2, or 0.
  std::int32_t digits;

  explicit Placement(const PrepareImagesShape& shape)
      : image(shape.image), stored(shape.shape_in_memory()), digits(stored.h < image.h ? 1 : 0) {
    MILLRACE_ASSERT(stored.h << digits == image.h && stored.w << digits == image.w);
    MILLRACE_ASSERT(stored.c >= image.c << digits << digits);
  }
  /// The first of the rows that a stored row shows.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int32_t first_row(std::int64_t row) const {
    return static_cast<std::int32_t>(row << digits);
  }
};

/// Values of a piece.
inline constexpr int kPieceOfRow = 8;
using Lanes = float[kPieceOfRow];
/// A set of lanes: bit j for lane j.
using LaneSet = std::uint32_t;

/// What neighboring values of a stored row show, the same in all rows. They are read in runs of
/// kRun values that are neighbors where they come from, too. Places in a row fit in 32 bits.
template <int kRun>
struct RowPiece {
  static constexpr int kRuns = kPieceOfRow / kRun;
  std::int32_t runs[kRuns];  ///< from the beginning of the row to each run; 0 where zeros are
  std::int32_t columns[kPieceOfRow];
  std::int32_t channels[kPieceOfRow];  ///< -1: zero
  LaneSet lower = 0;                   ///< lanes that show the lower row of blocks

  KOKKOS_INLINE_FUNCTION RowPiece(const Placement& at, std::int32_t first) {
    const auto own = static_cast<std::int32_t>(at.image.c);
    const auto stored = static_cast<std::int32_t>(at.stored.c);
    const auto width = static_cast<std::int32_t>(at.image.w);
    std::int32_t block = first / stored;
    std::int32_t place = first % stored;  // in the block
    std::int32_t pixel = place / own;     // of the block
    std::int32_t channel = place % own;
    for (int j = 0; j < kPieceOfRow; ++j) {
      const std::int32_t row = pixel >> at.digits;
      const bool shows = row <= at.digits && block < at.stored.w;
      columns[j] = (block << at.digits) + (pixel & at.digits);
      channels[j] = shows ? channel : -1;
      if (row == 1) lower |= 1u << j;
      if (j % kRun == 0) runs[j / kRun] = shows ? (row * width + columns[j]) * own + channel : 0;
      if (++channel == own) {
        channel = 0;
        ++pixel;
      }
      if (++place < stored) continue;
      place = pixel = channel = 0;
      ++block;
    }
  }
  /// Lanes in the columns of a box.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION LaneSet in_columns(const PixelBox& box) const {
    LaneSet lanes = 0;
    for (int j = 0; j < kPieceOfRow; ++j)
      if (columns[j] >= box.left && columns[j] < box.right) lanes |= 1u << j;
    return lanes;
  }
  /// Lanes in the rows of a box; `row` is that of the upper ones.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION LaneSet in_rows(const PixelBox& box,
                                                       std::int32_t row) const {
    const LaneSet upper = row >= box.top && row < box.bottom ? ~lower : 0;
    return upper | (row + 1 >= box.top && row + 1 < box.bottom ? lower : 0);
  }
  /// Lanes that are zero get any value of the row.
  template <class Stored>
  KOKKOS_INLINE_FUNCTION void read(Lanes& to, const Stored* row) const {
    for (int r = 0; r < kRuns; ++r) {
      const LanesIn<kRun, Stored> values(row + runs[r]);
      for (int j = 0; j < kRun; ++j) to[r * kRun + j] = to_float(values[j]);
    }
  }
};

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

  /// Reads a piece of the rows of an image, one after another.
  struct Part {
    const Stored* values;
    std::int64_t step;
    template <int kRun>
    KOKKOS_INLINE_FUNCTION void read(Lanes& to, const RowPiece<kRun>& piece, std::int32_t) {
      piece.read(to, values);
      values += step;
      for (int j = 0; j < kPieceOfRow; ++j)
        if (piece.channels[j] < 0) to[j] = 0.0f;
    }
  };
  template <int kRun>
  KOKKOS_INLINE_FUNCTION Part part(const RowPiece<kRun>&, std::int64_t n, std::int32_t first,
                                   std::int32_t digits) const {
    const std::int64_t row = image.w * image.c;
    return {pixels + (n * image.h + first) * row, row << digits};
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

  /// Reads a piece of the rows of an image, one after another. Lanes that are zero in all rows
  /// become so by their scale.
  struct Part {
    const std::uint8_t* bytes;
    std::int64_t step;
    PixelBox real, erased;
    LaneSet erased_columns;
    bool has_hidden_rows;
    float mean[kPieceOfRow], scale[kPieceOfRow];

    template <int kRun>
    KOKKOS_INLINE_FUNCTION void read(Lanes& to, const RowPiece<kRun>& piece, std::int32_t row) {
      piece.read(to, bytes);
      bytes += step;
      for (int j = 0; j < kPieceOfRow; ++j) to[j] = (to[j] - mean[j]) * scale[j];
      if (!has_hidden_rows) return;
      const LaneSet hidden =
          ~piece.in_rows(real, row) | (piece.in_rows(erased, row) & erased_columns);
      for (int j = 0; j < kPieceOfRow; ++j)
        if ((hidden >> j & 1u) != 0) to[j] = 0.0f;
    }
  };
  template <int kRun>
  KOKKOS_INLINE_FUNCTION Part part(const RowPiece<kRun>& piece, std::int64_t n, std::int32_t first,
                                   std::int32_t digits) const {
    const PixelScaling& s = scaling[n];
    const std::int64_t row = image.w * image.c;
    Part part{pixels + (n * image.h + first) * row,
              row << digits,
              s.real,
              s.erased,
              piece.in_columns(s.erased),
              s.real.top > 0 || s.real.bottom < image.h || s.erased.top < s.erased.bottom,
              {},
              {}};
    const LaneSet shown = piece.in_columns(s.real);
    for (int j = 0; j < kPieceOfRow; ++j) {
      if (piece.channels[j] < 0 || (shown >> j & 1u) == 0) continue;
      part.mean[j] = s.mean[piece.channels[j]];
      part.scale[j] = s.scale[piece.channels[j]];
    }
    return part;
  }
};

}  // namespace millrace::ops
