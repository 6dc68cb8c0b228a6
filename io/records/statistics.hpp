// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/records/encoded_source.hpp"

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

struct PictureSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
};
/// Reads the size from an image's header; empty if it is damaged.
using MeasurePicture = std::function<std::optional<PictureSize>(std::span<const std::byte>)>;

/// Statistics of a source. Counts and bytes cover all images; heights and widths cover up to
/// kMeasuredPictures evenly spaced images.
struct PictureStatistics {
  std::int64_t pictures = 0;
  std::uint64_t bytes = 0;
  Spread stored_bytes;
  std::vector<std::int64_t> per_class;
  std::int64_t measured = 0;
  std::vector<std::string> bad;  ///< one line per measured image that could not be read
  Spread height;
  Spread width;
};
inline constexpr std::int64_t kMeasuredPictures = 1000;

/// If `measure` is empty, nothing is measured. Errors: Data if more than `max_bad_fraction` of all
/// images cannot be read; Io.
[[nodiscard]] PictureStatistics collect_statistics(const EncodedSource& source,
                                                   const MeasurePicture& measure,
                                                   double max_bad_fraction = 0.0);

}  // namespace millrace::io
