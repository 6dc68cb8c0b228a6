// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/records/bad_pictures.hpp"
#include "io/records/encoded_source.hpp"
#include "io/records/raw_pictures.hpp"

namespace millrace::io {

/// A picture as it goes into a record: its size, and where the file is no RGB or gray JPEG (CMYK,
/// PNG) the JPEG that replaces it, else nothing.
struct PreparedPicture {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::byte> replacement;
};
/// Looks at a picture's file. Called from many threads. Errors: Data, without naming the file.
using PreparePicture = std::function<PreparedPicture(std::span<const std::byte>)>;

struct ConvertOptions {
  std::int64_t shards = 1024;
  std::uint64_t seed = 0;  ///< of the mixing of training pictures
  unsigned threads = 0;    ///< 0: one a core
  /// The share of pictures that may be bad before the conversion is refused.
  double max_bad_fraction = 0.001;
  PreparePicture prepare;
  ProgressCallback progress;  ///< in pictures
  ReportBad report_bad;       ///< told of each that is left out
};

struct ConvertReport {
  std::uint64_t pictures = 0;  ///< in all shards
  std::int64_t bad = 0;        ///< left out of them
  std::uint64_t replaced = 0;  ///< of those written now: made anew as RGB JPEG
  std::uint64_t bytes = 0;     ///< written now
  std::int64_t shards_written = 0;
  std::int64_t shards_kept = 0;  ///< whole ones of an earlier run of the same conversion
};

/// Writes the pictures of a split as OUT/train/train-%05d-of-%05d or OUT/validation/validation-...,
/// ceil(pictures / shards) to a shard, in as many shards as that fills, labels from 1 on. Training
/// pictures are mixed by a permutation that is a function of the seed alone, so that each shard
/// holds many classes; validation keeps its order. Equal input gives equal bytes, whatever the
/// threads. Bad pictures are left out of their shard. A shard appears when it is whole; when the
/// same conversion is run again, whole shards are kept: of one that is done, all. Errors: Config
/// for a count of shards out of range; Usage when OUT holds shards of something else or flat
/// ones, or another process writes there; Data when too many pictures are bad, with their count and
/// naming one; Io.
ConvertReport convert_to_records(const RawPictures& raw, Split split,
                                 const std::filesystem::path& out, const ConvertOptions& options);

/// Error(Usage) when shards of a split lie flat in `out`: readers would take these, and never see
/// what is converted into OUT/train or OUT/validation.
void refuse_hidden_shards(const std::filesystem::path& out, Split split);

/// Shards that `pictures` fill when `asked` are asked for: none is empty.
[[nodiscard]] std::int64_t shards_filled(std::size_t pictures, std::int64_t asked);

/// Positions of the pictures, in the order in which they are written.
[[nodiscard]] std::vector<std::size_t> conversion_order(std::size_t pictures, Split split,
                                                        std::uint64_t seed);

}  // namespace millrace::io
