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

#include "cli/option_rows.hpp"
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

void resolve_mixing_form(Reader& read, train::MixingConfig& mixing) {
  if (!mixing.on()) return;
  mixing.form = read.text("mixing-form") == "rolled" ? train::MixingForm::Rolled
                                                     : train::MixingForm::Reversed;
}

/// The numbers in the value of an option, "2,9". Errors: Usage, with an example, unless there are
/// `fewest` to `most` numbers that `accept` takes.
std::vector<double> numbers_of(Reader& read, std::string_view name, std::size_t fewest,
                               std::size_t most,
                               const std::function<bool(const std::vector<double>&)>& accept,
                               std::string_view expected) {
  const std::string text = read.text(name, "");
  std::vector<double> numbers;
  bool good = true;
  for (const std::string& word : split_list(text)) {
    const std::optional<double> number = parse_number<double>(word);
    good = good && number && std::isfinite(*number) && *number >= 0.0;
    numbers.push_back(number.value_or(0.0));
  }
  if (!good || numbers.size() < fewest || numbers.size() > most || !accept(numbers))
    fail(ErrorKind::Usage, "{}: '{}' is not {}", read.where(name), printable(text), expected);
  return numbers;
}

/// Augmentation besides crop and mirror. Errors: Usage for values that are not in range.
io::Augmentation augmentation_of(Reader& read) {
  io::Augmentation augmentation;
  if (read.given("randaugment")) {
    const auto accept = [](const std::vector<double>& n) {
      return n[0] == std::floor(n[0]) && n[1] == std::floor(n[1]) && n[0] >= 1.0 &&
             n[0] <= io::kMostOperations && n[1] <= io::kMostMagnitude;
    };
    const std::vector<double> numbers =
        numbers_of(read, "randaugment", 2, 2, accept,
                   fmt::format("N,M: 1 to {} operations of a magnitude of 0 to {}, for example 2,9",
                               io::kMostOperations, io::kMostMagnitude));
    augmentation.operations = static_cast<std::int32_t>(numbers[0]);
    augmentation.magnitude = static_cast<std::int32_t>(numbers[1]);
  }
  if (read.given("color-jitter")) {
    constexpr double kMostFactor = 10.0;
    constexpr double kMostHue = 0.5;
    const auto accept = [](const std::vector<double>& n) {
      return std::ranges::max(n) <= kMostFactor && n.size() != 2 &&
             (n.size() < 4 || n[3] <= kMostHue);
    };
    std::vector<double> numbers =
        numbers_of(read, "color-jitter", 1, 4, accept,
                   fmt::format("X, B,C,S or B,C,S,H: numbers from 0 to {:g}, for the hue to {:g}, "
                               "for example 0.4 or 0.4,0.4,0.4,0.1",
                               kMostFactor, kMostHue));
    if (numbers.size() == 1) numbers.assign(3, numbers[0]);  // as timm reads it
    augmentation.brightness = numbers[0];
    augmentation.contrast = numbers[1];
    augmentation.saturation = numbers[2];
    if (numbers.size() == 4) augmentation.hue = numbers[3];
  }
  if (read.given("random-erasing")) augmentation.erasing = read.real("random-erasing");
  return augmentation;
}

/// The data type in which images are sent to the device, if given.
std::optional<DType> image_type(Reader& read) {
  // Two names for this setting, and one for its opposite.
  const bool bytes = read.options().flag("no-hostside-norm") || read.options().flag("eight-bit-io");
  read.note("no-hostside-norm", bytes);
  for (const char* name : {"hostside-norm", "eight-bit-io"}) read.use(name);
  if (!read.given("data-loader-image-type")) return bytes ? std::optional(DType::U8) : std::nullopt;
  const std::string name = read.text("data-loader-image-type", "");
  for (const DType type : {DType::U8, DType::F32, DType::BF16, DType::F16})
    if (name == name_of(type)) return type;
  fail(ErrorKind::Internal, "--data-loader-image-type: {} has no type", name);
}

