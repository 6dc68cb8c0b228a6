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

/// Smallest, median and largest of some numbers.
struct Spread {
  std::int64_t smallest = 0;
  std::int64_t median = 0;
  std::int64_t largest = 0;
  friend bool operator==(const Spread&, const Spread&) = default;
};
/// Errors: none; of no numbers everything is 0.
[[nodiscard]] Spread spread_of(std::vector<std::int64_t> numbers);

struct PictureSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
};
/// Reads the size from a picture's header; nothing when it is damaged.
using MeasurePicture = std::function<std::optional<PictureSize>(std::span<const std::byte>)>;

/// What a source holds. Counts and bytes are of all pictures; heights and widths of up to
/// kMeasuredPictures of them, evenly spaced.
struct PictureStatistics {
  std::int64_t pictures = 0;
  std::uint64_t bytes = 0;
  Spread stored_bytes;
  std::vector<std::int64_t> per_class;
  std::int64_t measured = 0;
  std::vector<std::string> bad;  ///< those of them that could not be read: what is wrong with which
  Spread height;
  Spread width;
};
inline constexpr std::int64_t kMeasuredPictures = 1000;

/// `measure` may be empty: then nothing is measured. Errors: Data when more than `max_bad_fraction`
/// of all pictures cannot be read; Io.
[[nodiscard]] PictureStatistics collect_statistics(const EncodedSource& source,
                                                   const MeasurePicture& measure,
                                                   double max_bad_fraction = 0.0);

}  // namespace millrace::io
