// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/data/dataset.hpp"
#include "io/data/image_dataset.hpp"
#include "io/data/parallel.hpp"
#include "tools/data/image_codec.hpp"
#include "tools/data/raw_images.hpp"

namespace millrace::io {

/// Prepares an image file. Called from many threads. Errors: Data, without the file's name.
using PrepareImage = std::function<PreparedImage(std::span<const std::byte>)>;

struct ConvertOptions {
  std::int64_t shards = 1024;
  std::uint64_t seed = 0;  ///< seed of the order of training images
  unsigned threads = 0;    ///< 0: one per core
  /// Maximum share of bad images; with more, the conversion fails.
  double max_bad_fraction = 0.001;
  PrepareImage prepare = prepare_image;
  ProgressCallback progress;  ///< in images
  ReportBad report_bad;       ///< called for each image left out
};

struct ConvertReport {
  std::uint64_t images = 0;    ///< in all shards
  std::int64_t bad = 0;        ///< left out
  std::uint64_t replaced = 0;  ///< encoded again as RGB JPEG, in shards written now
  std::uint64_t bytes = 0;     ///< written now
  std::int64_t shards_written = 0;
  std::int64_t shards_kept = 0;  ///< complete shards of an earlier run of the same conversion
};

/// Writes the images of a split as OUT/train/train-%05d-of-%05d or OUT/validation/validation-...,
/// with ceil(images / shards) images per shard and labels from 1 on. If the images fill fewer
/// shards, fewer are written. Training images are shuffled by a permutation that depends only on
/// the seed, so each shard contains many classes; validation images keep their order. Equal input
/// gives equal bytes for any number of threads. Bad images are left out of their shard. A shard
/// appears only when it is complete. Complete shards of an earlier run of the same conversion are
/// kept. Errors: Config if the number of shards is out of range; Usage if OUT holds other or flat
/// shards, or another process writes there; Data if too many images are bad, with their count and
/// one example; Io.
ConvertReport convert_to_records(const RawImages& raw, Split split,
                                 const std::filesystem::path& out, const ConvertOptions& options);

/// Error(Usage) if shards of a split are directly in `out`: readers would use these instead of the
/// ones in OUT/train or OUT/validation.
void refuse_hidden_shards(const std::filesystem::path& out, Split split);

/// Number of shards that `images` images fill if `asked` are requested; no shard is empty.
[[nodiscard]] std::int64_t shards_filled(std::size_t images, std::int64_t asked);

/// Indices of the images in the order in which they are written.
[[nodiscard]] std::vector<std::size_t> conversion_order(std::size_t images, Split split,
                                                        std::uint64_t seed);

}  // namespace millrace::io
