// SPDX-License-Identifier: Apache-2.0
#include "io/data/dataset_kinds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/imagenet.hpp"
#include "io/data/packed_images.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

template <CifarKind Kind>
bool is_cifar_in(const fs::path& directory) {
  return cifar_is_in(directory, Kind);
}

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
                  .is_in = is_cifar_in<CifarKind::Cifar100>,
                  .open = open_cifar_sets<CifarKind::Cifar100>},
      DatasetKind{.published = run::published_set("cifar-10"),
                  .is_in = is_cifar_in<CifarKind::Cifar10>,
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