/// Bytes of memory for caching files: a size, or no limit for "all".
std::int64_t cached_bytes(Reader& read) {
  if (read.options().flag("no-dataset-cache") || !read.given("dataset-cache")) {
    read.use("no-dataset-cache");
    return 0;
  }
  const std::string text = read.text("dataset-cache", "");
  if (text == "all") return std::numeric_limits<std::int64_t>::max();
  const std::optional<std::int64_t> bytes = parse_bytes(text);
  if (!bytes)
    fail(ErrorKind::Usage,
         "{}: '{}' is neither all nor a valid size; examples: 512MiB, 8GB. Leave the option out to "
         "cache nothing",
         read.where("dataset-cache"), text);
  return *bytes;
}

/// Files beside the images, by their full paths: a run may be restored from another folder.
io::GivenFiles given_files(Reader& read) {
  io::GivenFiles given;
  for (const auto& [name, member] : {std::pair{"train-annotations", &given.train_annotations},
                                     {"validation-annotations", &given.validation_annotations},
                                     {"class-list", &given.class_list}}) {
    if (!read.given(name)) continue;
    *member = std::filesystem::absolute(read.text(name, "")).lexically_normal();
    read.note(name, member->string());
  }
  return given;
}

/// The three numbers of --image-mean or --image-deviation.
std::array<double, 3> colours_of(Reader& read, std::string_view name) {
  std::array<double, 3> colours{};
  const std::vector<std::string> words = split_list(read.text(name, ""), ',');
  bool good = words.size() == colours.size();
  for (std::size_t c = 0; good && c < colours.size(); ++c) {
    const auto number = parse_number<double>(words[c]);
    good = number && std::isfinite(*number) && (name == "image-mean" || *number > 0.0);
    colours[c] = number.value_or(0.0);
  }
  if (!good)
    fail(ErrorKind::Usage, "{}: '{}' is not three {}numbers, such as 58.395,57.12,57.375",
         read.where(name), join(words, ","), name == "image-mean" ? "" : "positive ");
  return colours;
}

