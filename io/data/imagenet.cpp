// SPDX-License-Identifier: Apache-2.0
#include "io/data/imagenet.hpp"

#include <fmt/format.h>

#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "io/data/archive_set.hpp"
#include "io/data/class_names.hpp"
#include "io/data/files.hpp"
#include "io/data/image_folder.hpp"
#include "io/data/packed_images.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

/// What people call classes, as shipped with tiny-imagenet: "n01443537\tgoldfish".
constexpr std::string_view kWords = "words.txt";

std::unique_ptr<ArchiveSet> open_archives(const fs::path& directory, Split split,
                                          const OpenOptions& options);

/// The classes that number the images of a split: for validation those of the training images,
/// where these tell them.
KnownClasses known_classes(const fs::path& directory, Split split, const OpenOptions& options) {
  const Storage training = split == Split::Validation
                               ? storage_in(directory, Split::Train, PackedFile::CountsNot)
                               : Storage::None;
  if (training == Storage::Archives)
    return open_archives(directory, Split::Train, options)->known();
  KnownClasses known;
  if (training == Storage::Folders) {
    known.names = class_folders_in(directory, Split::Train, options).classes;
    known.count = std::ssize(known.names);
    known.complete = true;
  } else if (options.classes_are_told) {
    known.count = options.classes;
  }
  return known;
}

std::unique_ptr<ArchiveSet> open_archives(const fs::path& directory, Split split,
                                          const OpenOptions& options) {
  return std::make_unique<ArchiveSet>(find_archives(directory, split), split,
                                      known_classes(directory, split, options), options,
                                      directory / kWords);
}

/// "; DIR/tiny-imagenet-200 holds images: .." if a folder in the directory is a set.
std::string hint_at_inner(const fs::path& directory, Split split) {
  for (const std::string& name : list_folder(directory).folders)
    if (!has_split_name(name) &&
        storage_in(directory / name, split, PackedFile::Counts) != Storage::None)
      return fmt::format("; {0} holds images: name it with `data-dir` {0}",
                         (directory / name).string());
  return "";
}

}  // namespace

Storage storage_in(const fs::path& directory, Split split, PackedFile packed) {
  std::error_code ignored;
  if (packed == PackedFile::Counts && fs::exists(packed_path(directory, split), ignored))
    return Storage::Packed;
  if (!find_record_files(directory, split).files.empty()) return Storage::Records;
  if (!find_archives(directory, split).files.empty()) return Storage::Archives;
  return has_class_folders(directory, split) ? Storage::Folders : Storage::None;
}

std::string describe(Storage storage) {
  switch (storage) {
    case Storage::None:
      break;
    case Storage::Packed:
      return "packed images";
    case Storage::Records:
      return "TFRecord files";
    case Storage::Archives:
      return "WebDataset archives";
    case Storage::Folders:
      return "class folders";
  }
  return "no images";
}

ClassFolders class_folders_in(const fs::path& directory, Split split, const OpenOptions& options) {
  if (!has_class_folders(directory, split)) return {};
  const KnownClasses known = known_classes(directory, split, options);
  if (known.complete && known.names.empty())
    fail(ErrorKind::Data,
         "{}: the classes of the training images are numbers, but the validation images lie in "
         "class folders: store both in one form",
         directory.string());
  return find_class_folders(directory, split, known);
}

std::unique_ptr<ImageDataset> open_image_dataset(const fs::path& directory, Split split,
                                                 const OpenOptions& options, PackedFile packed) {
  switch (storage_in(directory, split, packed)) {
    case Storage::Packed:
      return std::make_unique<PackedImages>(packed_path(directory, split));
    case Storage::Records:
      return std::make_unique<RecordSet>(find_record_files(directory, split), split, options);
    case Storage::Archives:
      return open_archives(directory, split, options);
    case Storage::Folders:
      return std::make_unique<ImageFolder>(class_folders_in(directory, split, options), split,
                                           options.index, options.max_bad_fraction,
                                           directory / kWords);
    case Storage::None:
      break;
  }
  fail_no_images(directory, split, packed);
}

void fail_no_images(const fs::path& directory, Split split, PackedFile packed) {
  std::error_code ignored;
  fail(ErrorKind::Data,
       "no {} images in '{}'{}: searched for shards {}, for archives {}, and for class folders "
       "in {}{}{}",
       split_name(split), directory.string(),
       fs::exists(directory, ignored) ? "" : " (which does not exist)",
       describe_record_places(directory, split), describe_archive_places(directory, split),
       describe_class_places(directory, split),
       packed == PackedFile::Counts
           ? fmt::format(", and for packed images in {}", packed_path(directory, split).string())
           : "",
       hint_at_inner(directory, split));
}

}  // namespace millrace::io
