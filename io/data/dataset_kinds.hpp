// SPDX-License-Identifier: Apache-2.0
//
// The data sets that a training can name. A new one is one file and one row of the table in
// dataset_kinds.cpp, which opens it, and one of src/run/published_set.cpp, with its sizes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/cifar.hpp"
#include "io/data/class_folders.hpp"
#include "io/data/image_dataset.hpp"
#include "io/data/record_set.hpp"
#include "run/published_set.hpp"

namespace millrace::io {

/// What a training asks of its data set. Each set reads the part that concerns it.
struct DatasetRequest {
  std::filesystem::path directory;
  bool train = true;       ///< whether training images are needed
  bool validation = true;  ///< whether validation images are needed
  // small images
  CifarNormalisation normalisation = CifarNormalisation::Standardise;
  std::optional<ChannelStatistics> statistics = {};
  // images of any size
  ImageOptions images = {};
  OpenOptions open = {};
  std::function<ProgressCallback(Split)> indexing = {};  ///< shows that a split is being indexed
  std::int64_t cached_bytes = 0;                 ///< of stored images that may stay in memory
  std::vector<std::string> record_options = {};  ///< options that need TFRecord files, for messages
  std::vector<std::string> shard_options = {};   ///< those that need them or WebDataset archives
};

/// The splits of a set; nullptr for one that was not requested.
struct OpenedDatasets {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;
  std::filesystem::path directory;        ///< where the set was found
  std::vector<std::string> notices = {};  ///< shown once, e.g. bad records that were left out
};

struct DatasetKind {
  const run::PublishedSet& published;
  /// Whether the set is in a directory or below it, judged by the names of files.
  bool (*is_in)(const std::filesystem::path& directory);
  /// Errors: Data if the set is missing or damaged; Usage for options that do not apply; Io.
  OpenedDatasets (*open)(const DatasetRequest& request);
};

/// All rows, in the order in which they are searched for.
[[nodiscard]] std::span<const DatasetKind> dataset_kinds();

/// The row of this name. Error(Internal) if there is none.
[[nodiscard]] const DatasetKind& dataset_kind(std::string_view name);

/// The row whose files are in `directory` or a folder below it; nullptr if none. Errors: Usage if
/// there are two.
[[nodiscard]] const DatasetKind* dataset_in(const std::filesystem::path& directory);

// ImageNet, and any set like it, in one of its forms of storage.

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
