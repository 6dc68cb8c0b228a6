// SPDX-License-Identifier: Apache-2.0
#include "io/images/augmentation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "core/error.hpp"

namespace millrace::io {
namespace {

using Table = std::array<std::uint8_t, 256>;
constexpr std::size_t kChannels = 3;

std::uint8_t clipped(int value) { return static_cast<std::uint8_t>(std::clamp(value, 0, 255)); }

/// Between `from` (factor 0) and `value` (factor 1), or beyond them; truncated.
std::uint8_t blended(std::uint8_t from, std::uint8_t value, float factor) {
  const float mixed =
      static_cast<float>(from) + factor * static_cast<float>(int{value} - int{from});
  if (mixed <= 0.0F) return 0;
  return mixed >= 255.0F ? std::uint8_t{255} : static_cast<std::uint8_t>(mixed);
}

/// ITU-R 601 in 16 fractional bits.
std::uint8_t gray_of(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U) >>
                                   16);
}

void apply(const Table& table, std::span<std::uint8_t> bytes, std::size_t channel) {
  for (std::size_t i = channel; i < bytes.size(); i += kChannels) bytes[i] = table[bytes[i]];
}

using Histogram = std::array<std::uint32_t, 256>;

Histogram histogram_of(std::span<const std::uint8_t> bytes, std::size_t channel) {
  Histogram counts{};
  for (std::size_t i = channel; i < bytes.size(); i += kChannels) ++counts[bytes[i]];
  return counts;
}

/// A color as hue, saturation and value, rounded as Pillow rounds them (after Python's colorsys).
struct Hsv {
  std::uint8_t hue = 0;
  std::uint8_t saturation = 0;
  std::uint8_t value = 0;
};

Hsv hsv_of(const std::uint8_t* rgb) {
  const auto [least, most] = std::minmax({rgb[0], rgb[1], rgb[2]});
  if (least == most) return {.hue = 0, .saturation = 0, .value = most};
  const auto range = static_cast<float>(most - least);
  const auto share = [&, top = most](std::uint8_t channel) {
    return static_cast<float>(top - channel) / range;
  };
  const float red = share(rgb[0]);
  const float green = share(rgb[1]);
  const float blue = share(rgb[2]);
  float hue = 0.0F;
  if (rgb[0] == most)
    hue = blue - green;
  else if (rgb[1] == most)
    hue = static_cast<float>(2.0 + static_cast<double>(red) - static_cast<double>(blue));
  else
    hue = static_cast<float>(4.0 + static_cast<double>(green) - static_cast<double>(red));
  hue = static_cast<float>(std::fmod(static_cast<double>(hue) / 6.0 + 1.0, 1.0));
  const float saturation = range / static_cast<float>(most);
  return {.hue = clipped(static_cast<int>(static_cast<double>(hue) * 255.0)),
          .saturation = clipped(static_cast<int>(static_cast<double>(saturation) * 255.0)),
          .value = most};
}

void put_rgb(const Hsv& color, std::uint8_t* rgb) {
  const auto put = [rgb](std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
    rgb[0] = red;
    rgb[1] = green;
    rgb[2] = blue;
  };
  const std::uint8_t v = color.value;
  if (color.saturation == 0) return put(v, v, v);
  const double sixth = static_cast<double>(color.hue) * 6.0 / 255.0;
  const int sector = static_cast<int>(std::floor(sixth));
  const auto rest = static_cast<float>(sixth - sector);
  const auto s = static_cast<float>(static_cast<double>(color.saturation) / 255.0);
  const auto of_value = [v](double share) {
    return clipped(static_cast<int>(std::round(static_cast<double>(v) * share)));
  };
  const std::uint8_t p = of_value(1.0 - static_cast<double>(s));
  const std::uint8_t q = of_value(1.0 - static_cast<double>(s * rest));
  const std::uint8_t t = of_value(1.0 - static_cast<double>(s) * (1.0 - static_cast<double>(rest)));
  switch (sector % 6) {
    case 0:
      return put(v, t, p);
    case 1:
      return put(q, v, p);
    case 2:
      return put(p, v, t);
    case 3:
      return put(p, q, v);
    case 4:
      return put(t, p, v);
    default:
      return put(v, p, q);
  }
}