/// Options for reading ImageNet files; marked as used where such files are read.
void resolve_images(Reader& read, io::DatasetRequest& files) {
  io::ImagePreset& preset = files.images.preset;
  preset = io::image_preset(read.text("image-preset"));
  const bool normalised = read.flag("normalise-input");
  if (normalised && read.given("image-normalisation"))
    fail(ErrorKind::Usage,
         "{} and {} contradict each other: --normalise-input is --image-normalisation torch",
         read.where("normalise-input"), read.where("image-normalisation"));
  if (read.given("image-normalisation"))
    preset.normalisation = static_cast<io::ImageNormalisation>(
        index_of_choice(*find_option("image-normalisation"), read.text("image-normalisation", "")));
  if (normalised) preset.normalisation = io::ImageNormalisation::Torch;
  io::ColourStatistics statistics = preset.statistics();
  if (read.given("image-mean")) statistics.mean = colours_of(read, "image-mean");
  if (read.given("image-deviation")) statistics.deviation = colours_of(read, "image-deviation");
  preset.own_statistics = statistics;
  if (read.given("crop-area")) {
    const std::vector<double> area = read.reals("crop-area");
    if (area.size() != 2)
      fail(ErrorKind::Usage, "{}: {} number(s), but a range has two, such as 0.08 1",
           read.where("crop-area"), area.size());
    preset.crop.min_area = area[0];
    preset.crop.max_area = area[1];
  }
  files.open.label_offset = static_cast<std::int32_t>(read.integer("label-offset"));
  files.open.max_bad_fraction = read.real("max-bad-fraction");
  files.open.given = given_files(read);
  if (read.flag("allow-missing-shards")) files.open.missing = io::MissingShards::Accepted;
  if (const Setting* const given = read.options().typed("label-offset"))
    files.record_options.push_back(given->where);
  if (const Setting* const given = read.options().typed("allow-missing-shards"))
    files.shard_options.push_back(given->where);
  files.cached_bytes = cached_bytes(read);
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

namespace {

train::Normalisation normalisation_of(Reader& read, std::string_view dataset) {
  using train::Normalisation;
  if (dataset == kImageNet)
    return read.flag("normalise-input") ? Normalisation::ImageNet : Normalisation::MeanOnly;
  const std::string name = read.text("normalise");
  if (name == "dataset") return Normalisation::Dataset;
  return name == "imagenet" ? Normalisation::ImageNet : Normalisation::Standardise;
}

}  // namespace

std::int64_t image_size(Reader& read, const std::string& dataset) {
  const io::DatasetKind& kind = io::dataset_kind(dataset);
  std::int64_t usual = kind.image_side;
  const models::Task task = task_of(dataset);
  if (dataset == kImageNet && is_given_network(read.options()))
    usual = given_network(read.options()).input_shape.h;
  else if (dataset == kImageNet && model_name(read.options()) == "efficientnet")
    usual = models::efficientnet_image_size(model_size(read.options(), task));
  const std::int64_t size = read.integer("image-size", usual);
  if (!kind.resized && size != kind.image_side)
    fail(ErrorKind::Config,
         "{0}: {1} does not fit {2}, whose images are {3}x{3}: leave the option out",
         read.where("image-size"), size, dataset, kind.image_side);
  return size;
}

void resolve_data(Reader& read, const DataRequest& request, const DatasetFacts& facts,
                  train::TrainConfig& config) {
  train::DataConfig& data = config.data;
  data.dataset = read.note("dataset", request.dataset);
  data.source = request.source;
  for (const char* name : {"synthetic-data", "generated-data"}) (void)read.flag(name);
  data.train_size = facts.train_size;
  data.validation_size = facts.validation_size;
  data.normalisation = request.normalisation;
  data.class_names = facts.class_names;
  data.preparation = facts.preparation;
  read.apply(Section::Data, config);
  if (data.source == train::ImageSource::Files && data.augment)
    data.augmentation = augmentation_of(read);
  data.image_type = image_type(read);
  read.use("dataset-benchmark");
  resolve_mixing_form(read, data.mixing);
  if (request.dataset == kImageNet && data.source == train::ImageSource::Files) {
    io::DatasetRequest noted;
    resolve_images(read, noted);
    data.max_bad_fraction = noted.open.max_bad_fraction;
  }
  // Recipes may set these options without effect, because they also serve other data.
  for (const char* name : {"image-preset", "image-normalisation", "image-mean", "image-deviation",
                           "label-offset", "randaugment", "color-jitter", "random-erasing"})
    if (const Setting* given = read.options().find(name);
        given != nullptr && given->origin != Origin::CommandLine)
      read.use(name);
  if (data.source != train::ImageSource::Files) {
    read.use("data-dir");  // recipes name it anyway, and its path may name the data set
    return;
  }
  data.directory = facts.directory.empty() ? request.files.directory : facts.directory;
  if (!data.directory.empty()) read.note("data-dir", data.directory.string());
}

bool dataset_is_told(const Options& options) {
  const std::optional<std::string> directory = options.text("data-dir");
  return options.text("dataset") || !directory || !dataset_in(*directory).empty();
}

DataRequest data_request(const Options& options, DataNeed need) {
  Reader read(options);
  return data_request(read, need);
}

DataRequest data_request(Reader& read, DataNeed need) {
  const Options& options = read.options();
  DataRequest request;
  request.dataset = dataset_name(options);
  request.quiet = is_quiet(options);
  request.source = image_source(options);
  io::DatasetRequest& files = request.files;
  const std::optional<std::int64_t> told = told_classes(options);
  const bool reads_outputs = request.dataset == kImageNet && is_given_network(options);
  if (told || reads_outputs) files.open.classes = told ? *told : given_network(options).classes;
  files.open.classes_are_told = told.has_value();
  files.validation = wants_validation(options);
  request.normalisation = normalisation_of(read, request.dataset);
  const std::int64_t size = image_size(read, request.dataset);
  request.image = {.h = size, .w = size, .c = 3};
  files.images.side = static_cast<std::int32_t>(size);
  request.seed = static_cast<std::uint64_t>(options.integer("seed").value_or(0));
  if (request.source != train::ImageSource::Files) return request;
  files.directory = options.text("data-dir").value_or("");
  if (need == DataNeed::Name) return request;
  if (!options.flag("train-with-valid-preprocessing"))
    files.images.augmentation = augmentation_of(read);
  if (request.dataset == kImageNet) resolve_images(read, files);
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
    Reader read(options);
    io::DatasetRequest files;
    resolve_images(read, files);
    return io::preparation_of(files.images.preset, static_cast<std::int32_t>(request.image.h));
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
