// SPDX-License-Identifier: Apache-2.0
#include "io/data/cifar.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "io/data/small_images.hpp"
#include "io/images/presets.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr auto kPixels = static_cast<std::size_t>(kSmallPixels);

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
               std::vector<std::string> class_names, Preparation preparation,
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
  [[nodiscard]] std::optional<Preparation> preparation() const override { return preparation_; }

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
  Preparation preparation_;
  Augmentation augmentation_;
  PixelScaling scaling_;  ///< of all images, unless it differs by image
};

}  // namespace

// (x/255 - mean) / deviation as (x - 255 mean) / (255 deviation).
Preparation preparation_of(const ChannelStatistics& statistics) {
  Preparation preparation;
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
  Preparation preparation{.by_image = true};
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

}  // namespace millrace::io