/// Writes pixel (x, y) of a copy of the image, or black outside of it.
void put_pixel(const RgbImage& image, std::span<const std::uint8_t> from, std::int64_t x,
               std::int64_t y, std::uint8_t* out) {
  const bool inside = x >= 0 && x < image.width && y >= 0 && y < image.height;
  const std::uint8_t* const in = inside ? from.data() + (y * image.width + x) * 3 : nullptr;
  for (std::size_t c = 0; c < kChannels; ++c) out[c] = in == nullptr ? std::uint8_t{0} : in[c];
}

/// Whether Pillow uses its table of columns and rows: no rotation and no shear.
void transform_scaled(const RgbImage& image, const AffineMap& map,
                      std::span<const std::uint8_t> from) {
  const auto place = [](double v) { return v < 0.0 ? -1 : static_cast<int>(v); };
  double row = map[5] + map[4] * 0.5;
  std::uint8_t* out = image.bytes.data();
  for (std::int32_t y = 0; y < image.height; ++y, row += map[4]) {
    const int source_y = place(row);
    double column = map[2] + map[0] * 0.5;
    for (std::int32_t x = 0; x < image.width; ++x, column += map[0], out += kChannels)
      put_pixel(image, from, place(column), source_y, out);
  }
}

/// In fixed point with 16 fractional bits, as Pillow.
void transform_fixed(const RgbImage& image, const AffineMap& map,
                     std::span<const std::uint8_t> from) {
  const auto fixed = [](double v) {
    return static_cast<std::int64_t>(std::floor(v * 65536.0 + 0.5));
  };
  const std::int64_t dx = fixed(map[0]);
  const std::int64_t dy = fixed(map[3]);
  std::int64_t row_x = fixed(map[2] + map[0] * 0.5 + map[1] * 0.5);
  std::int64_t row_y = fixed(map[5] + map[3] * 0.5 + map[4] * 0.5);
  std::uint8_t* out = image.bytes.data();
  for (std::int32_t y = 0; y < image.height; ++y) {
    std::int64_t at_x = row_x;
    std::int64_t at_y = row_y;
    for (std::int32_t x = 0; x < image.width; ++x, out += kChannels, at_x += dx, at_y += dy)
      put_pixel(image, from, at_x >> 16, at_y >> 16, out);
    row_x += fixed(map[1]);
    row_y += fixed(map[4]);
  }
}

}  // namespace

void adjust_brightness(const RgbImage& image, float factor) {
  for (std::uint8_t& value : image.bytes) value = blended(0, value, factor);
}

void adjust_saturation(const RgbImage& image, float factor) {
  for (std::size_t i = 0; i < image.bytes.size(); i += kChannels) {
    std::uint8_t* const rgb = image.bytes.data() + i;
    const std::uint8_t gray = gray_of(rgb);
    for (std::size_t c = 0; c < kChannels; ++c) rgb[c] = blended(gray, rgb[c], factor);
  }
}

void adjust_contrast(const RgbImage& image, float factor) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < image.bytes.size(); i += kChannels)
    sum += gray_of(image.bytes.data() + i);
  const std::uint64_t pixels = image.bytes.size() / kChannels;
  const auto mean = static_cast<std::uint8_t>((2 * sum + pixels) / (2 * pixels));  // half up
  for (std::uint8_t& value : image.bytes) value = blended(mean, value, factor);
}

