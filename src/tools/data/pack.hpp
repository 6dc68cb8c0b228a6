// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "io/data/packed_images.hpp"
#include "io/data/parallel.hpp"
#include "tools/data/image_codec.hpp"

namespace millrace::io {

/// Called from many threads. Errors: Data, without the file's name.
using ShrinkImage = std::function<void(std::span<const std::byte> file, std::int32_t shorter_side,
                                       PixelBuffer& out)>;

struct PackOptions {
  std::int32_t shorter_side = 256;
  unsigned threads = 0;  ///< 0: one per core
  /// Maximum share of bad images; with more, the packing fails.
  double max_bad_fraction = 0.001;
  ShrinkImage shrink = shrink_image;
  ProgressCallback progress;  ///< in images
  ReportBad report_bad;       ///< called for each image left out, in order
};

struct PackReport {
  std::int64_t images = 0;  ///< in the file
  std::int64_t bad = 0;     ///< left out
  std::uint64_t bytes = 0;  ///< size of the file
};

/// Writes the images of a source in order, atomically. The bytes do not depend on the number of
/// threads. Images that cannot be read, decoded or packed are left out. Leftovers of a killed
/// packing into the same file are removed. Errors: Data if too many images are bad, with their
/// count and the first one; Config if the shorter side is not 1 to 4096; Io.
PackReport write_packed_images(const ImageDataset& source, const std::filesystem::path& path,
                               const PackOptions& options);

}  // namespace millrace::io
