// SPDX-License-Identifier: Apache-2.0
#include "cli/datasets.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "cli/progress_line.hpp"
#include "io/data/dataset_kinds.hpp"
#include "io/data/synthetic.hpp"

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

io::ImageNormalisation scaling_named(const std::string& name) {
  if (name == "mean") return io::ImageNormalisation::MeanOnly;
  if (name == "torch") return io::ImageNormalisation::Torch;
  if (name == "nvidia2019") return io::ImageNormalisation::Nvidia2019;
  if (name == "dali2019") return io::ImageNormalisation::Dali2019;
  return io::ImageNormalisation::Nvidia;
}

io::ImageOptions image_options(const DataRequest& request) {
  io::ImageOptions options;
  options.preset = io::image_preset(request.preset);
  if (!request.picture_scaling.empty())
    options.preset.normalisation = scaling_named(request.picture_scaling);
  options.side = static_cast<std::int32_t>(request.image.h);
  options.report = [](const std::string& what) {
    fmt::print(stderr, "Bad image, replaced by another of its class: {}\n", what);
  };
  return options;
}

io::OpenOptions open_options(const DataRequest& request) {
  io::OpenOptions options;
  options.classes = request.classes;
  options.label_offset = request.label_offset;
  options.max_bad_fraction = request.max_bad_fraction;
  if (request.missing_shards) options.missing = io::MissingShards::Accepted;
  options.index.cache_folder = cache_folder();
  options.index.tell = [](const std::string& what) { fmt::print(stderr, "{}\n", what); };
  return options;
}

io::DatasetRequest dataset_request(const DataRequest& request) {
  io::DatasetRequest asked;
  asked.directory = request.directory;
  asked.validation = request.validation;
  if (request.normalisation != train::Normalisation::Standardise)
    asked.normalisation = io::CifarNormalisation::Dataset;
  if (request.normalisation == train::Normalisation::ImageNet)
    asked.statistics = io::kImageNetStatistics;
  asked.images = image_options(request);
  asked.open = open_options(request);
  asked.indexing = [](io::Split split) {
    return progress_line(fmt::format("Indexing {} images", split_name(split)));
  };
  asked.cached_bytes = request.cached_bytes;
  asked.record_options = request.typed_for_records;
  return asked;
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
  const io::DatasetKind* const found = io::dataset_in(directory);
  return found == nullptr ? "" : std::string(found->name);
}

Datasets open_datasets(const DataRequest& request) {
  if (request.source != train::ImageSource::Files) return synthetic_datasets(request);
  io::OpenedDatasets opened = io::dataset_kind(request.dataset).open(dataset_request(request));
  Datasets sets{.train = std::move(opened.train),
                .validation = std::move(opened.validation),
                .facts = {},
                .notices = std::move(opened.notices)};
  sets.facts = {.train_size = sets.train->size(),
                .validation_size = sets.validation ? sets.validation->size() : 0,
                .classes = sets.train->classes(),
                .image = sets.train->image_shape(),
                .directory = std::move(opened.directory)};
  return sets;
}

}  // namespace millrace::cli
