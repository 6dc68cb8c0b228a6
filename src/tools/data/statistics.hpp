// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/image_dataset.hpp"
#include "tools/data/image_codec.hpp"

namespace millrace::io {

/// Smallest, median and largest of a set of numbers.
struct Spread {
  std::int64_t smallest = 0;
  std::int64_t median = 0;
  std::int64_t largest = 0;
  friend bool operator==(const Spread&, const Spread&) = default;
};
/// Never fails; all zeros without numbers.
[[nodiscard]] Spread spread_of(std::vector<std::int64_t> numbers);

/// Reads the size from an image's header; empty if it is damaged.
using MeasureImage = std::function<std::optional<ImageSize>(std::span<const std::byte>)>;

/// Statistics of a set. Counts and bytes cover all images; heights and widths cover up to
/// kMeasuredImages evenly spaced images, or all if they are known without reading the images.
struct ImageStatistics {
  std::int64_t images = 0;
  std::uint64_t bytes = 0;
  Spread stored_bytes;
  std::vector<std::int64_t> per_class;
  std::int64_t measured = 0;
  std::vector<std::string> bad;  ///< one line per measured image that could not be read
  Spread height;
  Spread width;
};
inline constexpr std::int64_t kMeasuredImages = 1000;

/// Errors: Data if more than `max_bad_fraction` of all
/// images cannot be read; Io.
[[nodiscard]] ImageStatistics collect_statistics(const ImageDataset& set,
                                                 double max_bad_fraction = 0.0,
                                                 const MeasureImage& measure = measure_image);

}  // namespace millrace::io
