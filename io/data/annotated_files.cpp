// SPDX-License-Identifier: Apache-2.0
#include "io/data/annotated_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/data/annotations.hpp"
#include "io/data/class_numbers.hpp"
#include "io/data/parallel.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFilesATime = 64;  // inspected by one thread at a time
constexpr auto kFolders =
    std::to_array<std::string_view>({"", "images", "train", "val", "validation", "img_train",
                                     "img_val", "train/images", "val/images"});

/// The folder at which the paths begin.
fs::path base_of(const Annotation& first, const fs::path& file, const fs::path& directory) {
  const auto has_first = [&](const fs::path& base) {
    std::error_code ignored;
    return fs::is_regular_file(base / first.path, ignored);
  };
  const std::array roots = {file.parent_path(), directory};
  for (const fs::path& root : roots)
    for (const std::string_view name : kFolders)
      if (fs::path base = name.empty() ? root : root / name; has_first(base)) return base;
  const bool same = roots[0] == roots[1];
  fail(ErrorKind::Data,
       "{}: line {} lists '{}', which is not in {}{}: paths may begin there, or in their folders "
       "images, train or val",
       file.string(), first.line, printable(first.path), roots[0].empty() ? "." : roots[0].string(),
       same ? "" : fmt::format(" or {}", roots[1].string()));
}

/// `path` as seen from `folder` if it lies in it, otherwise in full.
std::string name_in(const fs::path& folder, const fs::path& path) {
  const fs::path full = fs::absolute(path).lexically_normal();
  const fs::path inner = full.lexically_relative(fs::absolute(folder).lexically_normal());
  return (inner.empty() || *inner.begin() == ".." ? full : inner).string();
}

/// Classes in the order in which they are first named.
class Classes {
 public:
  std::int32_t number_of(const Annotation& annotation, const fs::path& file) {
    const auto [place, is_new] =
        numbers_.emplace(annotation.label, static_cast<std::int32_t>(classes_.size()));
    if (is_new) classes_.push_back({.name = annotation.label, .line = annotation.line});
    if (std::ssize(classes_) > kMostClasses)
      fail(ErrorKind::Data,
           "{}: line {} names one class more than the limit of {}: is '{}' a class?", file.string(),
           annotation.line, kMostClasses, printable(annotation.label));
    return place->second;
  }
  [[nodiscard]] std::vector<IndexedClass> take() { return std::move(classes_); }

 private:
  std::map<std::string, std::int32_t> numbers_;
  std::vector<IndexedClass> classes_;
};

void refuse_contradictions(std::span<const ImageFile> files, std::span<const Annotation> lines,
                           const fs::path& file) {
  std::vector<std::size_t> order(files.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {},
                    [&](std::size_t i) { return std::pair(std::string_view(files[i].name), i); });
  for (std::size_t k = 1; k < order.size(); ++k) {
    const std::size_t a = order[k - 1];
    const std::size_t b = order[k];
    if (files[a].name == files[b].name && files[a].label != files[b].label)
      fail(ErrorKind::Data, "{}: line {} gives '{}' the class '{}', but line {} the class '{}'",
           file.string(), lines[a].line, printable(lines[a].path), printable(lines[a].label),
           lines[b].line, printable(lines[b].label));
  }
}

/// A listed file must be an image, whatever its name.
bool look_at(const fs::path& path, FileStamp& stamp) {
  const std::optional<FileStamp> found = stamp_of(path);
  std::error_code ignored;
  stamp = found.value_or(kNoFile);
  if (!found) return false;
  if (!fs::is_regular_file(path, ignored)) {
    stamp.bytes = 0;
    return false;
  }
  if (stamp.bytes == 0 || stamp.bytes > kMaxRecordBytes) return false;
  return look_at_file(path).format != ImageFormat::Other;
}

}  // namespace

std::vector<IndexSourceFile> sources_of_annotated(const fs::path& annotations,
                                                  const fs::path& directory) {
  return {{.name = annotations.string(), .modified_ns = modified_ns(annotations)},
          {.name = fs::absolute(directory).lexically_normal().string(), .modified_ns = 0}};
}

FolderIndex list_annotated(const fs::path& annotations, const fs::path& directory,
                           const IndexOptions& options) {
  FolderIndex index;
  index.sources = sources_of_annotated(annotations, directory);
  const std::vector<Annotation> lines =
      parse_annotations(read_text(annotations, kMostAnnotationBytes), annotations.string());
  const fs::path folder = annotations.parent_path();
  const fs::path base = base_of(lines.front(), annotations, directory);
  Classes classes;
  std::vector<ImageFile> files(lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i)
    files[i] = {.label = classes.number_of(lines[i], annotations),
                .stamp = {},
                .name = name_in(folder, base / lines[i].path)};
  refuse_contradictions(files, lines, annotations);
  index.classes = classes.take();
  std::vector<char> good(files.size(), 0);
  ProgressMeter meter(options.progress, files.size());
  parallel_for((files.size() + kFilesATime - 1) / kFilesATime, options.threads,
               [&](std::size_t part) {
                 const std::size_t end = std::min((part + 1) * kFilesATime, files.size());
                 for (std::size_t i = part * kFilesATime; i < end; ++i)
                   good[i] = look_at(folder / files[i].name, files[i].stamp) ? 1 : 0;
                 meter.add(end - part * kFilesATime);
               });
  for (std::size_t i = 0; i < files.size(); ++i)
    (good[i] != 0 ? index.images : index.bad).push_back(std::move(files[i]));
  return index;
}

}  // namespace millrace::io
