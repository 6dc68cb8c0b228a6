// SPDX-License-Identifier: Apache-2.0
#include "ops/prepare_images.hpp"

#include <algorithm>
#include <limits>

#include "ops/image_sources.hpp"
#include "ops/lanes.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// On cores: a work item is a stored row of an image.
template <class T, class Source>
struct Prepare {
  Source source;
  Placement at;
  T* y;
  const ImageMixing* mixing;

  /// Writes value(x, c) for columns [begin, end) of a row.
  template <class Value>
  KOKKOS_INLINE_FUNCTION void write(T* out, std::int64_t row, std::int64_t begin, std::int64_t end,
                                    const Value& value) const {
    const std::int64_t last_digit = at.digits;
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t pixel = ((row & last_digit) << last_digit) + (x & last_digit);
      T* const to = out + (x >> last_digit) * at.stored.c + pixel * at.image.c;
      for (std::int64_t c = 0; c < at.image.c; ++c) to[c] = value(x, c);
    }
  }
  /// share x image(n) + (1 - share) x image(partner) for columns [begin, end) of a row.
  KOKKOS_FUNCTION void add(T* out, std::int64_t n, std::int64_t row, std::int64_t begin,
                           std::int64_t end) const {
    const float share = mixing[n].share;
    const float rest = 1.0f - share;
    const auto own = source.row(n, row);
    const auto other = source.row(mixing[n].partner, row);
    write(out, row, begin, end, [&](std::int64_t x, std::int64_t c) {
      return store_as<T>(share * own.at(x, c) + rest * other.at(x, c));
    });
  }
  KOKKOS_FUNCTION void prepare(T* out, std::int64_t n, std::int64_t row) const {
    const std::int64_t width = at.image.w;
    if (mixing == nullptr) {
      const auto own = source.row(n, row);
      return write(out, row, 0, width,
                   [&](std::int64_t x, std::int64_t c) { return store_exact<T>(own.at(x, c)); });
    }
    const ImageMixing& m = mixing[n];
    const bool cut = row >= m.box.top && row < m.box.bottom;
    const std::int64_t left = cut ? m.box.left : width;
    const std::int64_t right = cut ? m.box.right : width;
    add(out, n, row, 0, left);
    add(out, m.donor, row, left, right);
    add(out, n, row, right, width);
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t n = i / at.stored.h;
    const std::int64_t first = (i % at.stored.h) << at.digits;
    T* const out = y + i * at.stored.w * at.stored.c;
    if (at.stored.c > at.image.c)
      for (std::int64_t k = 0; k < at.stored.w * at.stored.c; ++k) out[k] = T{};
    for (std::int64_t row = first; row <= first + at.digits; ++row) prepare(out, n, row);
  }
};

/// On accelerators: a work item is a piece of some stored rows of an image, and neighboring items
/// are neighboring pieces.
template <class T>
struct StoredPieces {
  Placement at;
  T* y;
  std::int64_t pieces;  ///< of a row
  std::int64_t parts;   ///< of an image
  std::int64_t rows;    ///< of a part
  bool packs;           ///< whether all pieces are whole and aligned

  struct Item {
    std::int64_t n, begin, end;  ///< rows of an image
    std::int32_t first;          ///< value of the rows
  };
  KOKKOS_INLINE_FUNCTION Item item(std::int64_t i) const {
    const Quotient of_row = divide(i, pieces);
    const Quotient of_image = divide(of_row.quotient, parts);
    const std::int64_t begin = of_image.remainder * rows;
    return {of_image.quotient, begin, begin + rows < at.stored.h ? begin + rows : at.stored.h,
            static_cast<std::int32_t>(of_row.remainder) * kPieceOfRow};
  }
  template <bool kWhole>
  KOKKOS_INLINE_FUNCTION void write(const Item& item, std::int64_t row, const Lanes& values) const {
    const std::int64_t length = at.stored.w * at.stored.c;
    T* const to = y + (item.n * at.stored.h + row) * length + item.first;
    if constexpr (!kWhole) {
      if (!packs) {
        for (int j = 0; j < kPieceOfRow; ++j)
          if (item.first + j < length) to[j] = store_as<T>(values[j]);
        return;
      }
    }
    LanesOut<kPieceOfRow, T> out(to);
    for (int j = 0; j < kPieceOfRow; ++j) out.set(j, store_as<T>(values[j]));
  }
};

