// SPDX-License-Identifier: Apache-2.0
#include "io/images/normalise.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "core/error.hpp"
#include "core/instruction_level.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kChannels = 3;
/// Block size: a multiple of the vector length of any processor and of the channels.
constexpr std::size_t kBlock = 128 * kChannels;

/// Mean and scale of every value in a block.
struct Pattern {
  std::array<float, kBlock> mean;
  std::array<float, kBlock> scale;
};

Pattern pattern_of(const PixelScaling& scaling) {
  Pattern pattern;
  for (std::size_t i = 0; i < kBlock; ++i) {
    pattern.mean[i] = scaling.mean[i % kChannels];
    pattern.scale[i] = scaling.scale[i % kChannels];
  }
  return pattern;
}

void scale_bytes(const std::uint8_t* bytes, const Pattern& pattern, std::size_t n, float* values) {
  for (std::size_t i = 0; i < n; ++i)
    values[i] = (static_cast<float>(bytes[i]) - pattern.mean[i]) * pattern.scale[i];
}

template <class T>
T rounded(float x);
/// to_bfloat16 without the check for NaN, in half the time.
template <>
bfloat16 rounded<bfloat16>(float x) {
  const auto wide = std::bit_cast<std::uint32_t>(x);
  return {static_cast<std::uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16)};
}
template <>
float16 rounded<float16>(float x) {
  return to_float16(x);
}

void check_sizes(std::size_t bytes, std::size_t values) {
  MILLRACE_ASSERT(bytes == values && bytes % kChannels == 0);
}

}  // namespace

void normalise_pixels(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                      std::span<float> values) {
  check_sizes(bytes.size(), values.size());
  const Pattern pattern = pattern_of(scaling);
  at_level([&] {
    for (std::size_t done = 0; done < bytes.size(); done += kBlock)
      scale_bytes(bytes.data() + done, pattern, std::min(kBlock, bytes.size() - done),
                  values.data() + done);
  });
}

namespace {

/// Conversion between sizes is a separate pass: in one loop it would shorten the vectors.
template <class T>
void normalise_and_round(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                         std::span<T> values) {
  check_sizes(bytes.size(), values.size());
  const Pattern pattern = pattern_of(scaling);
  std::array<float, kBlock> wide;
  at_level([&] {
    for (std::size_t done = 0; done < bytes.size(); done += kBlock) {
      const std::size_t n = std::min(kBlock, bytes.size() - done);
      scale_bytes(bytes.data() + done, pattern, n, wide.data());
      T* const to = values.data() + done;
      for (std::size_t i = 0; i < n; ++i) to[i] = rounded<T>(wide[i]);
    }
  });
}

}  // namespace

void normalise_pixels(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                      std::span<bfloat16> values) {
  normalise_and_round(bytes, scaling, values);
}

void normalise_pixels(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                      std::span<float16> values) {
  normalise_and_round(bytes, scaling, values);
}

}  // namespace millrace::io
