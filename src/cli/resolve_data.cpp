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

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/dataset_kinds.hpp"
#include "models/networks.hpp"

namespace millrace::cli {
namespace {

std::string dataset_in(std::string_view directory) {
  const io::DatasetKind* const named = io::dataset_named_in(directory);
  return named == nullptr ? "" : std::string(named->name);
}

/// Bytes of memory for caching files: a size, or no limit for "all".
std::int64_t cached_bytes(const Options& given, const std::string& asked) {
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
io::ImagePreset preset_of(const Options& given, const train::DataConfig& data) {
  const train::ImageFileRequest& asked = data.images;
  io::ImagePreset preset = io::image_preset(asked.preset);
  const bool torch = data.normalisation == train::Normalisation::ImageNet;
  if (torch && asked.normalisation)
    fail(ErrorKind::Usage,
         "{} and {} contradict each other: --normalise-input is --image-normalisation torch",
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
void request_images(const Options& given, const train::DataConfig& data,
                    io::DatasetRequest& files) {
  const train::ImageFileRequest& asked = data.images;
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

train::ImageSource image_source(const Options& options) {
  if (options.flag("generated-data")) return train::ImageSource::Host;
  return options.flag("synthetic-data") ? train::ImageSource::Device : train::ImageSource::Files;
}

std::string dataset_name(const Options& options) {
  if (const auto name = options.text("dataset")) return *name;
  const std::optional<std::string> directory = options.text("data-dir");
  if (image_source(options) != train::ImageSource::Files && !directory)
    fail(ErrorKind::Usage, "--{} needs --dataset: give the data set that it stands for",
         options.flag("synthetic-data") ? "synthetic-data" : "generated-data");
  if (!directory)
    fail(ErrorKind::Usage,
         "no data set: give --data-dir DIR or set DATA_DIR, or use --dataset with "
         "--synthetic-data");
  std::string name = dataset_in(*directory);
  if (name.empty())
    fail(ErrorKind::Usage,
         "{} '{}' does not name a known data set: give --dataset cifar-10, cifar-100 or imagenet",
         options.find("data-dir")->where, *directory);
  return name;
}

bool wants_validation(const Options& options) {
  if (const auto mode = options.text("validation-mode")) return *mode != "none";
  return !options.flag("no-validation");
}

void resolve_data(const DatasetFacts& facts, const MachineFacts& machine,
                  train::TrainConfig& config) {
  train::DataConfig& data = config.data;
  data.train_size = facts.train_size;
  data.validation_size = facts.validation_size;
  data.class_names = facts.class_names;
  data.preparation = facts.preparation;
  data.image_type = data.asked_type;
  // The tensors are the same, and there is less to copy.
  const bool copies = machine.copies_images && !data.image_type && !data.normalises_on_host;
  if (data.sends_bytes || copies) data.image_type = data.image_type.value_or(DType::U8);
  if (data.source != train::ImageSource::Files)
    data.directory.clear();  // recipes name it anyway, and its path may name the data set
  else if (!facts.directory.empty())
    data.directory = facts.directory;
}

bool dataset_is_told(const Options& options) {
  const std::optional<std::string> directory = options.text("data-dir");
  return options.text("dataset") || !directory || !dataset_in(*directory).empty();
}

DataRequest data_request(const Options& given, DataNeed need) {
  const train::TrainConfig asked = asked_config(given);
  const train::DataConfig& data = asked.data;
  DataRequest request;
  request.dataset = data.dataset;
  request.quiet = is_quiet(given);
  request.source = data.source;
  io::DatasetRequest& files = request.files;
  const std::optional<std::int64_t> told = told_classes(given);
  const bool reads_outputs = data.dataset == kImageNet && asked.model.given.graph;
  if (told || reads_outputs) files.open.classes = told ? *told : asked.model.given.graph->classes;
  files.open.classes_are_told = told.has_value();
  files.validation = wants_validation(given);
  request.normalisation = data.normalisation;
  request.image = {.h = data.side, .w = data.side, .c = 3};
  files.images.side = static_cast<std::int32_t>(data.side);
  request.seed = asked.seed;
  if (request.source != train::ImageSource::Files) return request;
  files.directory = data.directory;
  if (need == DataNeed::Name) return request;
  if (data.augment) files.images.augmentation = data.augmentation;
  if (request.dataset == kImageNet) request_images(given, data, files);
  if (files.directory.empty())
    fail(ErrorKind::Usage,
         "no directory for {}: give --data-dir DIR or set DATA_DIR, or use --synthetic-data",
         request.dataset);
  return request;
}

DatasetFacts published_facts(const DataRequest& request) {
  const io::DatasetKind& kind = io::dataset_kind(request.dataset);
  return {.train_size = kind.train_size,
          .validation_size = kind.validation_size,
          .classes = kind.classes == 0 ? request.files.open.classes : kind.classes,
          .image = request.image,
          .directory = request.files.directory};
}

namespace {

/// How the options prepare the images of a validation. Nothing if that takes the training images.
std::optional<io::Preparation> preparation_of(const Options& options, const DataRequest& request) {
  if (request.dataset == kImageNet) {
    return io::preparation_of(preset_of(options, asked_config(options).data),
                              static_cast<std::int32_t>(request.image.h));
  }
  if (request.normalisation == train::Normalisation::ImageNet)
    return io::preparation_of(io::kImageNetStatistics);
  if (request.normalisation == train::Normalisation::Dataset) return std::nullopt;
  return io::Preparation{.by_image = true};
}

}  // namespace

DatasetFacts published_facts(const Options& options) {
  const DataRequest request = data_request(options, DataNeed::Name);
  DatasetFacts facts = published_facts(request);
  facts.preparation = preparation_of(options, request);
  return facts;
}

}  // namespace millrace::cli