/// What the rows of an item have in common is computed once.
template <class T, class Source, int kRun>
struct PreparePieces {
  Source source;
  StoredPieces<T> out;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const auto item = out.item(i);
    const RowPiece<kRun> piece(out.at, item.first);
    auto own = source.part(piece, item.n, out.at.first_row(item.begin), out.at.digits);
    for (std::int64_t row = item.begin; row < item.end; ++row) {
      Lanes values;
      own.read(values, piece, out.at.first_row(row));
      out.template write<(kRun > 1)>(item, row, values);
    }
  }
};

/// A kernel of its own, as it needs twice as many registers. Items have one row.
template <class T, class Source>
struct MixPieces {
  Source source;
  StoredPieces<T> out;
  const ImageMixing* mixing;

  /// share x image(n) + (1 - share) x image(partner).
  KOKKOS_INLINE_FUNCTION void blend(Lanes& to, const RowPiece<1>& piece, std::int64_t n,
                                    std::int32_t row) const {
    const ImageMixing& m = mixing[n];
    Lanes added;
    source.part(piece, n, row, out.at.digits).read(to, piece, row);
    source.part(piece, m.partner, row, out.at.digits).read(added, piece, row);
    for (int j = 0; j < kPieceOfRow; ++j)
      to[j] = m.share * rounded_as<T>(to[j]) + (1.0f - m.share) * rounded_as<T>(added[j]);
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const auto item = out.item(i);
    const RowPiece<1> piece(out.at, item.first);
    const std::int32_t row = out.at.first_row(item.begin);
    const ImageMixing& m = mixing[item.n];
    const LaneSet pasted = piece.in_rows(m.box, row) & piece.in_columns(m.box);
    Lanes values;
    blend(values, piece, item.n, row);
    if (pasted != 0) {
      Lanes within;
      blend(within, piece, m.donor, row);
      for (int j = 0; j < kPieceOfRow; ++j)
        if ((pasted >> j & 1u) != 0) values[j] = within[j];
    }
    out.template write<false>(item, item.begin, values);
  }
};

template <class T, class Source>
void prepare_pieces(const ExecutionSpace& space, std::int64_t batch, const Placement& at, T* y,
                    const Source& source, const ImageMixing* mixing) {
  constexpr std::int64_t kThreads = 131072;  // that keep a device busy
  const std::int64_t most_rows = mixing == nullptr ? 16 : 1;
  const std::int64_t length = at.stored.w * at.stored.c;
  MILLRACE_ASSERT(2 * std::max(length, at.image.w * at.image.c) <=
                  std::numeric_limits<std::int32_t>::max() - kPieceOfRow);
  const std::int64_t pieces = (length + kPieceOfRow - 1) / kPieceOfRow;
  const std::int64_t rows =
      std::clamp<std::int64_t>(batch * at.stored.h * pieces / kThreads, 1, most_rows);
  const std::int64_t parts = (at.stored.h + rows - 1) / rows;
  const bool packs = length % kPieceOfRow == 0 && are_aligned(y);
  const StoredPieces<T> out{at, y, pieces, parts, rows, packs};
  const auto launch = [&](const auto& kernel) {
    parallel("prepare images", space, batch * parts * pieces, kernel);
  };
  const bool runs = packs && are_aligned(source.pixels);
  if (mixing != nullptr)
    launch(MixPieces<T, Source>{source, out, mixing});
  else if (runs && at.stored == at.image)
    launch(PreparePieces<T, Source, kPieceOfRow>{source, out});
  else if (runs && at.digits == 1 && at.stored.c % 2 == 0)
    launch(PreparePieces<T, Source, 2>{source, out});
  else
    launch(PreparePieces<T, Source, 1>{source, out});
}

template <class T, class Source>
void prepare(const ExecutionSpace& space, const PrepareImagesShape& shape, T* y,
             const Source& source, const ImageMixing* mixing) {
  const Placement at(shape);
  if constexpr (device::kOnCores)
    parallel("prepare images", space, shape.batch * at.stored.h,
             Prepare<T, Source>{source, at, y, mixing});
  else
    prepare_pieces(space, shape.batch, at, y, source, mixing);
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
