// SPDX-License-Identifier: Apache-2.0
#include "io/records/statistics.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "io/records/bad_pictures.hpp"

namespace millrace::io {
namespace {

void measure_pictures(const EncodedSource& source, const MeasurePicture& measure,
                      double max_bad_fraction, PictureStatistics& statistics) {
  const std::int64_t step = std::max<std::int64_t>(1, source.size() / kMeasuredPictures);
  std::vector<std::int64_t> heights;
  std::vector<std::int64_t> widths;
  ReadBuffer buffer;
  const auto bad = [&](std::string what) {
    statistics.bad.push_back(std::move(what));
    if (too_many_bad(std::ssize(statistics.bad), source.size(), max_bad_fraction))
      fail(ErrorKind::Data,
           "{} of {} images cannot be read, the last: {}; the limit is {:g} % (--max-bad-fraction)",
           statistics.bad.size(), source.size(), statistics.bad.back(), 100.0 * max_bad_fraction);
  };
  for (std::int64_t i = 0; i < source.size(); i += step) {
    std::string problem;
    try {
      if (const auto size = measure(source.read(i, buffer).bytes)) {
        heights.push_back(size->height);
        widths.push_back(size->width);
      } else {
        problem = problem_at(source.where(i), "its size cannot be read");
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Data) throw;
      problem = problem_at(source.where(i), error.what());
    }
    if (!problem.empty()) bad(std::move(problem));
  }
  statistics.measured = static_cast<std::int64_t>(heights.size());
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

PictureStatistics collect_statistics(const EncodedSource& source, const MeasurePicture& measure,
                                     double max_bad_fraction) {
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
  if (measure) measure_pictures(source, measure, max_bad_fraction, statistics);
  return statistics;
}

}  // namespace millrace::io