void adjust_sharpness(const RgbImage& image, float factor, std::span<std::uint8_t> scratch) {
  MILLRACE_ASSERT(scratch.size() >= image.bytes.size());
  std::ranges::copy(image.bytes, scratch.begin());
  const auto row = static_cast<std::ptrdiff_t>(kChannels) * image.width;
  // The border is its own smoothed image, which a factor does not change.
  for (std::int32_t y = 1; y + 1 < image.height; ++y)
    for (std::ptrdiff_t i = y * row + 3; i < (y + 1) * row - 3; ++i) {
      const std::uint8_t* const at = scratch.data() + i;
      int sum = 4 * int{*at};  // 5 in the center, 1 around it, over 13
      for (const std::ptrdiff_t line : {-row, std::ptrdiff_t{0}, row})
        for (const std::ptrdiff_t step : {-3, 0, 3}) sum += at[line + step];
      const auto smooth = static_cast<std::uint8_t>((2 * sum + 13) / 26);
      image.bytes[static_cast<std::size_t>(i)] = blended(smooth, *at, factor);
    }
}

void shift_hue(const RgbImage& image, double turn) {
  const auto shift = static_cast<std::uint8_t>(static_cast<int>(turn * 255.0));  // modulo 256
  for (std::size_t i = 0; i < image.bytes.size(); i += kChannels) {
    std::uint8_t* const rgb = image.bytes.data() + i;
    Hsv color = hsv_of(rgb);
    color.hue = static_cast<std::uint8_t>(color.hue + shift);
    put_rgb(color, rgb);
  }
}

void posterize(const RgbImage& image, int bits) {
  const auto mask = static_cast<std::uint8_t>(0xff << (8 - bits));
  for (std::uint8_t& value : image.bytes) value &= mask;
}

void solarize(const RgbImage& image, double threshold) {
  for (std::uint8_t& value : image.bytes)
    if (!(static_cast<double>(value) < threshold)) value = static_cast<std::uint8_t>(255 - value);
}

void stretch_contrast(const RgbImage& image) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    int low = 255;
    int high = 0;
    for (std::size_t i = c; i < image.bytes.size(); i += kChannels) {
      low = std::min(low, int{image.bytes[i]});
      high = std::max(high, int{image.bytes[i]});
    }
    if (high <= low) continue;
    const double scale = 255.0 / (high - low);
    const double offset = -low * scale;
    Table table{};
    for (int i = 0; i < 256; ++i)
      table[static_cast<std::size_t>(i)] = clipped(static_cast<int>(i * scale + offset));
    apply(table, image.bytes, c);
  }
}

void equalize(const RgbImage& image) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    const Histogram counts = histogram_of(image.bytes, c);
    std::uint32_t last = 0;
    std::uint32_t sum = 0;
    for (const std::uint32_t count : counts) {
      sum += count;
      if (count > 0) last = count;
    }
    const std::uint32_t step = (sum - last) / 255;
    if (step == 0) continue;
    Table table{};
    std::uint32_t n = step / 2;
    for (std::size_t i = 0; i < 256; ++i) {
      table[i] = static_cast<std::uint8_t>(std::min(n / step, 255U));
      n += counts[i];
    }
    apply(table, image.bytes, c);
  }
}

void transform(const RgbImage& image, const AffineMap& map, std::span<std::uint8_t> scratch) {
  MILLRACE_ASSERT(scratch.size() >= image.bytes.size());
  std::ranges::copy(image.bytes, scratch.begin());
  if (map[1] == 0.0 && map[3] == 0.0)
    transform_scaled(image, map, scratch);
  else
    transform_fixed(image, map, scratch);
}

AffineMap rotation_of(double degrees, std::int32_t height, std::int32_t width) {
  const auto rounded = [](double v) { return std::round(v * 1e15) / 1e15; };
  const double angle = -(degrees * std::numbers::pi / 180.0);
  const double cosine = rounded(std::cos(angle));
  const double sine = rounded(std::sin(angle));
  const double x = width / 2.0;
  const double y = height / 2.0;
  return {cosine,
          sine,
          cosine * -x + sine * -y + x,
          rounded(-std::sin(angle)),
          cosine,
          rounded(-std::sin(angle)) * -x + cosine * -y + y};
}

}  // namespace millrace::io
