// SPDX-License-Identifier: Apache-2.0
#include "io/data/cifar.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/random.hpp"
#include "io/images/presets.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr auto kPixels = static_cast<std::size_t>(kSmallPixels);

/// Range of rows (or columns) of a window at `offset` that are in the image.
std::pair<std::int32_t, std::int32_t> shown(std::int32_t offset) {
  constexpr auto kExtent = static_cast<std::int32_t>(kSmallSide);
  const std::int32_t begin = kCropPadding - offset;
  return {std::max(begin, 0), std::min(begin + kExtent, +kExtent)};
}

ChannelStatistics measure(std::span<const std::uint8_t> records, const CifarLayout& layout) {
  std::array<std::uint64_t, 3> sum{};
  std::array<std::uint64_t, 3> sum_of_squares{};
  const std::size_t skip = layout.label_limits.size();
  for (std::size_t at = 0; at < records.size(); at += layout.record_bytes()) {
    for (std::size_t c = 0; c < 3; ++c) {
      constexpr auto kPlane = static_cast<std::size_t>(kSmallPlane);
      const std::uint8_t* const plane = records.data() + at + skip + c * kPlane;
      std::uint32_t plane_sum = 0;  // 1024 x 255 x 255 fits
      std::uint32_t plane_squares = 0;
      for (std::size_t i = 0; i < kPlane; ++i) {
        const std::uint32_t pixel = plane[i];
        plane_sum += pixel;
        plane_squares += pixel * pixel;
      }
      sum[c] += plane_sum;
      sum_of_squares[c] += plane_squares;
    }
  }
  const std::size_t images = records.size() / layout.record_bytes();
  const auto count = static_cast<double>(images * kSmallPlane);
  ChannelStatistics statistics;
  for (std::size_t c = 0; c < 3; ++c) {
    const double mean = static_cast<double>(sum[c]) / count;
    const double variance = static_cast<double>(sum_of_squares[c]) / count - mean * mean;
    statistics.mean[c] = mean / 255.0;
    // At least one gray level, so that a set without contrast does not divide by zero.
    statistics.deviation[c] = std::sqrt(std::max(variance, 1.0)) / 255.0;
  }
  return statistics;
}

class CifarDataset final : public Dataset {
 public:
  CifarDataset(const CifarLayout& layout, std::vector<std::uint8_t> records,
               std::vector<std::string> class_names, run::Preparation preparation,
               const Augmentation& augmentation)
      : layout_(layout),
        records_(std::move(records)),
        size_(static_cast<std::int64_t>(records_.size() / layout.record_bytes())),
        class_names_(std::move(class_names)),
        preparation_(std::move(preparation)),
        augmentation_(augmentation),
        scaling_(scaling_of(preparation_, static_cast<std::int32_t>(kSmallSide))) {}

  [[nodiscard]] std::string name() const override { return std::string(layout_.name); }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] Shape image_shape() const override {
    return {kSmallSide, kSmallSide, kSmallChannels};
  }
  [[nodiscard]] std::int64_t classes() const override { return layout_.classes(); }

  [[nodiscard]] std::vector<std::string> class_names() const override { return class_names_; }
  [[nodiscard]] std::optional<run::Preparation> preparation() const override {
    return preparation_;
  }

  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return record(index)[layout_.label_limits.size() - 1];
  }

  [[nodiscard]] std::uint32_t fingerprint() const override {
    return crc32c(std::as_bytes(std::span(records_)));
  }

  Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override {
    MILLRACE_ASSERT(image.size() == kPixels);
    Planes planes(record(index) + layout_.label_limits.size(), kPixels);
    const DrawKey draw{
        .seed = key.seed, .epoch = key.epoch, .index = static_cast<std::uint64_t>(index)};
    std::array<std::uint8_t, kPixels> augmented;
    if (key.augment && augmentation_.changes_pixels()) {
      augment_planes(augmentation_, draw, planes, augmented);
      planes = augmented;
    }
    const Crop crop = draw_crop(key, index);
    decode_bytes(planes, crop, image.first<kPixels>());
    scaling = preparation_.by_image ? standardisation_of(planes) : scaling_;
    scaling.real = real_window(crop);
    constexpr auto kSide = static_cast<std::int32_t>(kSmallSide);
    if (key.augment) scaling.erased = draw_erased(augmentation_, draw, kSide, kSide);
    return Sample::Own;
  }

 private:
  using Planes = std::span<const std::uint8_t, kPixels>;

  [[nodiscard]] const std::uint8_t* record(std::int64_t index) const {
    MILLRACE_ASSERT(index >= 0 && index < size_);
    return records_.data() + static_cast<std::size_t>(index) * layout_.record_bytes();
  }

  const CifarLayout& layout_;
  std::vector<std::uint8_t> records_;
  std::int64_t size_;
  std::vector<std::string> class_names_;
  run::Preparation preparation_;
  Augmentation augmentation_;
  PixelScaling scaling_;  ///< of all images, unless it differs by image
};

}  // namespace

// (x/255 - mean) / deviation as (x - 255 mean) / (255 deviation).
run::Preparation preparation_of(const ChannelStatistics& statistics) {
  run::Preparation preparation;
  for (std::size_t c = 0; c < 3; ++c) {
    const double mean = statistics.mean[c];
    const double deviation = statistics.deviation[c];
    if (!std::isfinite(mean) || !std::isfinite(deviation) || deviation <= 0.0)
      fail(ErrorKind::Config,
           "channel {} cannot be normalized with mean {} and deviation {}: the deviation must be "
           "positive and both finite",
           c, mean, deviation);
    preparation.mean[c] = 255.0 * mean;
    preparation.deviation[c] = 255.0 * deviation;
  }
  return preparation;
}

