// SPDX-License-Identifier: Apache-2.0
#include "io/data/dataset_kinds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/archive_set.hpp"
#include "io/data/class_names.hpp"
#include "io/data/files.hpp"
#include "io/data/packed_images.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

// ImageNet in its forms of storage.

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

// The table of sets.

namespace {

template <CifarKind Kind>
OpenedDatasets open_cifar_sets(const DatasetRequest& request) {
  const fs::path directory = find_cifar(fs::absolute(request.directory), Kind);
  CifarOptions options{.kind = Kind,
                       .split = Split::Train,
                       .normalisation = request.normalisation,
                       .statistics = request.statistics,
                       .augmentation = request.images.augmentation};
  OpenedDatasets sets{
      .train = nullptr, .validation = nullptr, .directory = directory.lexically_normal()};
  if (request.train) sets.train = open_cifar(directory, options);
  options.split = Split::Validation;
  if (request.validation) sets.validation = open_cifar(directory, options);
  return sets;
}

bool imagenet_is_in(const fs::path& directory) {
  return storage_in(directory, Split::Train, PackedFile::Counts) != Storage::None ||
         storage_in(directory, Split::Validation, PackedFile::Counts) != Storage::None;
}

/// Errors: Usage for options that need another form of storage than the set has.
void check_shard_options(const DatasetRequest& request, Storage storage) {
  const auto refuse = [&](const std::vector<std::string>& options, std::string_view needed) {
    if (!options.empty())
      fail(ErrorKind::Usage, "{} has no effect here: it needs {}, but {} holds {}", options.front(),
           needed, request.directory.string(), describe(storage));
  };
  if (storage == Storage::Records || storage == Storage::None) return;
  refuse(request.record_options, "TFRecord files");
  if (storage != Storage::Archives)
    refuse(request.shard_options, "TFRecord files or WebDataset archives");
}

/// `cached_bytes` is what is left of the request's; what the split may keep is subtracted.
std::shared_ptr<const Dataset> open_images(const DatasetRequest& request, Split split,
                                           std::int64_t& cached_bytes,
                                           std::vector<std::string>& notices) {
  const Storage storage = storage_in(request.directory, split, PackedFile::Counts);
  check_shard_options(request, storage);
  OpenOptions options = request.open;
  if (request.indexing) options.index.progress = request.indexing(split);
  const std::shared_ptr<ImageDataset> set =
      open_image_dataset(request.directory, split, options, PackedFile::Counts);
  std::ranges::transform(set->notices(), std::back_inserter(notices), printable);
  set->prepare_for(request.images);
  if (cached_bytes == 0) return set;
  if (storage == Storage::Packed)
    notices.push_back(
        fmt::format("`dataset-cache` has no effect on {}: the system keeps its pages in memory",
                    packed_path(request.directory, split).string()));
  else
    set->keep_in_memory(cached_bytes);
  cached_bytes -= set->kept_bytes();
  return set;
}

OpenedDatasets open_imagenet_sets(const DatasetRequest& request) {
  OpenedDatasets sets;
  std::int64_t cached_bytes = request.cached_bytes;
  if (request.train) sets.train = open_images(request, Split::Train, cached_bytes, sets.notices);
  if (request.validation)
    sets.validation = open_images(request, Split::Validation, cached_bytes, sets.notices);
  sets.directory = fs::absolute(request.directory).lexically_normal();
  return sets;
}

}  // namespace

std::span<const DatasetKind> dataset_kinds() {
  static const std::array all = {
      DatasetKind{.published = run::published_set("imagenet"),
                  .is_in = imagenet_is_in,
                  .open = open_imagenet_sets},
      DatasetKind{.published = run::published_set("cifar-100"),
                  .is_in = [](const fs::path& d) { return cifar_is_in(d, CifarKind::Cifar100); },
                  .open = open_cifar_sets<CifarKind::Cifar100>},
      DatasetKind{.published = run::published_set("cifar-10"),
                  .is_in = [](const fs::path& d) { return cifar_is_in(d, CifarKind::Cifar10); },
                  .open = open_cifar_sets<CifarKind::Cifar10>},
  };
  return all;
}

const DatasetKind& dataset_kind(std::string_view name) {
  const std::span<const DatasetKind> kinds = dataset_kinds();
  const auto found =
      std::ranges::find(kinds, name, [](const DatasetKind& kind) { return kind.published.name; });
  MILLRACE_ASSERT(found != kinds.end());
  return *found;
}

const DatasetKind* dataset_in(const fs::path& directory) {
  // A set with files of its own comes before class folders of any kind.
  const DatasetKind* found = nullptr;
  for (const bool photos : {false, true})
    for (const DatasetKind& kind : dataset_kinds()) {
      if (kind.published.photos != photos || (photos && found != nullptr) || !kind.is_in(directory))
        continue;
      if (found != nullptr)
        fail(ErrorKind::Usage, "{}: holds both {} and {}: choose one with `dataset` {} or {}",
             directory.string(), kind.published.title, found->published.title, kind.published.name,
             found->published.name);
      found = &kind;
    }
  return found;
}

}  // namespace millrace::io
