// SPDX-License-Identifier: Apache-2.0
#include "io/data/imagenet.hpp"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "io/data/annotations.hpp"
#include "io/data/archive_set.hpp"
#include "io/data/class_names.hpp"
#include "io/data/class_numbers.hpp"
#include "io/data/files.hpp"
#include "io/data/image_folder.hpp"
#include "io/data/packed_images.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

/// What people call classes, as shipped with tiny-imagenet: "n01443537\tgoldfish".
constexpr std::string_view kWords = "words.txt";

std::unique_ptr<AnnotatedImages> open_annotated(const fs::path& directory, Split split,
                                                const OpenOptions& options);
std::unique_ptr<ArchiveSet> open_archives(const fs::path& directory, Split split,
                                          const OpenOptions& options);

KnownClasses complete_classes(std::vector<std::string> names) {
  KnownClasses known{.names = std::move(names), .count = 0, .complete = true};
  known.count = std::ssize(known.names);
  return known;
}

/// The classes of the training images, where these tell them.
std::optional<KnownClasses> trained_classes(const fs::path& directory, const OpenOptions& options) {
  switch (storage_in(directory, Split::Train, PackedFile::CountsNot, options.given)) {
    case Storage::Folders:
      return complete_classes(class_folders_in(directory, Split::Train, options).classes);
    case Storage::Annotated:
      return open_annotated(directory, Split::Train, options)->known();
    case Storage::Archives:
      return open_archives(directory, Split::Train, options)->known();
    case Storage::Packed:
    case Storage::Records:
    case Storage::None:
      break;
  }
  return std::nullopt;
}

/// The classes that number the images of a split: those of the file that is given, or, for
/// validation, those of the training images.
KnownClasses known_classes(const fs::path& directory, Split split, const OpenOptions& options) {
  KnownClasses known;
  if (!options.given.class_list.empty()) {
    known = complete_classes(read_class_file(options.given.class_list).names);
    known.source = "classes of `class-list`";
    return known;
  }
  const auto trained =
      split == Split::Validation ? trained_classes(directory, options) : std::nullopt;
  if (trained) {
    known = *trained;
    known.source = "classes of the training images";
  } else if (options.classes_are_told) {
    known.count = options.classes;
  }
  return known;
}

/// The file with what people call the classes: that of class names may say it, too.
fs::path words_in(const fs::path& directory, const OpenOptions& options) {
  const fs::path& names = options.given.class_list;
  return names.empty() ? directory / kWords : names;
}

std::unique_ptr<AnnotatedImages> open_annotated(const fs::path& directory, Split split,
                                                const OpenOptions& options) {
  return std::make_unique<AnnotatedImages>(
      find_annotations(directory, split, options.given.annotations(split)), directory, split,
      known_classes(directory, split, options), options.index, options.max_bad_fraction,
      words_in(directory, options));
}

std::unique_ptr<ArchiveSet> open_archives(const fs::path& directory, Split split,
                                          const OpenOptions& options) {
  return std::make_unique<ArchiveSet>(find_archives(directory, split), split,
                                      known_classes(directory, split, options), options,
                                      words_in(directory, options));
}

/// A set that stores its classes as numbers, with the names of the list that is given. Errors: Data
/// if there are not as many; the number of classes of TFRecord files is what the user says.
std::unique_ptr<ImageDataset> named(std::unique_ptr<ImageDataset> set, Storage storage,
                                    const OpenOptions& options) {
  const fs::path& list = options.given.class_list;
  if (list.empty()) return set;
  const auto names = std::ssize(read_class_names(list));
  if (storage == Storage::Records && !options.classes_are_told && names != set->classes())
    fail(ErrorKind::Data, "{}: {} names of classes, but there are {} classes: give `classes` {}",
         list.string(), names, set->classes(), names);
  set->name_classes(list);
  return set;
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

Storage storage_in(const fs::path& directory, Split split, PackedFile packed,
                   const GivenFiles& given) {
  std::error_code ignored;
  if (!given.annotations(split).empty()) return Storage::Annotated;
  if (packed == PackedFile::Counts && fs::exists(packed_path(directory, split), ignored))
    return Storage::Packed;
  if (!find_record_files(directory, split).files.empty()) return Storage::Records;
  if (!find_archives(directory, split).files.empty()) return Storage::Archives;
  if (!find_annotations(directory, split, {}).empty()) return Storage::Annotated;
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
    case Storage::Annotated:
      return "images with an annotation file";
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
         "class folders: give the names of the folders by number with `class-list`",
         directory.string());
  return find_class_folders(directory, split, known);
}

std::unique_ptr<ImageDataset> open_image_dataset(const fs::path& directory, Split split,
                                                 const OpenOptions& options, PackedFile packed) {
  switch (storage_in(directory, split, packed, options.given)) {
    case Storage::Packed:
      return named(std::make_unique<PackedImages>(packed_path(directory, split)), Storage::Packed,
                   options);
    case Storage::Records:
      return named(std::make_unique<RecordSet>(find_record_files(directory, split), split, options),
                   Storage::Records, options);
    case Storage::Archives:
      return open_archives(directory, split, options);
    case Storage::Annotated:
      return open_annotated(directory, split, options);
    case Storage::Folders:
      return std::make_unique<ImageFolder>(class_folders_in(directory, split, options), split,
                                           options.index, options.max_bad_fraction,
                                           words_in(directory, options));
    case Storage::None:
      break;
  }
  fail_no_images(directory, split, packed);
}

void fail_no_images(const fs::path& directory, Split split, PackedFile packed) {
  std::error_code ignored;
  fail(ErrorKind::Data,
       "no {} images in '{}'{}: searched for shards {}, for archives {}, for class folders in {}, "
       "for lists of images {}{}{}",
       split_name(split), directory.string(),
       fs::exists(directory, ignored) ? "" : " (which does not exist)",
       describe_record_places(directory, split), describe_archive_places(directory, split),
       describe_class_places(directory, split), describe_annotation_places(directory, split),
       packed == PackedFile::Counts
           ? fmt::format(", and for packed images in {}", packed_path(directory, split).string())
           : "",
       hint_at_inner(directory, split));
}

}  // namespace millrace::io
