// SPDX-License-Identifier: Apache-2.0
#include "tools/data/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/image_format.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/data/archive_set.hpp"
#include "io/data/class_folders.hpp"
#include "io/data/dataset_kinds.hpp"
#include "io/data/example.hpp"
#include "io/data/files.hpp"
#include "io/data/packed_images.hpp"
#include "io/data/record_frame.hpp"
#include "io/data/record_index.hpp"
#include "io/data/record_set.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

struct Part : CheckReport {
  std::vector<fs::path> others = {};  ///< in class folders: not images by content or name
};

void add_error(CheckReport& report, const std::string& place, const Error& error) {
  report.findings.push_back({.file = place, .problem = without_place(error.what(), place)});
}

class ShardCheck {
 public:
  ShardCheck(const fs::path& path, const CheckOptions& options) : path_(path), options_(options) {}

  Part run() {
    try {
      read_lines();
      ByteWindow file(path_);
      report_.bytes = file.size();
      refuse_gzip(file);
      records(file);
    } catch (const Error& error) {
      add_error(report_, path_.string(), error);
    }
    return std::move(report_);
  }

 private:
  void add(std::uint64_t offset, std::string problem) {
    report_.findings.push_back({.file = path_.string(),
                                .record = report_.records,
                                .offset = offset,
                                .problem = std::move(problem)});
  }

  void add_file(std::string problem) {
    report_.findings.push_back({.file = path_.string(), .problem = std::move(problem)});
  }

  void add_lines(std::string problem) {
    report_.findings.push_back({.file = path_.string() + ".idx", .problem = std::move(problem)});
  }

  void read_lines() {
    try {
      lines_ = read_offset_lines(path_);
    } catch (const Error& error) {
      add_error(report_, path_.string() + ".idx", error);
    }
    if (lines_) known_ = offsets_in(*lines_);
  }

  void records(ByteWindow& file) {
    std::optional<OffsetLine> off;  // the first record missing from the .idx file
    FrameWalk walk(file, known_);
    for (Frame frame = walk.next(); frame.kind != Frame::Kind::End;
         frame = walk.next(), ++report_.records) {
      std::string problem = std::move(frame.problem);
      if (frame.kind == Frame::Kind::Record) {
        problem = record(file, frame);
        const OffsetLine line{frame.begin, frame.end - frame.begin};
        if (lines_ && !off && !lists(*lines_, line)) off = line;
      }
      if (!problem.empty()) add(frame.begin, std::move(problem));
    }
    if (off)
      add_lines(
          fmt::format("no line for the record of {} bytes at offset {}", off->bytes, off->offset));
    else
      compare_ends(file.size());
  }

  void compare_ends(std::uint64_t end) {
    if (!lines_ || lines_->empty()) return;
    const std::uint64_t listed = lines_->back().offset + lines_->back().bytes;
    if (listed > end)
      add_file(
          fmt::format("ends at {}, but the records in its .idx end at {}: the shard is truncated: "
                      "fetch it again; or the .idx belongs to another shard: remove it",
                      end, listed));
    else if (listed < end)
      add_lines(fmt::format("its records end at {}, but the shard ends at {}", listed, end));
  }

  std::string record(ByteWindow& file, const Frame& frame) {
    const auto bytes = static_cast<std::size_t>(frame.payload_bytes());
    const auto rest = file.at(frame.begin + kFrameHeadBytes, bytes + sizeof(std::uint32_t));
    if (!payload_is_whole(rest)) return "data checksum mismatch";
    Example example;
    std::string problem = parse_example(rest.first(bytes), example, buffer_);
    if (!problem.empty()) return problem;
    const std::int64_t first = options_.label_offset;
    if (example.label < first || example.label >= first + options_.classes)
      return fmt::format("label {} is not one of {} to {}", example.label, first,
                         first + options_.classes - 1);
    if (options_.inspect) problem = options_.inspect(example.encoded);
    return problem.empty() ? problem : "the image: " + problem;
  }

