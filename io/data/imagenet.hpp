// SPDX-License-Identifier: Apache-2.0
//
// ImageNet, and any set like it, in one of three forms of storage.
#pragma once

#include <filesystem>
#include <memory>

#include "io/data/image_dataset.hpp"
#include "io/data/record_set.hpp"

namespace millrace::io {

enum class Storage : std::uint8_t { None, Packed, Records, Folders };

/// Whether files of packed images count. They are preferred to the files that they were made from.
enum class PackedFile : std::uint8_t { CountsNot, Counts };

/// The form in which `directory` holds the images of a split. Errors: as find_record_files and
/// find_class_folders.
[[nodiscard]] Storage storage_in(const std::filesystem::path& directory, Split split,
                                 PackedFile packed);

/// Opens the images of a split. Errors: Data, naming all places searched, if there are none; those
/// of the form of storage.
[[nodiscard]] std::unique_ptr<ImageDataset> open_image_dataset(
    const std::filesystem::path& directory, Split split, const OpenOptions& options,
    PackedFile packed = PackedFile::CountsNot);

/// Throws Error(Data) for a directory without images, with all places searched.
[[noreturn]] void fail_no_images(const std::filesystem::path& directory, Split split,
                                 PackedFile packed);

}  // namespace millrace::io
