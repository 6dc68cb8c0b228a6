// SPDX-License-Identifier: Apache-2.0
#include "io/augment.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "core/random.hpp"

namespace millrace::io {
namespace {

constexpr auto kSide = static_cast<std::size_t>(kSmallSide);
constexpr auto kChannels = static_cast<std::size_t>(kSmallChannels);
constexpr auto kPadding = static_cast<std::size_t>(kCropPadding);
constexpr auto kPlane = static_cast<std::size_t>(kSmallPlane);
constexpr std::size_t kPaddedRow = kSide + 2 * kPadding;
constexpr std::size_t kRowElements = kSide * kChannels;

/// One row of one channel with padding. The values of the padding do not matter: decode_row clears
/// the floats computed from them.
void load_row(const std::uint8_t* row, Mirror mirror, std::uint8_t* padded) {
  if (mirror == Mirror::Yes)
    std::reverse_copy(row, row + kSide, padded + kPadding);
  else
    std::memcpy(padded + kPadding, row, kSide);
}

/// Constant trip counts and three plain pointers let the compiler interleave whole vectors.
void interleave_row(const std::uint8_t* red, const std::uint8_t* green, const std::uint8_t* blue,
                    const ChannelScaling& scaling, float* out) {
  const auto [mean_r, mean_g, mean_b] = scaling.mean;
  const auto [scale_r, scale_g, scale_b] = scaling.scale;
  for (std::size_t x = 0; x < kSide; ++x) {
    out[3 * x + 0] = (static_cast<float>(red[x]) - mean_r) * scale_r;
    out[3 * x + 1] = (static_cast<float>(green[x]) - mean_g) * scale_g;
    out[3 * x + 2] = (static_cast<float>(blue[x]) - mean_b) * scale_b;
  }
}

/// Clears the pixels of a row that are in the left or right padding.
void clear_padding(std::size_t left, float* out) {
  if (left < kPadding) std::fill_n(out, (kPadding - left) * kChannels, 0.0f);
  if (left > kPadding) {
    const std::size_t beyond = (left - kPadding) * kChannels;
    std::fill_n(out + kRowElements - beyond, beyond, 0.0f);
  }
}

/// Range of rows (or columns) of a window at `offset` that are in the image.
std::pair<std::int32_t, std::int32_t> shown(std::int32_t offset) {
  constexpr auto kExtent = static_cast<std::int32_t>(kSmallSide);
  const std::int32_t begin = static_cast<std::int32_t>(kCropPadding) - offset;
  return {std::max(begin, 0), std::min(begin + kExtent, +kExtent)};
}

}  // namespace

Crop draw_crop(const ReadKey& key, std::int64_t index) {
  if (!key.augment) return {};
  constexpr auto kOffsets = static_cast<std::uint32_t>(2 * kCropPadding + 1);
  const RandomBlock random = RandomStream(key.seed, RandomPurpose::Augment, key.epoch)
                                 .block(0, static_cast<std::uint64_t>(index));
  return {.mirror = uniform_below(random[0], 2) == 1 ? Mirror::Yes : Mirror::No,
          .top = static_cast<std::int32_t>(uniform_below(random[1], kOffsets)),
          .left = static_cast<std::int32_t>(uniform_below(random[2], kOffsets))};
}

PixelBox real_window(const Crop& crop) {
  const auto [top, bottom] = shown(crop.top);
  const auto [left, right] = shown(crop.left);
  return {.top = top, .left = left, .bottom = bottom, .right = right};
}

ChannelScaling standardisation_of(std::span<const std::uint8_t, kSmallPixels> planes) {
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
  return {.mean = {mean, mean, mean}, .scale = {scale, scale, scale}};
}

void decode_planes(std::span<const std::uint8_t, kSmallPixels> planes,
                   const ChannelScaling& scaling, const Crop& crop,
                   std::span<float, kSmallPixels> image) {
  const auto top = static_cast<std::size_t>(crop.top);
  const auto left = static_cast<std::size_t>(crop.left);
  std::uint8_t padded[kChannels][kPaddedRow] = {};
  for (std::size_t y = 0; y < kSide; ++y) {
    float* const out = image.data() + y * kRowElements;
    const std::size_t padded_y = y + top;
    if (padded_y < kPadding || padded_y >= kPadding + kSide) {
      std::fill_n(out, kRowElements, 0.0f);
      continue;
    }
    const std::uint8_t* const row = planes.data() + (padded_y - kPadding) * kSide;
    for (std::size_t c = 0; c < kChannels; ++c) load_row(row + c * kPlane, crop.mirror, padded[c]);
    interleave_row(padded[0] + left, padded[1] + left, padded[2] + left, scaling, out);
    clear_padding(left, out);
  }
}

void decode_bytes(std::span<const std::uint8_t, kSmallPixels> planes, const Crop& crop,
                  std::span<std::uint8_t, kSmallPixels> image) {
  const auto top = static_cast<std::size_t>(crop.top);
  const auto left = static_cast<std::size_t>(crop.left);
  std::uint8_t padded[kChannels][kPaddedRow] = {};
  for (std::size_t y = 0; y < kSide; ++y) {
    std::uint8_t* const out = image.data() + y * kRowElements;
    const std::size_t padded_y = y + top;
    if (padded_y < kPadding || padded_y >= kPadding + kSide) {
      std::fill_n(out, kRowElements, std::uint8_t{0});
      continue;
    }
    const std::uint8_t* const row = planes.data() + (padded_y - kPadding) * kSide;
    for (std::size_t c = 0; c < kChannels; ++c) load_row(row + c * kPlane, crop.mirror, padded[c]);
    for (std::size_t x = 0; x < kSide; ++x)
      for (std::size_t c = 0; c < kChannels; ++c) out[kChannels * x + c] = padded[c][left + x];
  }
}

}  // namespace millrace::io