  fs::path path_;
  const CheckOptions& options_;
  std::optional<std::vector<OffsetLine>> lines_;
  std::vector<std::uint64_t> known_;
  ReadBuffer buffer_;
  Part report_;
};

std::uint64_t size_or_zero(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

std::string look_at_image(std::span<const std::byte> bytes, const CheckOptions& options) {
  if (bytes.empty()) return "is empty";
  if (format_of(bytes) == ImageFormat::Other) return "is neither JPEG nor PNG";
  std::string problem = options.inspect ? options.inspect(bytes) : "";
  return problem.empty() ? problem : "the image: " + problem;
}

// Whether a file in a class folder is not an image by content or name.
bool is_something_else(const std::string& name, std::span<const std::byte> bytes) {
  return !bytes.empty() && format_of(bytes) == ImageFormat::Other && !has_image_name(name);
}

void check_file(const fs::path& path, const CheckOptions& options, Part& report) {
  std::string problem;
  try {
    const std::vector<std::byte> bytes = read_file(path, kMaxRecordBytes);
    if (is_something_else(path.filename().string(), bytes)) {
      report.others.push_back(path);
      return;
    }
    report.bytes += bytes.size();
    problem = look_at_image(bytes, options);
  } catch (const Error& failure) {
    problem = without_place(failure.what(), path.string());
  }
  ++report.records;
  if (!problem.empty())
    report.findings.push_back({.file = path.string(), .problem = std::move(problem)});
}

/// Adds the files of a class folder and of the folders in it, `level` levels deep.
void check_folder(const fs::path& folder, int level, const CheckOptions& options, Part& report) {
  FolderListing listing;
  try {
    listing = list_folder(folder);
  } catch (const Error& error) {
    add_error(report, folder.string(), error);
  }
  for (const std::string& name : listing.others)
    if (has_image_name(name))
      report.findings.push_back({.file = (folder / name).string(),
                                 .problem = "is not a regular file, or is a broken link"});
  for (const std::string& name : listing.folders) {
    if (has_image_name(name))
      report.findings.push_back(
          {.file = (folder / name).string(), .problem = "is a folder with the name of an image"});
    else if (level == kMostFolderLevels)
      report.findings.push_back(
          {.file = (folder / name).string(),
           .problem = fmt::format("more than {} folders within a class", kMostFolderLevels)});
    else
      check_folder(folder / name, level + 1, options, report);
  }
  for (const std::string& name : listing.files) check_file(folder / name, options, report);
}

void add(CheckReport& report, CheckReport&& part) {
  report.records += part.records;
  report.bytes += part.bytes;
  std::ranges::move(part.findings, std::back_inserter(report.findings));
}

/// Reads images [first, last), and inspects those that are files.
Part check_part(const ImageDataset& images, const CheckOptions& options, std::int64_t first,
                std::int64_t last) {
  Part part;
  ReadBuffer buffer;
  for (std::int64_t i = first; i < last; ++i) {
    ++part.records;
    part.bytes += images.stored_bytes(i);
    try {
      const StoredImage image = images.stored(i, buffer);
      if (!image.is_file()) continue;
      if (std::string problem = look_at_image(image.bytes, options); !problem.empty())
        part.findings.push_back({.file = images.where(i), .problem = std::move(problem)});
    } catch (const Error& error) {
      add_error(part, images.where(i), error);
    }
  }
  return part;
}

/// Reads all images of a set.
void check_all(const ImageDataset& images, const CheckOptions& options, CheckReport& report) {
  constexpr std::int64_t kImagesATask = 256;
  const std::int64_t size = images.size();
  std::vector<Part> parts(static_cast<std::size_t>((size + kImagesATask - 1) / kImagesATask));
  ProgressMeter meter(options.progress, static_cast<std::uint64_t>(size));
  parallel_for(parts.size(), options.threads, [&](std::size_t i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * kImagesATask;
    const std::int64_t last = std::min(first + kImagesATask, size);
    parts[i] = check_part(images, options, first, last);
    meter.add(static_cast<std::uint64_t>(last - first));
  });
  for (Part& part : parts) add(report, std::move(part));
}

}  // namespace

