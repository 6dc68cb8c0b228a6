// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "io/data/packed_images.hpp"
#include "io/data/parallel.hpp"
#include "io/tools/check.hpp"

namespace millrace::io {
namespace {

constexpr std::int64_t kImagesATask = 256;

struct Part {
  std::uint64_t bytes = 0;
  std::vector<Finding> findings;
};

Part check_part(const PackedImages& images, std::int64_t first, std::int64_t last) {
  Part part;
  ReadBuffer buffer;
  for (std::int64_t i = first; i < last; ++i) {
    part.bytes += images.stored_bytes(i);
    try {
      (void)images.stored(i, buffer);
    } catch (const Error& error) {
      const std::string place = images.where(i);
      part.findings.push_back({.file = place, .problem = without_place(error.what(), place)});
    }
  }
  return part;
}

CheckReport check_all(const PackedImages& images, unsigned threads,
                      const ProgressCallback& progress) {
  const std::int64_t size = images.size();
  std::vector<Part> parts(static_cast<std::size_t>((size + kImagesATask - 1) / kImagesATask));
  ProgressMeter meter(progress, static_cast<std::uint64_t>(size));
  parallel_for(parts.size(), threads, [&](std::size_t i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * kImagesATask;
    const std::int64_t last = std::min(first + kImagesATask, size);
    parts[i] = check_part(images, first, last);
    meter.add(static_cast<std::uint64_t>(last - first));
  });
  CheckReport report{.files = 1,
                     .records = static_cast<std::uint64_t>(size),
                     .bytes = images.table_bytes(),
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
  std::optional<PackedImages> images;
  try {
    images.emplace(path);
  } catch (const Error& error) {
    const std::string place = path.string();
    return {.files = 1,
            .findings = {{.file = place, .problem = without_place(error.what(), place)}}};
  }
  return check_all(*images, threads, progress);
}

}  // namespace millrace::io
