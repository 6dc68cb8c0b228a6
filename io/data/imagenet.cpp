// SPDX-License-Identifier: Apache-2.0
#include "io/data/imagenet.hpp"

#include <fmt/format.h>

#include <system_error>

#include "core/error.hpp"
#include "io/data/image_folder.hpp"
#include "io/data/packed_images.hpp"

namespace millrace::io {

namespace fs = std::filesystem;

Storage storage_in(const fs::path& directory, Split split, PackedFile packed) {
  std::error_code ignored;
  if (packed == PackedFile::Counts && fs::exists(packed_path(directory, split), ignored))
    return Storage::Packed;
  if (!find_record_files(directory, split).files.empty()) return Storage::Records;
  return find_class_folders(directory, split).classes.empty() ? Storage::None : Storage::Folders;
}

std::unique_ptr<ImageDataset> open_image_dataset(const fs::path& directory, Split split,
                                                 const OpenOptions& options, PackedFile packed) {
  switch (storage_in(directory, split, packed)) {
    case Storage::Packed:
      return std::make_unique<PackedImages>(packed_path(directory, split));
    case Storage::Records:
      return std::make_unique<RecordSet>(find_record_files(directory, split), split, options);
    case Storage::Folders:
      return std::make_unique<ImageFolder>(find_class_folders(directory, split), split,
                                           options.index, options.max_bad_fraction);
    case Storage::None:
      break;
  }
  fail_no_images(directory, split, packed);
}

void fail_no_images(const fs::path& directory, Split split, PackedFile packed) {
  std::error_code ignored;
  fail(ErrorKind::Data, "no {} images in '{}'{}: searched for shards {}, for class folders in {}{}",
       split_name(split), directory.string(),
       fs::exists(directory, ignored) ? "" : " (which does not exist)",
       describe_record_places(directory, split), describe_class_places(directory, split),
       packed == PackedFile::Counts
           ? fmt::format(", and for packed images in {}", packed_path(directory, split).string())
           : "");
}

}  // namespace millrace::io