std::string to_string(const Finding& finding) {
  return printable(fmt::format(
      "{}: {}",
      finding.record ? describe_place(finding.file, *finding.record, finding.offset) : finding.file,
      finding.problem));
}

CheckReport check_records(const RecordFileSet& set, const CheckOptions& options) {
  std::uint64_t total = 0;
  for (const std::string& name : set.files) total += size_or_zero(set.folder / name);
  ProgressMeter meter(options.progress, total);
  std::vector<Part> parts(set.files.size());
  parallel_for(parts.size(), options.threads, [&](std::size_t i) {
    parts[i] = ShardCheck(set.folder / set.files[i], options).run();
    meter.add(parts[i].bytes);
  });
  CheckReport report;
  report.files = parts.size();
  for (const std::string& name : set.missing)
    report.findings.push_back(
        {.file = (set.folder / name).string(), .problem = "the shard is missing"});
  for (const std::string& name : set.empty)
    report.findings.push_back({.file = (set.folder / name).string(),
                               .problem = "the shard is empty: fetch or convert it again"});
  for (Part& part : parts) add(report, std::move(part));
  return report;
}

CheckReport check_class_folders(const ClassFolders& folders, const CheckOptions& options) {
  std::vector<Part> parts(folders.classes.size());
  ProgressMeter meter(options.progress, parts.size());
  parallel_for(parts.size(), options.threads, [&](std::size_t i) {
    check_folder(folders.folder / folders.classes[i], 0, options, parts[i]);
    meter.add(1);
  });
  CheckReport report;
  std::vector<fs::path> others;
  for (Part& part : parts) {
    std::ranges::move(part.others, std::back_inserter(others));
    add(report, std::move(part));
  }
  report.files = report.records;
  if (!others.empty())
    report.notices.push_back(printable(fmt::format(
        "{}: {} left out, neither JPEG nor PNG, for example {}", folders.folder.string(),
        counted(std::ssize(others), "file"), others.front().string())));
  return report;
}

CheckReport check_archives(const ArchiveSet& archives, const CheckOptions& options) {
  CheckReport report;
  for (const BadRecord& bad : archives.index().bad) {
    ++report.records;
    report.findings.push_back({.file = archives.path_of(bad).string(),
                               .record = bad.record,
                               .offset = bad.offset,
                               .problem = bad.problem});
  }
  check_all(archives, options, report);
  report.files = archives.index().files.size();
  for (const std::string& notice : archives.notices()) report.notices.push_back(printable(notice));
  return report;
}

CheckReport check_images(const fs::path& directory, Split split, const CheckOptions& options,
                         OpenOptions open) {
  open.max_bad_fraction = 1.0;  // all of them are findings
  switch (storage_in(directory, split, PackedFile::CountsNot)) {
    case Storage::Records:
      return check_records(find_record_files(directory, split), options);
    case Storage::Folders:
      return check_class_folders(class_folders_in(directory, split, open), options);
    case Storage::Archives: {
      const auto set = open_image_dataset(directory, split, open);
      return check_archives(dynamic_cast<const ArchiveSet&>(*set), options);
    }
    case Storage::Packed:
    case Storage::None:
      break;
  }
  fail_no_images(directory, split, PackedFile::CountsNot);
}

CheckReport check_packed(const fs::path& path, unsigned threads, const ProgressCallback& progress) {
  CheckOptions options;
  options.threads = threads;
  options.progress = progress;
  CheckReport report;
  report.files = 1;
  try {
    const PackedImages images(path);
    report.bytes = images.table_bytes();
    check_all(images, options, report);
  } catch (const Error& error) {
    add_error(report, path.string(), error);
  }
  return report;
}

}  // namespace millrace::io
