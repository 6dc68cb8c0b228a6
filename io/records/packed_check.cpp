// SPDX-License-Identifier: Apache-2.0
#include "io/records/packed_check.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "io/records/bad_pictures.hpp"
#include "io/records/parallel.hpp"

namespace millrace::io {
namespace {

constexpr std::int64_t kPicturesATask = 256;

struct Part {
  std::uint64_t bytes = 0;
  std::vector<Finding> findings;
};

Part check_part(const PackedPictures& pictures, std::int64_t first, std::int64_t last) {
  Part part;
  ReadBuffer buffer;
  for (std::int64_t i = first; i < last; ++i) {
    part.bytes += pictures.stored_bytes(i);
    try {
      (void)pictures.read(i, buffer);
    } catch (const Error& error) {
      const std::string place = pictures.where(i);
      part.findings.push_back({.file = place, .problem = without_place(error.what(), place)});
    }
  }
  return part;
}

CheckReport check_all(const PackedPictures& pictures, unsigned threads,
                      const ProgressCallback& progress) {
  const std::int64_t size = pictures.size();
  std::vector<Part> parts(static_cast<std::size_t>((size + kPicturesATask - 1) / kPicturesATask));
  ProgressMeter meter(progress, static_cast<std::uint64_t>(size));
  parallel_for(parts.size(), threads, [&](std::size_t i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * kPicturesATask;
    const std::int64_t last = std::min(first + kPicturesATask, size);
    parts[i] = check_part(pictures, first, last);
    meter.add(static_cast<std::uint64_t>(last - first));
  });
  CheckReport report{.files = 1,
                     .records = static_cast<std::uint64_t>(size),
                     .bytes = pictures.table_bytes(),
                     .findings = {}};
  for (Part& part : parts) {
    report.bytes += part.bytes;
    std::ranges::move(part.findings, std::back_inserter(report.findings));
  }
  return report;
}

}  // namespace

CheckReport check_packed(const std::filesystem::path& path, unsigned threads,
                         const ProgressCallback& progress) {
  std::optional<PackedPictures> pictures;
  try {
    pictures.emplace(path);
  } catch (const Error& error) {
    const std::string place = path.string();
    return {.files = 1,
            .findings = {{.file = place, .problem = without_place(error.what(), place)}}};
  }
  return check_all(*pictures, threads, progress);
}

PictureStatistics packed_statistics(const PackedPictures& pictures) {
  PictureStatistics statistics;
  statistics.pictures = pictures.size();
  statistics.measured = pictures.size();
  statistics.per_class.resize(static_cast<std::size_t>(pictures.classes()));
  std::vector<std::int64_t> bytes;
  std::vector<std::int64_t> heights;
  std::vector<std::int64_t> widths;
  for (std::int64_t i = 0; i < pictures.size(); ++i) {
    const PackedSize size = pictures.picture_size(i);
    bytes.push_back(static_cast<std::int64_t>(pictures.stored_bytes(i)));
    heights.push_back(size.height);
    widths.push_back(size.width);
    statistics.bytes += pictures.stored_bytes(i);
    ++statistics.per_class[static_cast<std::size_t>(pictures.label(i))];
  }
  statistics.stored_bytes = spread_of(std::move(bytes));
  statistics.height = spread_of(std::move(heights));
  statistics.width = spread_of(std::move(widths));
  return statistics;
}

}  // namespace millrace::io
