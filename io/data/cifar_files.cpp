// SPDX-License-Identifier: Apache-2.0
#include "io/data/cifar_files.hpp"

#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxTrainingFiles = 5;  ///< of CIFAR-10

constexpr int kLabelLimits10[] = {10};
constexpr int kLabelLimits100[] = {20, 100};

constexpr CifarLayout kCifar10{
    "cifar-10", "cifar-10-batches-bin",
    "data_batch_1.bin .. data_batch_5.bin and test_batch.bin (30,730,000 bytes each in the "
    "published set)",
    kLabelLimits10};
constexpr CifarLayout kCifar100{
    "cifar-100", "cifar-100-binary",
    "train.bin (153,700,000 bytes in the published set) and test.bin (30,740,000)",
    kLabelLimits100};

/// True for a regular file or a link to one; false if the path cannot be inspected.
bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

fs::path training_file(const fs::path& folder, int number) {
  return folder / fmt::format("data_batch_{}.bin", number);
}

bool holds_set(const fs::path& folder, CifarKind kind) {
  if (kind == CifarKind::Cifar10)
    return is_file(training_file(folder, 1)) || is_file(folder / "test_batch.bin");
  return is_file(folder / "train.bin") || is_file(folder / "test.bin");
}

/// Folders directly below `folders`, sorted by name, so that all ranks find the same one. Links are
/// not followed: they may lead out of the tree or into a cycle.
std::vector<fs::path> sub_folders(const std::vector<fs::path>& folders) {
  std::vector<fs::path> found;
  for (const fs::path& folder : folders) {
    const auto first = static_cast<std::ptrdiff_t>(found.size());
    std::error_code ignored;
    for (fs::directory_iterator entry(folder, ignored), end; entry != end && !ignored;
         entry.increment(ignored)) {
      std::error_code unreadable;
      if (entry->is_directory(unreadable) && !entry->is_symlink(unreadable))
        found.push_back(entry->path());
    }
    std::sort(found.begin() + first, found.end());
  }
  return found;
}

/// The files of one split in order; all of them exist.
std::vector<fs::path> files_of(const fs::path& folder, CifarKind kind, Split split) {
  if (split == Split::Train && kind == CifarKind::Cifar10) {
    std::vector<fs::path> files;
    int last = kMaxTrainingFiles;
    while (last > 1 && !is_file(training_file(folder, last))) --last;
    for (int number = 1; number <= last; ++number) files.push_back(training_file(folder, number));
    for (const fs::path& file : files)
      if (!is_file(file))
        fail(ErrorKind::Data,
             "{}: missing from the training set (files 1 to {} are expected): fetch the set again",
             file.string(), last);
    return files;
  }
  const std::string_view test = kind == CifarKind::Cifar10 ? "test_batch.bin" : "test.bin";
  fs::path file = folder / (split == Split::Train ? std::string_view("train.bin") : test);
  if (!is_file(file))
    fail(ErrorKind::Data, "{}: missing, but other files of {} exist: fetch the set again",
         file.string(), layout_of(kind).name);
  return {std::move(file)};
}

/// Size of a file, checked before memory is allocated.
std::size_t checked_size(const fs::path& path) {
  constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{4} << 30;
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error)
    fail(ErrorKind::Io, "{}: its size cannot be read ({}): check its permissions", path.string(),
         error.message());
  if (size > kMaxFileBytes)
    fail(ErrorKind::Data,
         "{}: {} bytes exceed the limit of {} for a CIFAR file: is it another format?",
         path.string(), size, kMaxFileBytes);
  return static_cast<std::size_t>(size);
}

/// Appends the first `size` bytes of a file.
void append_file(const fs::path& path, std::size_t size, std::vector<std::uint8_t>& bytes) {
  const UniqueFd file = open_file(path, O_RDONLY);
  const std::size_t begin = bytes.size();
  bytes.resize(begin + size);
  const auto out = std::as_writable_bytes(std::span(bytes)).subspan(begin);
  const std::size_t got = read_some(file.get(), out, path);
  if (got != size)
    fail(ErrorKind::Io,
         "{}: only {} of {} bytes could be read: is the disk damaged, or the file still being "
         "written?",
         path.string(), got, size);
}

struct FileRecords {
  fs::path file;
  std::int64_t records;
};

