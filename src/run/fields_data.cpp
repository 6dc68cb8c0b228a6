// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/field_rows.hpp"
#include "run/published_set.hpp"

namespace millrace::run {
namespace {

using namespace field_words;  // NOLINT(google-build-using-namespace): the words of the table

bool is_imagenet(const Run& c) { return holds_photos(c.data.dataset); }
bool is_cifar(const Run& c) { return !is_imagenet(c); }
bool reads_files(const Run& c) { return c.data.source == ImageSource::Files; }
bool reads_image_files(const Run& c) { return is_imagenet(c) && reads_files(c); }
bool augments_files(const Run& c) { return reads_files(c) && c.data.augment; }
bool mixes(const Run& c) { return c.data.mixing.on(); }

/// Nothing of a member that is empty.
std::optional<Value> unless_empty(std::string text) {
  return text.empty() ? std::nullopt : std::optional<Value>(std::move(text));
}

/// The numbers in the value of an option, "2,9". Errors: Usage, with an example, unless there are
/// `fewest` to `most` numbers that `accept` takes.
template <class Accept>
std::vector<double> numbers_of(const Setting& given, std::size_t fewest, std::size_t most,
                               const Accept& accept, std::string_view expected) {
  std::vector<double> numbers;
  bool good = true;
  for (const std::string& word : split_list(text_of(given))) {
    const std::optional<double> number = parse_number<double>(word);
    good = good && number && std::isfinite(*number) && *number >= 0.0;
    numbers.push_back(number.value_or(0.0));
  }
  if (!good || numbers.size() < fewest || numbers.size() > most || !accept(numbers))
    fail(ErrorKind::Usage, "{}: '{}' is not {}", given.where, printable(text_of(given)), expected);
  return numbers;
}

void set_operations(const Setting& given, Run& c) {
  const auto accept = [](const std::vector<double>& n) {
    return n[0] == std::floor(n[0]) && n[1] == std::floor(n[1]) && n[0] >= 1.0 &&
           n[0] <= kMostOperations && n[1] <= kMostMagnitude;
  };
  const std::vector<double> numbers =
      numbers_of(given, 2, 2, accept,
                 fmt::format("N,M: 1 to {} operations of a magnitude of 0 to {}, for example 2,9",
                             kMostOperations, kMostMagnitude));
  c.data.augmentation.operations = static_cast<std::int32_t>(numbers[0]);
  c.data.augmentation.magnitude = static_cast<std::int32_t>(numbers[1]);
}
std::optional<Value> operations_of(const Run& c) {
  const Augmentation& a = c.data.augmentation;
  if (a.operations == 0) return std::nullopt;
  return Value(fmt::format("{},{}", a.operations, a.magnitude));
}

void set_jitter(const Setting& given, Run& c) {
  constexpr double kMostFactor = 10.0;
  constexpr double kMostHue = 0.5;
  const auto accept = [](const std::vector<double>& n) {
    return std::ranges::max(n) <= kMostFactor && n.size() != 2 &&
           (n.size() < 4 || n[3] <= kMostHue);
  };
  std::vector<double> numbers =
      numbers_of(given, 1, 4, accept,
                 fmt::format("X, B,C,S or B,C,S,H: numbers from 0 to {:g}, for the hue to {:g}, "
                             "for example 0.4 or 0.4,0.4,0.4,0.1",
                             kMostFactor, kMostHue));
  if (numbers.size() == 1) numbers.assign(3, numbers[0]);  // as timm reads it
  Augmentation& a = c.data.augmentation;
  a.brightness = numbers[0];
  a.contrast = numbers[1];
  a.saturation = numbers[2];
  if (numbers.size() == 4) a.hue = numbers[3];
}
std::optional<Value> jitter_of(const Run& c) {
  const Augmentation& a = c.data.augmentation;
  if (!a.jitters()) return std::nullopt;
  if (a.hue > 0.0)
    return Value(fmt::format("{},{},{},{}", a.brightness, a.contrast, a.saturation, a.hue));
  const bool one = a.brightness == a.contrast && a.contrast == a.saturation;
  return Value(one ? fmt::format("{}", a.brightness)
                   : fmt::format("{},{},{}", a.brightness, a.contrast, a.saturation));
}

/// Three numbers, of red, green and blue.
template <std::vector<double> ImageFileRequest::*colours>
Trait three_colours(bool positive) {
  return written<colours>(
      [positive](const Setting& given) {
        std::vector<double> numbers;
        for (const std::string& word : split_list(text_of(given), ',')) {
          const auto number = parse_number<double>(word);
          const bool good = number && std::isfinite(*number) && (!positive || *number > 0.0);
          if (good) numbers.push_back(*number);
        }
        if (numbers.size() != 3 || split_list(text_of(given), ',').size() != 3)
          fail(ErrorKind::Usage, "{}: '{}' is not three {}numbers, such as 58.395,57.12,57.375",
               given.where, text_of(given), positive ? "positive " : "");
        return numbers;
      },
      [](const std::vector<double>& numbers) { return unless_empty(join(numbers, ",")); });
}

void set_crop_area(const Setting& given, Run& c) {
  c.data.images.crop_area = std::get<std::vector<double>>(given.value);
  if (const std::size_t numbers = c.data.images.crop_area.size(); numbers != 2)
    fail(ErrorKind::Usage, "{}: {} number(s), but a range has two, such as 0.08 1", given.where,
         numbers);
}

/// The types in which images are sent.
constexpr std::array kSentTypes = {DType::U8, DType::F32, DType::BF16, DType::F16};

std::optional<Value> sent_type(const Run& c) {
  if (!c.data.asked_type) return std::nullopt;
  return Value(std::string(name_of(*c.data.asked_type)));
}
void set_sent_type(const Setting& given, Run& c) {
  c.data.asked_type =
      *std::ranges::find(kSentTypes, text_of(given), [](DType type) { return name_of(type); });
}

std::optional<Value> normalisation_of_small(const Run& c) {
  return Value(std::string(c.data.normalisation == Normalisation::Dataset    ? "dataset"
                           : c.data.normalisation == Normalisation::ImageNet ? "imagenet"
                                                                             : "standardise"));
}
void set_normalisation_of_small(const Setting& given, Run& c) {
  c.data.normalisation = text_of(given) == "dataset"    ? Normalisation::Dataset
                         : text_of(given) == "imagenet" ? Normalisation::ImageNet
                                                        : Normalisation::Standardise;
}

constexpr std::string_view kImageFiles = "`dataset` imagenet from files";

void add_data(FieldTable& table) {
  const Rows row(table, Section::Data, kRunsAndValidate, kMathematics);
  static const std::string names = join(set_names(), "|");
  row("dataset", choice(names), "IPU", "data set", default_text("derived from `data-dir`"),
      main_option(), records([](const Run& c) { return Value(c.data.dataset); }),
      says<&DataConfig::dataset>(), yields<&models::ModelOptions::task>());
  row("data-dir", path("DIR"), "IPU", "directory of the data set, or one above it",
      environment("DATA_DIR"), needs("real data (no `synthetic-data` or `generated-data`)"),
      output(), commands(kRunsAndValidate | kPredict | set_of(Command::DataConvert)), main_option(),
      sets<&DataConfig::directory>(), if_given(),
      yields<&DataConfig::train_size, &DataConfig::validation_size, &DataConfig::class_names,
             &DataConfig::preparation, &DataConfig::weighted>());
  row("synthetic-data", flag(), "IPU",
      "use one random image, which training keeps on the device, to measure the device alone; "
      "needs `dataset`",
      main_option(), picks<&DataConfig::source, ImageSource::Device>());
  row("generated-data", flag(), "IPU 2.0",
      "use random images, made on the host and sent with every micro-batch; needs `dataset`",
      picks<&DataConfig::source, ImageSource::Host>());
  row("image-size", integer(between(1, 4096)), "IPU",
      "height and width of the images that the network sees",
      default_text("32 for CIFAR; 224 for ImageNet; 224 to 600 for EfficientNet, by size"),
      unit("pixels"), sets<&DataConfig::side>(), yields<&models::ModelOptions::image>());
  row("normalise", choice("standardise|dataset|imagenet"), "millrace",
      "CIFAR: normalize by the mean and deviation of each image, of the training set, or of "
      "ImageNet",
      needs("a CIFAR data set"), when(is_cifar), records(normalisation_of_small),
      changes(set_normalisation_of_small), says<&DataConfig::normalisation>());
  row("normalise-input", flag(), "IPU",
      "ImageNet: also divide by the deviation of each channel; otherwise only the mean is "
      "subtracted",
      needs("`dataset` imagenet"), harmless(), when(is_imagenet),
      records([](const Run& c) { return Value(c.data.normalisation == Normalisation::ImageNet); }),
      changes([](const Setting& given, Run& c) {
        c.data.normalisation = flag_of(given) ? Normalisation::ImageNet : Normalisation::MeanOnly;
      }),
      says<&DataConfig::normalisation>());
  row("no-hostside-norm", flag(), "IPU",
      "send images as bytes and normalize them on the device, as devices with memory of their own "
      "do by default; the tensors are the same",
      output(), sets<&DataConfig::sends_bytes>());
  row("hostside-norm", flag(), "IPU 2.0",
      "normalize images before they are sent (the default on cores)", default_text("on cores"),
      output(), changes([](const Setting&, Run& c) { c.data.normalises_on_host = true; }),
      says<&DataConfig::normalises_on_host>());
  row("eight-bit-io", flag(), "IPU 2.0", "send images as bytes; same as `no-hostside-norm`",
      output(), changes([](const Setting& given, Run& c) {
        c.data.sends_bytes = c.data.sends_bytes || flag_of(given);
      }),
      says<&DataConfig::sends_bytes>());
  row("data-loader-image-type", choice("uint8|float32|bfloat16|float16"), "Habana",
      "data type in which images are sent to the device; uint8 is `no-hostside-norm`",
      default_text("the type of the activations"), records(sent_type), changes(set_sent_type),
      says<&DataConfig::asked_type>(), yields<&DataConfig::image_type>());
  row("train-with-valid-preprocessing", flag(), "IPU",
      "train on images prepared as for validation, without augmentation",
      chooses<true, false, &DataConfig::augment>());
}

void add_augmentation(FieldTable& table) {
  const Rows row(
      table, Section::Data, kRuns, kMathematics,
      {needs("images from files, with augmentation"), when(augments_files), for_other_data()});
  row("randaugment", text("N,M"), "torchvision, timm",
      "RandAugment: N operations of magnitude M (0 to 30) on every training image; torchvision's "
      "recipes use 2,9",
      default_text("off"), records(operations_of), changes(set_operations),
      says<&Augmentation::operations, &Augmentation::magnitude>());
  row("color-jitter", text("B,C,S[,H]"), "torchvision, timm",
      "change brightness, contrast and saturation of training images by factors from 1 - X to "
      "1 + X, and turn their hue by up to H of the circle, in a random order; a single X stands "
      "for B, C and S",
      default_text("off"), records(jitter_of), changes(set_jitter),
      says<&Augmentation::brightness, &Augmentation::contrast, &Augmentation::saturation,
           &Augmentation::hue>());
  row("random-erasing", real(between(0.0, 1.0), "P"), "torchvision, timm",
      "probability that a box of a training image, 2 to 33 % of it, is erased after normalization",
      sets<&Augmentation::erasing>(), if_given());
}

void add_mixing(FieldTable& table) {
  const Rows row(table, Section::Data, kRuns, kMathematics);
  row("mixup-alpha", real(between(0.0, 100.0)), "IPU 2.0, NVIDIA",
      "mix every image with another one, with a share drawn from Beta(X, X); 0 disables mixup",
      sets<&MixingConfig::mixup_alpha>());
  row("cutmix-lambda", real(above_zero_to(1.0)), "IPU 2.0",
      "share of an image that remains when a box of another one is pasted into it; 1 disables "
      "cutmix",
      sets<&MixingConfig::cutmix_lambda>());
  row("mixing-form", choice("rolled|reversed"), "IPU 2.0, NVIDIA",
      "partner and share: the previous image in the micro-batch, at most half (IPU), or the "
      "reversed micro-batch (NVIDIA)",
      by_default("rolled"), takes_default(), needs("`mixup-alpha` or `cutmix-lambda`"), when(mixes),
      records([](const Run& c) {
        const bool rolled = c.data.mixing.form == MixingForm::Rolled;
        return Value(std::string(rolled ? "rolled" : "reversed"));
      }),
      changes([](const Setting& given, Run& c) {
        c.data.mixing.form = text_of(given) == "rolled" ? MixingForm::Rolled : MixingForm::Reversed;
      }),
      says<&MixingConfig::form>());
}

void add_image_files(FieldTable& table) {
  const Rows row(table, Section::Data, kRunsAndValidate, kMathematics, {when(reads_image_files)});
  row("image-preset", choice("tf|nvidia|dali2019|tpu|torch"), "all",
      "cropping, resampling and normalization of TensorFlow's recipes (IPU, Habana), NVIDIA's DALI "
      "(now or in 2019), the TPU guide (SURFsara) or torchvision",
      needs(kImageFiles), for_other_data(), sets<&ImageFileRequest::preset>());
  row("image-normalisation", choice("mean|torch|nvidia2019|dali2019|nvidia"), "all",
      "conversion of image bytes to floats: subtract the mean, or use the mean and deviation of "
      "torchvision or NVIDIA",
      default_text("set by `image-preset`"), needs(kImageFiles), for_other_data(),
      sets<&ImageFileRequest::normalisation>());
  row("image-mean", text("R,G,B"), "millrace",
      "what is subtracted from the bytes of red, green and blue, 0 to 255, in place of the mean of "
      "`image-normalisation`, such as 123.675,116.28,103.53",
      default_text("set by `image-normalisation`"), needs(kImageFiles), for_other_data(),
      three_colours<&ImageFileRequest::mean>(false));
  row("image-deviation", text("R,G,B"), "millrace",
      "what the differences are divided by, in place of the deviation of `image-normalisation`",
      default_text("set by `image-normalisation`"), needs(kImageFiles), for_other_data(),
      three_colours<&ImageFileRequest::deviation>(true));
  row("crop-area", reals("A,B", {.low = 0.0, .high = 1.0, .low_excluded = true}), "NVIDIA, Habana",
      "smallest and largest share of an image that a crop for training covers, such as 0.08 1",
      default_text("set by `image-preset`"), needs(kImageFiles),
      sets<&ImageFileRequest::crop_area>(), changes(set_crop_area), if_given());
  row("label-offset", integer(between(0, 1000)), "millrace",
      "label of the first class in TFRecord files", commands(kRunsAndValidate | kDataTools),
      for_other_data(), sets<&ImageFileRequest::label_offset>());
  row("max-bad-fraction", real(between(0.0, 1.0)), "millrace",
      "share of records or images that may be bad; more end the run. Unless it is 0, one of "
      "several may always be bad. Bad records are left out. An image that cannot be decoded is "
      "replaced by the next one of its class, or left out when converting or packing",
      output(), commands(kRunsAndValidate | (kDataTools & ~set_of(Command::DataCheck))),
      sets<&DataConfig::max_bad_fraction>());
  row("allow-missing-shards", flag(), "millrace",
      "accept a set of TFRecord files or WebDataset archives with missing shards",
      commands(kRunsAndValidate | (kDataTools & ~set_of(Command::DataCheck))),
      sets<&ImageFileRequest::allow_missing_shards>());
}

void add_loading(FieldTable& table) {
  const Rows row(table, Section::Data, kRunsAndValidate, kMathematics);
  row("pipeline-num-parallel", integer(between(1, 1024)), "IPU",
      "threads that read and prepare images for a stage; the number does not change the pixels",
      default_text("1; for ImageNet files and a GPU: the rank's share of the cores, at most 16"),
      unit("threads"), output(), commands(kRunsAndValidate | kPredict),
      sets<&DataConfig::loader_threads>());
  row("max-cpus", integer(between(1, 1024)), "Habana",
      "maximum number of threads that read and prepare images in one process",
      default_text("no limit"), unit("threads"), output(), commands(kRunsAndValidate | kPredict),
      sets<&DataConfig::max_cpus>(), if_given());
  row("dataset-cache", text("SIZE|all"), "IPU, Habana",
      "keep image files in memory, still encoded, after they are first read, up to this size",
      default_text("off"), unit("bytes of this machine's memory; examples: 512MiB, 8GiB"),
      needs(kImageFiles), harmless(), output(), when(reads_image_files),
      sets<&ImageFileRequest::cache>(), if_given());
  row("standard-imagenet", flag(), "IPU", "read ImageNet in its plain order",
      idle("there is only one order, a permutation keyed by seed and epoch"), output());
  row("no-dataset-cache", flag(), "IPU",
      "keep no files of the data set in memory (the default here)", default_text("on"),
      needs(kImageFiles), harmless(), output(), when(reads_image_files));
  row("hostside-image-mixing", flag(), "IPU 2.0", "mix images before they are sent",
      idle("mixed images are the same wherever they are mixed"), output());
  row("dataset-benchmark", flag(), "IPU 2.0",
      "measure the loaders alone, the devices alone and both together; report which of them limits",
      output(), commands(kTrain | kBench));
}

}  // namespace

void add_data_fields(FieldTable& table) {
  add_data(table);
  add_augmentation(table);
  add_mixing(table);
  add_image_files(table);
  add_loading(table);
}

}  // namespace millrace::run
