// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/dataset_kinds.hpp"
#include "train/resolve.hpp"

namespace millrace::training {
namespace {

/// Bytes of memory for caching files: a size, or no limit for "all".
std::int64_t cached_bytes(const Patch& given, const std::string& asked) {
  if (asked.empty()) return 0;
  if (asked == "all") return std::numeric_limits<std::int64_t>::max();
  const std::optional<std::int64_t> bytes = parse_bytes(asked);
  if (!bytes)
    fail(ErrorKind::Usage,
         "{}: '{}' is neither all nor a valid size; examples: 512MiB, 8GB. Leave the option out to "
         "cache nothing",
         given.find("dataset-cache")->where, asked);
  return *bytes;
}

std::array<double, 3> colours_of(const std::vector<double>& numbers) {
  return {numbers.at(0), numbers.at(1), numbers.at(2)};
}

/// How images become floats. Errors: Usage for two options that say it.
io::ImagePreset preset_of(const Patch& given, const run::DataConfig& data) {
  const run::ImageFileRequest& asked = data.images;
  io::ImagePreset preset = io::image_preset(asked.preset);
  const bool torch = data.normalisation == run::Normalisation::ImageNet;
  if (torch && asked.normalisation)
    fail(ErrorKind::Usage,
         "{} and {} contradict each other: `normalise-input` is `image-normalisation` torch",
         given.find("normalise-input")->where, given.find("image-normalisation")->where);
  if (asked.normalisation) preset.normalisation = *asked.normalisation;
  if (torch) preset.normalisation = io::ImageNormalisation::Torch;
  io::ColourStatistics statistics = preset.statistics();
  if (!asked.mean.empty()) statistics.mean = colours_of(asked.mean);
  if (!asked.deviation.empty()) statistics.deviation = colours_of(asked.deviation);
  preset.own_statistics = statistics;
  if (!asked.crop_area.empty()) {
    preset.crop.min_area = asked.crop_area.at(0);
    preset.crop.max_area = asked.crop_area.at(1);
  }
  return preset;
}

/// What the options say about files of images.
void request_images(const Patch& given, const run::DataConfig& data, io::DatasetRequest& files) {
  const run::ImageFileRequest& asked = data.images;
  files.images.preset = preset_of(given, data);
  files.open.label_offset = static_cast<std::int32_t>(asked.label_offset);
  files.open.max_bad_fraction = data.max_bad_fraction;
  if (asked.allow_missing_shards) files.open.missing = io::MissingShards::Accepted;
  if (const Setting* const typed = given.typed("label-offset"))
    files.record_options.push_back(typed->where);
  if (const Setting* const typed = given.typed("allow-missing-shards"))
    files.shard_options.push_back(typed->where);
  files.cached_bytes = cached_bytes(given, asked.cache);
}

}  // namespace

DataRequest data_request(const Patch& given, DataNeed need) {
  const run::Run asked = asked_run(given);
  const run::DataConfig& data = asked.data;
  DataRequest request;
  request.dataset = data.dataset;
  request.source = data.source;
  io::DatasetRequest& files = request.files;
  const std::optional<std::int64_t> told = told_classes(given);
  const bool reads_outputs = holds_photos(data.dataset) && asked.model.given.graph;
  if (told || reads_outputs) files.open.classes = told ? *told : asked.model.given.graph->classes;
  files.open.classes_are_told = told.has_value();
  files.validation = wants_validation(given);
  request.normalisation = data.normalisation;
  request.image = {.h = data.side, .w = data.side, .c = 3};
  files.images.side = static_cast<std::int32_t>(data.side);
  request.seed = asked.seed;
  if (request.source != run::ImageSource::Files) return request;
  files.directory = data.directory;
  if (need == DataNeed::Name) return request;
  if (data.augment) files.images.augmentation = data.augmentation;
  if (holds_photos(request.dataset)) request_images(given, data, files);
  if (files.directory.empty())
    fail(ErrorKind::Usage,
         "no directory for {}: give `data-dir` DIR or set DATA_DIR, or use `synthetic-data`",
         request.dataset);
  return request;
}

void prepare_as(const run::Preparation& preparation, DataRequest& request) {
  request.files.images.preset =
      io::preset_of(preparation, static_cast<std::int32_t>(request.image.h));
  request.normalisation =
      preparation.by_image ? run::Normalisation::Standardise : run::Normalisation::Dataset;
  constexpr double kWhite = 255.0;
  io::ChannelStatistics& small = request.files.statistics.emplace();
  for (std::size_t c = 0; c < small.mean.size(); ++c) {
    small.mean[c] = preparation.mean[c] / kWhite;
    small.deviation[c] = preparation.deviation[c] / kWhite;
  }
}

DatasetFacts published_facts(const DataRequest& request) {
  const run::PublishedSet& kind = run::published_set(request.dataset);
  return {.train_size = kind.train_size,
          .validation_size = kind.validation_size,
          .classes = kind.classes == 0 ? request.files.open.classes : kind.classes,
          .image = request.image,
          .directory = request.files.directory};
}

namespace {

/// How the options prepare the images of a validation. Nothing if that takes the training images.
std::optional<run::Preparation> preparation_of(const Patch& options, const DataRequest& request) {
  if (holds_photos(request.dataset)) {
    return io::preparation_of(preset_of(options, asked_run(options).data),
                              static_cast<std::int32_t>(request.image.h));
  }
  if (request.normalisation == run::Normalisation::ImageNet)
    return io::preparation_of(io::kImageNetStatistics);
  if (request.normalisation == run::Normalisation::Dataset) return std::nullopt;
  return run::Preparation{.by_image = true};
}

}  // namespace

DatasetFacts published_facts(const Patch& options) {
  const DataRequest request = data_request(options, DataNeed::Name);
  DatasetFacts facts = published_facts(request);
  facts.preparation = preparation_of(options, request);
  return facts;
}

}  // namespace millrace::training
