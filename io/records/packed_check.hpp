// SPDX-License-Identifier: Apache-2.0
//
// What check.hpp and statistics.hpp say of files with encoded pictures, of packed ones.
#pragma once

#include <filesystem>

#include "io/records/check.hpp"
#include "io/records/packed_pictures.hpp"
#include "io/records/statistics.hpp"

namespace millrace::io {

/// Reads every byte of a file of packed pictures: head, table with its sizes and labels, checksums
/// of pictures and boxes. Never fails: what cannot be read is a finding. Progress is in pictures.
[[nodiscard]] CheckReport check_packed(const std::filesystem::path& path, unsigned threads,
                                       const ProgressCallback& progress);

/// From the table alone: all heights and widths are measured. Errors: none.
[[nodiscard]] PictureStatistics packed_statistics(const PackedPictures& pictures);

}  // namespace millrace::io