ChannelStatistics measure_cifar(const fs::path& directory, CifarKind kind) {
  const std::vector<std::uint8_t> records =
      read_cifar_records(find_cifar(directory, kind), kind, Split::Train);
  return measure(records, layout_of(kind));
}

std::unique_ptr<Dataset> open_cifar(const fs::path& directory, const CifarOptions& options) {
  const fs::path folder = find_cifar(directory, options.kind);
  const CifarLayout& layout = layout_of(options.kind);
  std::vector<std::uint8_t> records = read_cifar_records(folder, options.kind, options.split);
  run::Preparation preparation{.by_image = true};
  if (options.normalisation == CifarNormalisation::Dataset) {
    if (options.statistics)
      preparation = preparation_of(*options.statistics);
    else if (options.split == Split::Train)
      preparation = preparation_of(measure(records, layout));
    else
      preparation = preparation_of(measure_cifar(folder, options.kind));
  }
  return std::make_unique<CifarDataset>(layout, std::move(records),
                                        read_cifar_class_names(folder, options.kind),
                                        std::move(preparation), options.augmentation);
}

Crop draw_crop(const ReadKey& key, std::int64_t index, std::int32_t padding) {
  if (!key.augment) return {.top = padding, .left = padding};
  const auto offsets = static_cast<std::uint32_t>(2 * padding + 1);
  const RandomBlock random = RandomStream(key.seed, RandomPurpose::Augment, key.epoch)
                                 .block(0, static_cast<std::uint64_t>(index));
  return {.mirror = uniform_below(random[0], 2) == 1 ? Mirror::Yes : Mirror::No,
          .top = static_cast<std::int32_t>(uniform_below(random[1], offsets)),
          .left = static_cast<std::int32_t>(uniform_below(random[2], offsets))};
}

PixelBox real_window(const Crop& crop) {
  const auto [top, bottom] = shown(crop.top);
  const auto [left, right] = shown(crop.left);
  return {.top = top, .left = left, .bottom = bottom, .right = right};
}

PixelScaling standardisation_of(std::span<const std::uint8_t, kSmallPixels> planes) {
  // Integer sums are exact in any order, so the result does not depend on vectorization. The
  // maximum, 3072 x 255 x 255, fits in 32 bits.
  std::uint32_t sum = 0;
  std::uint32_t sum_of_squares = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kSmallPixels); ++i) {
    const std::uint32_t pixel = planes[i];
    sum += pixel;
    sum_of_squares += pixel * pixel;
  }
  constexpr auto kCount = static_cast<std::int64_t>(kSmallPixels);
  const std::int64_t scaled_variance = kCount * std::int64_t{sum_of_squares} -
                                       std::int64_t{sum} * std::int64_t{sum};  // n^2 x variance
  const auto count = static_cast<double>(kCount);
  const double deviation = std::sqrt(static_cast<double>(scaled_variance)) / count;
  const auto mean = static_cast<float>(static_cast<double>(sum) / count);
  const auto scale = static_cast<float>(1.0 / std::max(deviation, 1.0 / std::sqrt(count)));
  return {.mean = {mean, mean, mean}, .scale = {scale, scale, scale}, .real = {}, .erased = {}};
}

void augment_planes(const Augmentation& augmentation, const DrawKey& key,
                    std::span<const std::uint8_t, kSmallPixels> planes,
                    std::span<std::uint8_t, kSmallPixels> augmented) {
  constexpr auto kPlane = static_cast<std::size_t>(kSmallPlane);
  constexpr auto kChannels = static_cast<std::size_t>(kSmallChannels);
  std::array<std::uint8_t, static_cast<std::size_t>(kSmallPixels)> rgb;
  for (std::size_t i = 0; i < kPlane; ++i)
    for (std::size_t c = 0; c < kChannels; ++c) rgb[i * kChannels + c] = planes[c * kPlane + i];
  augment_pixels(augmentation, key, {.bytes = rgb, .height = kSmallSide, .width = kSmallSide},
                 augmented);
  for (std::size_t i = 0; i < kPlane; ++i)
    for (std::size_t c = 0; c < kChannels; ++c) augmented[c * kPlane + i] = rgb[i * kChannels + c];
}

void decode_bytes(std::span<const std::uint8_t, kSmallPixels> planes, const Crop& crop,
                  std::span<std::uint8_t, kSmallPixels> image) {
  const PixelBox real = real_window(crop);
  std::fill(image.begin(), image.end(), std::uint8_t{0});
  const bool mirrored = crop.mirror == Mirror::Yes;
  for (std::int32_t y = real.top; y < real.bottom; ++y) {
    const std::ptrdiff_t row = (y + crop.top - kCropPadding) * kSmallSide;
    for (std::int32_t x = real.left; x < real.right; ++x) {
      const std::ptrdiff_t column = x + crop.left - kCropPadding;
      const std::uint8_t* const from =
          planes.data() + row + (mirrored ? kSmallSide - 1 - column : column);
      std::uint8_t* const to = image.data() + (y * kSmallSide + x) * kSmallChannels;
      for (std::ptrdiff_t c = 0; c < kSmallChannels; ++c) to[c] = from[c * kSmallPlane];
    }
  }
}

}  // namespace millrace::io
