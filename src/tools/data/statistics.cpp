// SPDX-License-Identifier: Apache-2.0
#include "tools/data/statistics.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace millrace::io {
namespace {

void measure_images(const ImageDataset& set, const MeasureImage& measure, double max_bad_fraction,
                    ImageStatistics& statistics) {
  std::vector<std::int64_t> heights;
  std::vector<std::int64_t> widths;
  ReadBuffer buffer;
  const auto measure_one = [&](std::int64_t i) -> std::string {
    try {
      std::optional<ImageSize> size = set.known_size(i);
      if (!size) size = measure(set.stored(i, buffer).bytes);
      if (!size) return "its size cannot be read";
      heights.push_back(size->height);
      widths.push_back(size->width);
      return "";
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Data) throw;
      return error.what();
    }
  };
  const bool all = set.size() > 0 && set.known_size(0);
  const std::int64_t step = all ? 1 : std::max<std::int64_t>(1, set.size() / kMeasuredImages);
  for (std::int64_t i = 0; i < set.size(); i += step) {
    const std::string problem = measure_one(i);
    if (problem.empty()) continue;
    statistics.bad.push_back(problem_at(set.where(i), problem));
    if (std::ssize(statistics.bad) > most_bad(set.size(), max_bad_fraction))
      fail(ErrorKind::Data, "{} of {} images cannot be read, the last: {}; {}",
           statistics.bad.size(), set.size(), statistics.bad.back(),
           describe_limit(set.size(), max_bad_fraction));
  }
  statistics.measured = std::ssize(heights);
  statistics.height = spread_of(std::move(heights));
  statistics.width = spread_of(std::move(widths));
}

}  // namespace

Spread spread_of(std::vector<std::int64_t> numbers) {
  if (numbers.empty()) return {};
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::ranges::nth_element(numbers, middle);
  const auto [smallest, largest] = std::ranges::minmax(numbers);
  return {.smallest = smallest, .median = *middle, .largest = largest};
}

ImageStatistics collect_statistics(const ImageDataset& set, double max_bad_fraction,
                                   const MeasureImage& measure) {
  ImageStatistics statistics;
  statistics.images = set.size();
  statistics.per_class.resize(static_cast<std::size_t>(set.classes()));
  std::vector<std::int64_t> bytes;
  bytes.reserve(static_cast<std::size_t>(set.size()));
  for (std::int64_t i = 0; i < set.size(); ++i) {
    bytes.push_back(static_cast<std::int64_t>(set.stored_bytes(i)));
    statistics.bytes += set.stored_bytes(i);
    ++statistics.per_class[static_cast<std::size_t>(set.label(i))];
  }
  statistics.stored_bytes = spread_of(std::move(bytes));
  measure_images(set, measure, max_bad_fraction, statistics);
  return statistics;
}

}  // namespace millrace::io
