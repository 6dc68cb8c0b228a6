// SPDX-License-Identifier: Apache-2.0
#include "io/data/cifar.hpp"

#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/data/class_names.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxTrainingFiles = 5;  ///< of CIFAR-10
constexpr std::int64_t kPublishedTest = 10'000;

constexpr int kLabelLimits10[] = {10};
constexpr int kLabelLimits100[] = {20, 100};

constexpr CifarLayout kCifar10{
    .name = "cifar-10",
    .folder = "cifar-10-batches-bin",
    .expected =
        "data_batch_1.bin .. data_batch_5.bin and test_batch.bin (30,730,000 bytes each in "
        "the published set)",
    .label_limits = kLabelLimits10,
    .train = "data_batch_1.bin",
    .test = "test_batch.bin",
    .names = "batches.meta.txt",
    .first_name = "airplane",
    .published_train = 10'000};
constexpr CifarLayout kCifar100{
    .name = "cifar-100",
    .folder = "cifar-100-binary",
    .expected = "train.bin (153,700,000 bytes in the published set) and test.bin (30,740,000)",
    .label_limits = kLabelLimits100,
    .train = "train.bin",
    .test = "test.bin",
    .names = "fine_label_names.txt",
    .first_name = "apple",
    .published_train = 50'000};

/// Receives each problem of a set. Throws it, or takes a note.
using Report = std::function<void(const Error&)>;

template <class... Args>
void report_bad(const Report& report, fmt::format_string<Args...> format, Args&&... args) {
  report(Error(ErrorKind::Data, fmt::format(format, std::forward<Args>(args)...)));
}

/// True for a regular file or a link to one; false if the path cannot be inspected.
bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

fs::path training_file(const fs::path& folder, int number) {
  return folder / fmt::format("data_batch_{}.bin", number);
}

bool holds_set(const fs::path& folder, CifarKind kind) {
  return is_file(folder / layout_of(kind).train) || is_file(folder / layout_of(kind).test);
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

/// The files of one split in order, without missing ones.
std::vector<fs::path> find_files(const fs::path& folder, CifarKind kind, Split split,
                                 const Report& report) {
  std::vector<fs::path> files;
  if (split == Split::Train && kind == CifarKind::Cifar10) {
    int last = kMaxTrainingFiles;
    while (last > 1 && !is_file(training_file(folder, last))) --last;
    for (int number = 1; number <= last; ++number) {
      fs::path file = training_file(folder, number);
      if (is_file(file))
        files.push_back(std::move(file));
      else
        report_bad(report,
                   "{}: missing from the training set (files 1 to {} are expected): fetch the set "
                   "again",
                   file.string(), last);
    }
    return files;
  }
  fs::path file = folder / (split == Split::Train ? layout_of(kind).train : layout_of(kind).test);
  if (is_file(file))
    files.push_back(std::move(file));
  else
    report_bad(report, "{}: missing, but other files of {} exist: fetch the set again",
               file.string(), layout_of(kind).name);
  return files;
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

struct CountedFile {
  fs::path file;
  std::int64_t records;
};

void report_cut(const Report& report, const CountedFile& found, std::int64_t expected,
                std::string_view where, const std::string& remedy) {
  report_bad(report,
             "{}: {} records, but {} {}: the file was truncated or replaced: fetch or generate the "
             "set again{}",
             found.file.string(), found.records, expected, where, remedy);
}

/// For users who intentionally reduced a set.
std::string or_remove(const fs::path& file) {
  return fmt::format(", or remove {} if this is intended", file.string());
}

/// Compares with the counts beside a generated set. Files of the other split may be missing.
void check_counts(const std::vector<CountedFile>& files, const fs::path& counts,
                  const Report& report) {
  LineReader lines(counts);
  while (const std::optional<std::string_view> line = lines.next()) {
    const std::size_t blank = std::min(line->find(' '), line->size() - 1);
    const auto records = parse_number<std::int64_t>(line->substr(blank + 1));
    if (line->empty() || !records)
      return report_bad(report, "{}: line {} is not \"file records\": generate the set again",
                        counts.string(), lines.lines());
    const fs::path drawn = counts.parent_path() / line->substr(0, blank);
    const auto is_batch = [](const fs::path& file) {
      return file.filename().string().starts_with("data_batch_");
    };
    // Those before the last one are already reported.
    if (is_batch(drawn) && is_batch(files.front().file) && drawn > files.back().file &&
        !is_file(drawn))
      report_bad(report,
                 "{}: is missing, but {} records were generated for it: generate the set again{}",
                 drawn.string(), *records, or_remove(counts));
    for (const CountedFile& found : files)
      if (found.file == drawn && found.records != *records)
        report_cut(report, found, *records, "were generated", or_remove(counts));
  }
}

/// Detects files truncated between two records by comparing lengths with what is known about the
/// set.
void check_lengths(std::vector<CountedFile> files, CifarKind kind, Split split,
                   const Report& report) {
  const fs::path folder = files.front().file.parent_path();
  if (const fs::path counts = folder / kRecordCountsName; is_file(counts))
    return check_counts(files, counts, report);
  const fs::path names = folder / layout_of(kind).names;
  if (is_file(names) && LineReader(names).next() == layout_of(kind).first_name) {
    const bool batches = kind == CifarKind::Cifar10 && split == Split::Train;
    if (batches && !is_file(training_file(folder, kMaxTrainingFiles)))
      report_bad(report, "{}: {} training files, but {} are in the published set: fetch it again{}",
                 folder.string(), files.size(), kMaxTrainingFiles, or_remove(names));
    const std::int64_t published =
        split == Split::Train ? layout_of(kind).published_train : kPublishedTest;
    for (const CountedFile& found : files)
      if (found.records != published)
        report_cut(report, found, published, "are in the published file", or_remove(names));
    return;
  }
  // Files of one set have equal lengths, up to one record if the images cannot be divided evenly.
  const CountedFile most = std::ranges::max(files, {}, &CountedFile::records);
  std::ranges::stable_sort(files, {}, &CountedFile::records);
  for (const CountedFile& found : files)
    if (most.records - found.records > 1)
      report_cut(report, found, most.records,
                 fmt::format("are in {}", most.file.filename().string()), "");
}

/// Checks the contents of one file.
void check_records(std::span<const std::uint8_t> bytes, CifarKind kind, std::string_view file,
                   const Report& report) {
  const CifarLayout& layout = layout_of(kind);
  const std::size_t record_bytes = layout.record_bytes();
  if (bytes.empty())
    return report_bad(report,
                      "{}: the file is empty; expected {} records of {} bytes: fetch it again",
                      file, layout.name, record_bytes);
  if (bytes.size() % record_bytes != 0)
    return report_bad(
        report,
        "{}: {} bytes are not a whole number of {} records of {} bytes ({} and {} left over): the "
        "file is truncated or in another format: fetch it again",
        file, bytes.size(), layout.name, record_bytes, bytes.size() / record_bytes,
        bytes.size() % record_bytes);
  for (std::size_t at = 0; at < bytes.size(); at += record_bytes)
    for (std::size_t k = 0; k < layout.label_limits.size(); ++k)
      if (bytes[at + k] >= layout.label_limits[k])
        report_bad(report,
                   "{}: record {} has label {}, but {} labels end at {}: the file is damaged or in "
                   "another format: fetch it again",
                   file, at / record_bytes, bytes[at + k], layout.name, layout.label_limits[k] - 1);
}

/// All bytes of the files of one split that can be read.
std::vector<std::uint8_t> read_split(const fs::path& folder, CifarKind kind, Split split,
                                     CifarReport& content, const Report& report) {
  const std::size_t record_bytes = layout_of(kind).record_bytes();
  std::vector<fs::path> files;
  std::vector<std::size_t> sizes;
  for (const fs::path& file : find_files(folder, kind, split, report)) {
    try {
      sizes.push_back(checked_size(file));
      files.push_back(file);
    } catch (const Error& error) {
      report(error);
    }
  }
  std::vector<std::uint8_t> bytes;
  bytes.reserve(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  std::vector<CountedFile> found;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::size_t begin = bytes.size();
    try {
      append_file(files[i], sizes[i], bytes);
    } catch (const Error& error) {
      bytes.resize(begin);
      report(error);
      continue;
    }
    check_records(std::span(bytes).subspan(begin), kind, files[i].string(), report);
    const auto records = static_cast<std::int64_t>(sizes[i] / record_bytes);
    ++content.files;
    content.records += records;
    // Files that are cut within a record are already reported.
    if (sizes[i] > 0 && sizes[i] % record_bytes == 0) found.push_back({files[i], records});
  }
  content.bytes = std::ssize(bytes);
  if (!found.empty()) check_lengths(std::move(found), kind, split, report);
  return bytes;
}

void throw_first(const Error& error) { throw error; }

}  // namespace

const CifarLayout& layout_of(CifarKind kind) noexcept {
  return kind == CifarKind::Cifar10 ? kCifar10 : kCifar100;
}

bool cifar_is_in(const fs::path& directory, CifarKind kind) {
  try {
    (void)find_cifar(directory, kind);
    return true;
  } catch (const Error&) {
    return false;
  }
}

CifarReport check_cifar(const fs::path& folder, CifarKind kind, Split split) {
  CifarReport content;
  const auto note = [&](const Error& error) { content.problems.emplace_back(error.what()); };
  (void)read_split(folder, kind, split, content, note);
  return content;
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
       "no {} data in '{}'{} nor in a folder {} below it: expected {}; point `data-dir` at the "
       "binary version of the set (a restored run uses its original data directory, not DATA_DIR)"
       "{}",
       layout.name, directory.string(),
       fs::exists(directory, ignored) ? "" : " (which does not exist)", layout.folder,
       layout.expected,
       kind == CifarKind::Cifar10 ? ", or generate one with `millrace data generate`" : "");
}

std::vector<std::string> read_cifar_class_names(const fs::path& folder, CifarKind kind) {
  const fs::path file = folder / layout_of(kind).names;
  if (!is_file(file)) return {};
  std::vector<std::string> names = read_class_names(file);
  if (std::ssize(names) != layout_of(kind).classes()) names.clear();
  return names;
}

// They are read, not mapped, so a file that is truncated during a run cannot crash it.
std::vector<std::uint8_t> read_cifar_records(const fs::path& folder, CifarKind kind, Split split) {
  CifarReport content;
  return read_split(folder, kind, split, content, throw_first);
}

}  // namespace millrace::io