[[noreturn]] void fail_cut(const FileRecords& found, std::int64_t expected, std::string_view where,
                           const std::string& remedy) {
  fail(ErrorKind::Data,
       "{}: {} records, but {} {}: the file was truncated or replaced: fetch or generate the set "
       "again{}",
       found.file.string(), found.records, expected, where, remedy);
}

/// For users who intentionally reduced a set.
std::string or_remove(const fs::path& file) {
  return fmt::format(", or remove {} if this is intended", file.string());
}

/// Compares with the counts beside a generated set.
void require_counts(const std::vector<FileRecords>& files, const fs::path& counts) {
  LineReader lines(counts);
  while (const std::optional<std::string_view> line = lines.next()) {
    const std::size_t blank = std::min(line->find(' '), line->size() - 1);
    const auto records = parse_number<std::int64_t>(line->substr(blank + 1));
    if (line->empty() || !records)
      fail(ErrorKind::Data, "{}: line {} is not \"file records\": generate the set again",
           counts.string(), lines.lines());
    // Files of the other split may be missing.
    const fs::path drawn = counts.parent_path() / line->substr(0, blank);
    const auto is_batch = [](const fs::path& file) {
      return file.filename().string().starts_with("data_batch_");
    };
    if (is_batch(drawn) && is_batch(files.front().file) && !is_file(drawn))
      fail(ErrorKind::Data,
           "{}: is missing, but {} records were generated for it: generate the set again{}",
           drawn.string(), *records, or_remove(counts));
    for (const FileRecords& found : files)
      if (found.file.filename() == line->substr(0, blank) && found.records != *records)
        fail_cut(found, *records, "were generated", or_remove(counts));
  }
}

/// Whether the class names are those of the published set.
bool is_published(const fs::path& names, CifarKind kind) {
  if (!is_file(names)) return false;
  return LineReader(names).next() == (kind == CifarKind::Cifar10 ? "airplane" : "apple");
}

/// Detects files truncated between two records by comparing lengths with what is known about the
/// set.
void require_whole(const std::vector<FileRecords>& files, CifarKind kind, Split split) {
  const bool ten = kind == CifarKind::Cifar10;
  const fs::path folder = files.front().file.parent_path();
  if (const fs::path counts = folder / kRecordCountsName; is_file(counts))
    return require_counts(files, counts);
  const fs::path names = folder / (ten ? "batches.meta.txt" : "fine_label_names.txt");
  if (is_published(names, kind)) {
    if (ten && split == Split::Train && files.size() != kMaxTrainingFiles)
      fail(ErrorKind::Data,
           "{}: {} training files, but {} are in the published set: fetch it again{}",
           folder.string(), files.size(), kMaxTrainingFiles, or_remove(names));
    const std::int64_t published = ten || split == Split::Validation ? 10'000 : 50'000;
    for (const FileRecords& found : files)
      if (found.records != published)
        fail_cut(found, published, "are in the published file", or_remove(names));
    return;
  }
  // Files of one set have equal lengths, up to one record if the images cannot be divided evenly.
  const auto [least, most] = std::ranges::minmax(files, {}, &FileRecords::records);
  if (most.records - least.records > 1)
    fail_cut(least, most.records, fmt::format("are in {}", most.file.filename().string()), "");
}

/// Errors: Data, unless the bytes are a whole number of records, at least one.
void require_records(std::span<const std::uint8_t> bytes, const CifarLayout& layout,
                     std::string_view file) {
  const std::size_t record_bytes = layout.record_bytes();
  if (bytes.empty())
    fail(ErrorKind::Data, "{}: the file is empty; expected {} records of {} bytes: fetch it again",
         file, layout.name, record_bytes);
  if (bytes.size() % record_bytes != 0)
    fail(ErrorKind::Data,
         "{}: {} bytes are not a whole number of {} records of {} bytes ({} and {} left over): the "
         "file is truncated or in another format: fetch it again",
         file, bytes.size(), layout.name, record_bytes, bytes.size() / record_bytes,
         bytes.size() % record_bytes);
}

