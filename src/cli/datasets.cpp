// SPDX-License-Identifier: Apache-2.0
#include "cli/datasets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>

#include "cli/progress_line.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/cifar.hpp"
#include "io/picture_dataset.hpp"
#include "io/records/cached_source.hpp"
#include "io/records/image_folder.hpp"
#include "io/records/record_files.hpp"
#include "io/records/record_source.hpp"
#include "io/synthetic.hpp"

namespace millrace::cli {
namespace {

Datasets synthetic_datasets(const DataRequest& request) {
  Datasets sets;
  sets.facts = published_facts(request);
  io::SyntheticOptions options{.image_shape = request.image,
                               .classes = sets.facts.classes,
                               .size = sets.facts.train_size,
                               .seed = request.seed};
  sets.train = io::make_synthetic(options);
  options.size = sets.facts.validation_size;
  sets.validation = io::make_synthetic(options);
  return sets;
}

Datasets cifar_datasets(const DataRequest& request) {
  const bool ten = request.dataset == "cifar-10";
  io::CifarOptions options;
  options.kind = ten ? io::CifarKind::Cifar10 : io::CifarKind::Cifar100;
  if (request.normalisation != train::Normalisation::Standardise)
    options.normalisation = io::CifarNormalisation::Dataset;
  if (request.normalisation == train::Normalisation::ImageNet)
    options.statistics = io::kImageNetStatistics;

  Datasets sets;
  const std::filesystem::path directory =
      io::find_cifar(std::filesystem::absolute(request.directory), options.kind);
  options.split = io::CifarSplit::Train;
  sets.train = io::open_cifar(directory, options);
  if (request.validation) {
    options.split = io::CifarSplit::Test;
    sets.validation = io::open_cifar(directory, options);
  }
  sets.facts = {.train_size = sets.train->size(),
                .validation_size = sets.validation ? sets.validation->size() : 0,
                .classes = sets.train->classes(),
                .image = sets.train->image_shape(),
                .directory = directory.lexically_normal()};
  return sets;
}

io::ImageNormalisation scaling_named(const std::string& name) {
  if (name == "mean") return io::ImageNormalisation::MeanOnly;
  if (name == "torch") return io::ImageNormalisation::Torch;
  if (name == "nvidia2019") return io::ImageNormalisation::Nvidia2019;
  if (name == "dali2019") return io::ImageNormalisation::Dali2019;
  return io::ImageNormalisation::Nvidia;
}

io::PictureOptions picture_options(const DataRequest& request) {
  io::PictureOptions options;
  options.preset = io::image_preset(request.preset);
  if (!request.picture_scaling.empty())
    options.preset.normalisation = scaling_named(request.picture_scaling);
  options.side = static_cast<std::int32_t>(request.image.h);
  options.report = [](const std::string& what) {
    fmt::print(stderr, "Bad image, replaced by another of its class: {}\n", what);
  };
  return options;
}

io::SourceOptions source_options(const DataRequest& request, io::Split split) {
  io::SourceOptions options;
  options.classes = request.classes;
  options.label_offset = request.label_offset;
  options.max_bad_fraction = request.max_bad_fraction;
  if (request.missing_shards) options.missing = io::MissingShards::Accepted;
  options.packed = io::PackedFile::Counts;
  options.index.cache_folder = cache_folder();
  options.index.progress = progress_line(fmt::format("Indexing {} images", split_name(split)));
  options.index.tell = [](const std::string& what) { fmt::print(stderr, "{}\n", what); };
  return options;
}

/// The rest of --dataset-cache, shared by all sets of a run.
using Budget = std::shared_ptr<io::CacheBudget>;

/// Errors: Usage for options that apply only to TFRecord files, if the set has none.
void refuse_record_options(const DataRequest& request, std::string_view what) {
  if (!request.typed_for_records.empty())
    fail(ErrorKind::Usage, "{} has no effect here: it needs TFRecord files, but {} holds {}",
         request.typed_for_records.front(), request.directory.string(), what);
}

/// Packed images are preferred to the files that they were made from.
std::shared_ptr<const io::Dataset> open_pictures(const DataRequest& request, io::Split split,
                                                 const Budget& budget,
                                                 std::vector<std::string>& notices) {
  const std::filesystem::path packed = io::packed_path(request.directory, split);
  if (std::filesystem::exists(packed)) {
    refuse_record_options(request, "packed images");
    if (request.cached_bytes > 0)
      notices.push_back(
          fmt::format("--dataset-cache has no effect on {}: the system keeps its pages in memory",
                      packed.string()));
    return io::make_packed_dataset(std::make_shared<io::PackedPictures>(packed), "packed pictures",
                                   picture_options(request));
  }
  if (!request.typed_for_records.empty() && io::holds_pictures(request.directory, split) &&
      io::find_record_files(request.directory, split).files.empty())
    refuse_record_options(request, "class folders");
  std::shared_ptr<const io::EncodedSource> source =
      io::open_encoded_source(request.directory, split, source_options(request, split));
  std::ranges::transform(source->notices(), std::back_inserter(notices), printable);
  if (request.cached_bytes > 0)
    source = std::make_shared<io::CachedSource>(std::move(source), budget);
  return io::make_picture_dataset(std::move(source), picture_options(request));
}

Datasets picture_datasets(const DataRequest& request) {
  Datasets sets;
  const auto budget = std::make_shared<io::CacheBudget>(request.cached_bytes);
  sets.train = open_pictures(request, io::Split::Train, budget, sets.notices);
  if (request.validation)
    sets.validation = open_pictures(request, io::Split::Validation, budget, sets.notices);
  sets.facts = {.train_size = sets.train->size(),
                .validation_size = sets.validation ? sets.validation->size() : 0,
                .classes = sets.train->classes(),
                .image = sets.train->image_shape(),
                .directory = std::filesystem::absolute(request.directory).lexically_normal()};
  return sets;
}

bool holds_training_pictures(const std::filesystem::path& directory) {
  return std::filesystem::exists(io::packed_path(directory, io::Split::Train)) ||
         io::holds_pictures(directory, io::Split::Train);
}

bool holds_cifar(const std::filesystem::path& directory, io::CifarKind kind) {
  try {
    (void)io::find_cifar(directory, kind);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::filesystem::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return std::filesystem::path(cache) / "millrace";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::filesystem::path(home) / ".cache" / "millrace";
  return {};
}

std::string find_dataset(const std::filesystem::path& directory) {
  const bool ten = holds_cifar(directory, io::CifarKind::Cifar10);
  const bool hundred = holds_cifar(directory, io::CifarKind::Cifar100);
  if (ten && hundred)
    fail(ErrorKind::Usage,
         "{}: holds both CIFAR-10 and CIFAR-100: choose one with --dataset cifar-10 or cifar-100",
         directory.string());
  if (ten || hundred) return ten ? "cifar-10" : "cifar-100";
  return holds_training_pictures(directory) ? "imagenet" : "";
}

Datasets open_datasets(const DataRequest& request) {
  if (request.source != train::ImageSource::Files) return synthetic_datasets(request);
  return request.dataset.starts_with("cifar") ? cifar_datasets(request) : picture_datasets(request);
}

}  // namespace millrace::cli
