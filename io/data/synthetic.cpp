// SPDX-License-Identifier: Apache-2.0
#include "io/data/synthetic.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/error.hpp"
#include "core/random.hpp"

namespace millrace::io {
namespace {

constexpr std::uint64_t kPixelStream = 0;
constexpr std::uint64_t kLabelStream = 1;
/// Bytes by which the image of a sample is turned against that of the one before it; a prime, so
/// that all samples of a small set differ.
constexpr std::int64_t kTurn = 7919;

/// Standard normal number of `element`, drawn again while it exceeds two deviations.
double truncated_normal(const RandomStream& stream, std::uint64_t element) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    const RandomBlock random = stream.block(attempt, element);
    const double radius = std::sqrt(-2.0 * std::log(uniform01_double(random[0], random[1])));
    const double angle = 2.0 * std::numbers::pi * uniform01_double(random[2], random[3]);
    const double normal = radius * std::cos(angle);
    if (std::abs(normal) <= 2.0) return normal;
  }
}

class SyntheticDataset final : public Dataset {
 public:
  explicit SyntheticDataset(const SyntheticOptions& options)
      : options_(options),
        labels_(options.seed, RandomPurpose::SyntheticData, kLabelStream),
        image_(static_cast<std::size_t>(options.image_shape.elements())) {
    const RandomStream pixels(options.seed, RandomPurpose::SyntheticData, kPixelStream);
    std::uint64_t element = 0;
    for (std::uint8_t& pixel : image_)
      pixel = static_cast<std::uint8_t>(
          std::round(static_cast<float>(127.0 + 60.0 * truncated_normal(pixels, element++))));
  }

  [[nodiscard]] std::string name() const override { return "synthetic"; }
  [[nodiscard]] std::int64_t size() const override { return options_.size; }
  [[nodiscard]] Shape image_shape() const override { return options_.image_shape; }
  [[nodiscard]] std::int64_t classes() const override { return options_.classes; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    const auto element = static_cast<std::uint64_t>(distinct(index));
    return static_cast<std::int32_t>(
        uniform_below(labels_.block(0, element)[0], static_cast<std::uint32_t>(options_.classes)));
  }
  Sample read(std::int64_t index, const ReadKey&, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override {
    MILLRACE_ASSERT(image.size() == image_.size());
    const std::int64_t turn = distinct(index) * kTurn % options_.image_shape.elements();
    std::rotate_copy(image_.begin(), image_.begin() + turn, image_.end(), image.begin());
    std::fill(std::begin(scaling.scale), std::end(scaling.scale), 1.0f);
    scaling.real = plain_scaling(options_.image_shape).real;
    return Sample::Own;
  }

 private:
  /// The samples with the same number are the same.
  [[nodiscard]] std::int64_t distinct(std::int64_t index) const {
    return options_.images == SyntheticImages::Varied ? index : 0;
  }

  SyntheticOptions options_;
  RandomStream labels_;
  std::vector<std::uint8_t> image_;
};

}  // namespace

std::unique_ptr<Dataset> make_synthetic(const SyntheticOptions& options) {
  constexpr std::int64_t kMaxExtent = 1 << 16;
  const Shape& shape = options.image_shape;
  const auto [least, most] = std::minmax({shape.h, shape.w, shape.c, options.classes});
  if (least < 1 || most > kMaxExtent || shape.c > kMaxByteChannels || options.size < 1)
    fail(ErrorKind::Config,
         "synthetic data cannot have {} images of {} in {} classes: every number must be at least "
         "1, every extent at most {}, and channels at most {}",
         options.size, shape, options.classes, kMaxExtent, kMaxByteChannels);
  return std::make_unique<SyntheticDataset>(options);
}

}  // namespace millrace::io