/// Reports every record with a label out of range.
void visit_bad_labels(std::span<const std::uint8_t> bytes, const CifarLayout& layout,
                      std::string_view file, const std::function<void(const std::string&)>& visit) {
  const std::size_t record_bytes = layout.record_bytes();
  for (std::size_t at = 0; at < bytes.size(); at += record_bytes)
    for (std::size_t k = 0; k < layout.label_limits.size(); ++k)
      if (bytes[at + k] >= layout.label_limits[k])
        visit(fmt::format(
            "{}: record {} has label {}, but {} labels end at {}: the file is damaged or in "
            "another format: fetch it again",
            file, at / record_bytes, bytes[at + k], layout.name, layout.label_limits[k] - 1));
}

}  // namespace

const CifarLayout& layout_of(CifarKind kind) noexcept {
  return kind == CifarKind::Cifar10 ? kCifar10 : kCifar100;
}

void check_cifar_records(std::span<const std::uint8_t> bytes, CifarKind kind,
                         std::string_view file) {
  const CifarLayout& layout = layout_of(kind);
  require_records(bytes, layout, file);
  visit_bad_labels(bytes, layout, file,
                   [](const std::string& problem) { fail(ErrorKind::Data, "{}", problem); });
}

std::optional<CifarKind> cifar_kind_in(const fs::path& directory) {
  for (const CifarKind kind : {CifarKind::Cifar10, CifarKind::Cifar100}) {
    try {
      (void)find_cifar(directory, kind);
      return kind;
    } catch (const Error&) {  // no set of this kind
    }
  }
  return std::nullopt;
}

CifarReport check_cifar(const fs::path& folder, CifarKind kind, Split split) {
  CifarReport report;
  const auto note = [&](const auto& task) {
    try {
      task();
    } catch (const Error& error) {
      report.problems.emplace_back(error.what());
    }
  };
  const CifarLayout& layout = layout_of(kind);
  std::vector<fs::path> files;
  std::vector<FileRecords> found;
  note([&] { files = files_of(folder, kind, split); });
  for (const fs::path& file : files)
    note([&] {
      std::vector<std::uint8_t> bytes;
      append_file(file, checked_size(file), bytes);
      ++report.files;
      report.bytes += std::ssize(bytes);
      report.records += std::ssize(bytes) / static_cast<std::int64_t>(layout.record_bytes());
      require_records(bytes, layout, file.string());
      found.push_back({file, std::ssize(bytes) / static_cast<std::int64_t>(layout.record_bytes())});
      visit_bad_labels(bytes, layout, file.string(),
                       [&](const std::string& problem) { report.problems.push_back(problem); });
    });
  if (!found.empty()) note([&] { require_whole(found, kind, split); });
  return report;
}

fs::path find_cifar(const fs::path& directory, CifarKind kind) {
  if (holds_set(directory, kind)) return directory;
  const CifarLayout& layout = layout_of(kind);
  constexpr int kMaxDepth = 4;  // a data directory, not a whole disk
  std::vector<fs::path> level{directory};
  for (int depth = 0; depth < kMaxDepth && !level.empty(); ++depth) {
    // The set's own folder may be a link, although other links are not followed.
    for (const fs::path& folder : level)
      if (fs::path inside = folder / layout.folder; holds_set(inside, kind)) return inside;
    level = sub_folders(level);
  }
  std::error_code ignored;
  fail(ErrorKind::Data,
       "no {} data in '{}'{} nor in a folder {} below it: expected {}; point --data-dir at the "
       "binary version of the set (a restored run uses its original data directory, not DATA_DIR), "
       "or generate one with `millrace data generate`",
       layout.name, directory.string(),
       fs::exists(directory, ignored) ? "" : " (which does not exist)", layout.folder,
       layout.expected);
}

// They are read, not mapped, so a file that is truncated during a run cannot crash it.
std::vector<std::uint8_t> read_cifar_records(const fs::path& folder, CifarKind kind, Split split) {
  const std::vector<fs::path> files = files_of(folder, kind, split);
  std::vector<std::size_t> sizes;
  sizes.reserve(files.size());
  for (const fs::path& file : files) sizes.push_back(checked_size(file));
  std::vector<std::uint8_t> bytes;
  bytes.reserve(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  std::vector<FileRecords> found;
  const std::size_t record_bytes = layout_of(kind).record_bytes();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::size_t begin = bytes.size();
    append_file(files[i], sizes[i], bytes);
    check_cifar_records(std::span(bytes).subspan(begin), kind, files[i].string());
    found.push_back({files[i], static_cast<std::int64_t>(sizes[i] / record_bytes)});
  }
  require_whole(found, kind, split);
  return bytes;
}

}  // namespace millrace::io
