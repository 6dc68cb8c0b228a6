// SPDX-License-Identifier: Apache-2.0
//
// The functions of check.hpp and statistics.hpp, for packed images.
#pragma once

#include <filesystem>

#include "io/records/check.hpp"
#include "io/records/packed_pictures.hpp"
#include "io/records/statistics.hpp"

namespace millrace::io {

/// Reads every byte of a file of packed images: header, table with its sizes and labels, checksums
/// of images and boxes. Never fails: unreadable parts are findings. Progress is in images.
[[nodiscard]] CheckReport check_packed(const std::filesystem::path& path, unsigned threads,
                                       const ProgressCallback& progress);

/// Statistics from the table only, over all heights and widths. Never fails.
[[nodiscard]] PictureStatistics packed_statistics(const PackedPictures& pictures);

}  // namespace millrace::io
