// SPDX-License-Identifier: Apache-2.0
#include "io/records/statistics.hpp"

#include <algorithm>

namespace millrace::io {

Spread spread_of(std::vector<std::int64_t> numbers) {
  if (numbers.empty()) return {};
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::ranges::nth_element(numbers, middle);
  const auto [smallest, largest] = std::ranges::minmax(numbers);
  return {.smallest = smallest, .median = *middle, .largest = largest};
}

PictureStatistics collect_statistics(const EncodedSource& source, const MeasurePicture& measure) {
  PictureStatistics statistics;
  statistics.pictures = source.size();
  statistics.per_class.resize(static_cast<std::size_t>(source.classes()));
  std::vector<std::int64_t> bytes;
  bytes.reserve(static_cast<std::size_t>(source.size()));
  for (std::int64_t i = 0; i < source.size(); ++i) {
    bytes.push_back(static_cast<std::int64_t>(source.stored_bytes(i)));
    statistics.bytes += source.stored_bytes(i);
    ++statistics.per_class[static_cast<std::size_t>(source.label(i))];
  }
  statistics.stored_bytes = spread_of(std::move(bytes));
  if (!measure) return statistics;
  const std::int64_t step = std::max<std::int64_t>(1, source.size() / kMeasuredPictures);
  std::vector<std::int64_t> heights;
  std::vector<std::int64_t> widths;
  ReadBuffer buffer;
  for (std::int64_t i = 0; i < source.size(); i += step)
    if (const auto size = measure(source.read(i, buffer).bytes)) {
      heights.push_back(size->height);
      widths.push_back(size->width);
    }
  statistics.measured = static_cast<std::int64_t>(heights.size());
  statistics.height = spread_of(std::move(heights));
  statistics.width = spread_of(std::move(widths));
  return statistics;
}

}  // namespace millrace::io
