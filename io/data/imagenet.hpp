// SPDX-License-Identifier: Apache-2.0
//
// ImageNet, and any set like it, in one of its forms of storage.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "io/data/class_folders.hpp"
#include "io/data/image_dataset.hpp"
#include "io/data/record_set.hpp"

namespace millrace::io {

enum class Storage : std::uint8_t { None, Packed, Records, Archives, Folders };

/// Whether files of packed images count. They are preferred to the files that they were made from.
enum class PackedFile : std::uint8_t { CountsNot, Counts };

/// The form in which `directory` holds the images of a split. Errors: as find_record_files.
[[nodiscard]] Storage storage_in(const std::filesystem::path& directory, Split split,
                                 PackedFile packed);
/// "class folders", for messages.
[[nodiscard]] std::string describe(Storage storage);

/// Opens the images of a split. Errors: Data, naming all places searched, if there are none; those
/// of the form of storage.
[[nodiscard]] std::unique_ptr<ImageDataset> open_image_dataset(
    const std::filesystem::path& directory, Split split, const OpenOptions& options,
    PackedFile packed = PackedFile::CountsNot);

/// The class folders of a split, with the numbers of all classes of the set; none if there are no
/// folders. Errors: Data for classes without a number; those of the training images.
[[nodiscard]] ClassFolders class_folders_in(const std::filesystem::path& directory, Split split,
                                            const OpenOptions& options);

/// Throws Error(Data) for a directory without images, with all places searched.
[[noreturn]] void fail_no_images(const std::filesystem::path& directory, Split split,
                                 PackedFile packed);

}  // namespace millrace::io
