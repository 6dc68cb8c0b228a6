// SPDX-License-Identifier: Apache-2.0
#include "io/images/augmentation.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/random.hpp"

namespace millrace::io {
namespace {

// Blocks of random numbers of a sample, behind those of crop and mirror: an operation of
// RandAugment has the block of its number.
constexpr std::uint64_t kOperations = std::uint64_t{1} << 32;
constexpr std::uint64_t kJitterOrder = kOperations + 100;
constexpr std::uint64_t kJitterFactors = kOperations + 101;
constexpr std::uint64_t kErased = kOperations + 200;
constexpr int kErasingAttempts = 10;

RandomStream stream_of(const DrawKey& key) { return {key.seed, RandomPurpose::Augment, key.epoch}; }

/// torch.linspace in float32: from both ends to the middle, each value rounded once.
float linspace(float first, float last, std::int32_t i) {
  constexpr std::int32_t kSteps = kMostMagnitude + 1;
  const float step = (last - first) / static_cast<float>(kSteps - 1);
  if (i < kSteps / 2) return std::fma(step, static_cast<float>(i), first);
  return std::fma(-step, static_cast<float>(kSteps - i - 1), last);
}

float largest_shift(std::int32_t side) {
  return static_cast<float>(150.0 / 331.0 * static_cast<double>(side));
}

double uniform(std::uint32_t word, double from, double to) {
  return from + static_cast<double>(uniform01(word)) * (to - from);
}

float factor(std::uint32_t word, double spread) {
  return static_cast<float>(uniform(word, std::max(0.0, 1.0 - spread), 1.0 + spread));
}

void jitter(const Augmentation& augmentation, const DrawKey& key, const RgbImage& image) {
  const RandomStream stream = stream_of(key);
  const RandomBlock order_words = stream.block(kJitterOrder, key.index);
  const RandomBlock words = stream.block(kJitterFactors, key.index);
  std::array<int, 4> order = {0, 1, 2, 3};
  for (std::uint32_t left = 4; left > 1; --left)  // Fisher and Yates
    std::swap(order[left - 1], order[uniform_below(order_words[left - 1], left)]);
  for (const int which : order) {
    if (which == 0 && augmentation.brightness > 0.0)
      adjust_brightness(image, factor(words[0], augmentation.brightness));
    if (which == 1 && augmentation.contrast > 0.0)
      adjust_contrast(image, factor(words[1], augmentation.contrast));
    if (which == 2 && augmentation.saturation > 0.0)
      adjust_saturation(image, factor(words[2], augmentation.saturation));
    if (which == 3 && augmentation.hue > 0.0)
      shift_hue(image, uniform(words[3], -augmentation.hue, augmentation.hue));
  }
}

/// The map that torchvision passes to Pillow for a shear. Its angle goes through degrees and back.
double sheared(double strength) {
  const double degrees = std::atan(strength) * 180.0 / std::numbers::pi;
  return std::tan(degrees * std::numbers::pi / 180.0);
}

}  // namespace

double strength_of(AugmentOp op, std::int32_t magnitude, std::int32_t height, std::int32_t width) {
  const auto up_to = [magnitude](float most) {
    return static_cast<double>(linspace(0.0F, most, magnitude));
  };
  switch (op) {
    case AugmentOp::Identity:
    case AugmentOp::AutoContrast:
    case AugmentOp::Equalize:
      break;
    case AugmentOp::ShearX:
    case AugmentOp::ShearY:
      return up_to(0.3F);
    case AugmentOp::TranslateX:
      return up_to(largest_shift(width));
    case AugmentOp::TranslateY:
      return up_to(largest_shift(height));
    case AugmentOp::Rotate:
      return up_to(30.0F);
    case AugmentOp::Brightness:
    case AugmentOp::Color:
    case AugmentOp::Contrast:
    case AugmentOp::Sharpness:
      return up_to(0.9F);
    case AugmentOp::Posterize:  // half to even, as torch rounds
      return 8.0 - static_cast<double>(std::nearbyint(static_cast<float>(magnitude) / 7.5F));
    case AugmentOp::Solarize:
      return static_cast<double>(linspace(255.0F, 0.0F, magnitude));
  }
  return 0.0;
}

bool is_signed(AugmentOp op) noexcept {
  return op >= AugmentOp::ShearX && op <= AugmentOp::Sharpness;
}

void apply(AugmentOp op, double strength, const RgbImage& image, std::span<std::uint8_t> scratch) {
  const auto changed = static_cast<float>(1.0 + strength);
  switch (op) {
    case AugmentOp::Identity:
      return;
    case AugmentOp::ShearX:
      return transform(image, {1.0, sheared(strength), 0.0, 0.0, 1.0, 0.0}, scratch);
    case AugmentOp::ShearY:
      return transform(image, {1.0, 0.0, 0.0, sheared(strength), 1.0, 0.0}, scratch);
    case AugmentOp::TranslateX:
      return transform(image, {1.0, 0.0, -std::trunc(strength), 0.0, 1.0, 0.0}, scratch);
    case AugmentOp::TranslateY:
      return transform(image, {1.0, 0.0, 0.0, 0.0, 1.0, -std::trunc(strength)}, scratch);
    case AugmentOp::Rotate:
      return transform(image, rotation_of(strength, image.height, image.width), scratch);
    case AugmentOp::Brightness:
      return adjust_brightness(image, changed);
    case AugmentOp::Color:
      return adjust_saturation(image, changed);
    case AugmentOp::Contrast:
      return adjust_contrast(image, changed);
    case AugmentOp::Sharpness:
      return adjust_sharpness(image, changed, scratch);
    case AugmentOp::Posterize:
      return posterize(image, static_cast<int>(strength));
    case AugmentOp::Solarize:
      return solarize(image, strength);
    case AugmentOp::AutoContrast:
      return stretch_contrast(image);
    case AugmentOp::Equalize:
      return equalize(image);
  }
}

void augment_pixels(const Augmentation& augmentation, const DrawKey& key, const RgbImage& image,
                    std::span<std::uint8_t> scratch) {
  const RandomStream stream = stream_of(key);
  for (std::int32_t i = 0; i < augmentation.operations; ++i) {
    const RandomBlock words = stream.block(kOperations + static_cast<std::uint64_t>(i), key.index);
    const auto op = static_cast<AugmentOp>(uniform_below(words[0], kAugmentOps));
    const double strength = strength_of(op, augmentation.magnitude, image.height, image.width);
    const bool negative = is_signed(op) && uniform_below(words[1], 2) == 1;
    apply(op, negative ? -strength : strength, image, scratch);
  }
  if (augmentation.jitters()) jitter(augmentation, key, image);
}

PixelBox draw_erased(const Augmentation& augmentation, const DrawKey& key, std::int32_t height,
                     std::int32_t width) {
  constexpr double kLeastArea = 0.02;
  constexpr double kMostArea = 0.33;
  constexpr double kLeastAspect = 0.3;
  constexpr double kMostAspect = 3.3;
  if (augmentation.erasing <= 0.0) return {};
  const RandomStream stream = stream_of(key);
  const double drawn = static_cast<double>(uniform01(stream.block(kErased, key.index)[0]));
  if (drawn >= augmentation.erasing) return {};
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (int attempt = 1; attempt <= kErasingAttempts; ++attempt) {
    const RandomBlock words =
        stream.block(kErased + static_cast<std::uint64_t>(attempt), key.index);
    const double erased = uniform(words[0], kLeastArea, kMostArea) * area;
    const double aspect =
        std::exp(uniform(words[1], std::log(kLeastAspect), std::log(kMostAspect)));
    const auto rows = static_cast<std::int32_t>(std::lrint(std::sqrt(erased * aspect)));
    const auto columns = static_cast<std::int32_t>(std::lrint(std::sqrt(erased / aspect)));
    if (rows >= height || columns >= width) continue;
    const auto top = static_cast<std::int32_t>(
        uniform_below(words[2], static_cast<std::uint32_t>(height - rows + 1)));
    const auto left = static_cast<std::int32_t>(
        uniform_below(words[3], static_cast<std::uint32_t>(width - columns + 1)));
    return {.top = top, .left = left, .bottom = top + rows, .right = left + columns};
  }
  return {};
}

}  // namespace millrace::io
