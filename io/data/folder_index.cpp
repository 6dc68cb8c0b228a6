// SPDX-License-Identifier: Apache-2.0
#include "io/data/folder_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/annotated_files.hpp"
#include "io/data/little_endian.hpp"
#include "io/data/parallel.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr IndexKind kFolders = {
    .magic = "MLRFOLDR", .version = 3, .extension = ".folders", .place = IndexPlace::Cache};
constexpr IndexKind kAnnotated = {
    .magic = "MLRANNOT", .version = 1, .extension = ".annotated", .place = IndexPlace::Cache};
constexpr std::size_t kSmallestClass = 4 + 8;  // bytes in an index, with an empty name
constexpr std::size_t kSmallestSource = 4 + 8;
constexpr std::size_t kSmallestFile = 4 + 8 + 8 + 4;
constexpr std::size_t kFilesATime = 4096;  // inspected by one thread at a time

/// Lists one class and the folders within it.
class ClassListing {
 public:
  ClassListing(const fs::path& root, const std::string& name, std::int32_t label)
      : root_(root), class_(name), label_(label) {}

  FolderIndex run() && {
    look_into({}, 0);
    return std::move(found_);
  }

 private:
  /// Adds the files of a folder, then those of the folders in it. `inner` ends with a slash unless
  /// it is the class folder itself.
  void look_into(const std::string& inner, int level) {
    const fs::path folder = root_ / class_ / inner;
    if (level > kMostFolderLevels)
      fail(ErrorKind::Data,
           "{}: more than {} folders within a class: does a link lead to a folder above it?",
           folder.string(), kMostFolderLevels);
    found_.sources.push_back({.name = class_ + "/" + inner, .modified_ns = modified_ns(folder)});
    FolderListing listing = list_folder(folder);
    for (const std::string& name : listing.others) {
      if (!has_image_name(name)) continue;
      const std::int64_t modified = stamp_of(folder / name).value_or(kNoFile).modified_ns;
      add(found_.bad, {.bytes = 0, .modified_ns = modified}, inner + name);
    }
    for (const std::string& name : listing.files) {
      const auto [stamp, format] = look_at_file(folder / name);
      const bool unusable = stamp.bytes == 0 || stamp.bytes > kMaxRecordBytes;
      const bool is_image = format != ImageFormat::Other;
      const bool is_bad = unusable || (!is_image && has_image_name(name));
      add(is_bad ? found_.bad : is_image ? found_.images : found_.others, stamp, inner + name);
    }
    for (const std::string& name : listing.folders) look_into(inner + name + "/", level + 1);
  }

  void add(std::vector<ImageFile>& files, const FileStamp& stamp, std::string name) const {
    files.push_back({.label = label_, .stamp = stamp, .name = std::move(name)});
  }

  const fs::path& root_;
  const std::string& class_;
  std::int32_t label_;
  FolderIndex found_;
};

FolderIndex list_classes(const ClassFolders& folders, const IndexOptions& options) {
  std::vector<FolderIndex> parts(folders.classes.size());
  ProgressMeter meter(options.progress, parts.size());
  parallel_for(parts.size(), options.threads, [&](std::size_t i) {
    parts[i] = ClassListing(folders.folder, folders.classes[i], static_cast<std::int32_t>(i)).run();
    meter.add(1);
  });
  FolderIndex index;
  for (const std::string& name : folders.classes) index.classes.push_back({.name = name});
  for (FolderIndex& part : parts) {
    std::ranges::move(part.sources, std::back_inserter(index.sources));
    std::ranges::move(part.images, std::back_inserter(index.images));
    std::ranges::move(part.bad, std::back_inserter(index.bad));
    std::ranges::move(part.others, std::back_inserter(index.others));
  }
  return index;
}

using FolderOf = std::function<fs::path(const ImageFile&)>;

bool are_unchanged(std::span<const ImageFile> files, const FolderOf& folder_of, unsigned threads) {
  std::atomic<bool> changed = false;
  parallel_for((files.size() + kFilesATime - 1) / kFilesATime, threads, [&](std::size_t part) {
    const std::size_t end = std::min((part + 1) * kFilesATime, files.size());
    for (std::size_t i = part * kFilesATime; i < end && !changed; ++i)
      if (stamp_of(folder_of(files[i]) / files[i].name).value_or(kNoFile) != files[i].stamp)
        changed = true;
  });
  return !changed;
}

// Overwriting a file does not change its folder's time, so every file is inspected: with cached
// metadata, 1.28 million files take one thread 2 to 4 s.
bool files_are_unchanged(const FolderIndex& index, const FolderOf& folder_of, unsigned threads) {
  return are_unchanged(index.images, folder_of, threads) &&
         are_unchanged(index.bad, folder_of, threads) &&
         are_unchanged(index.others, folder_of, threads);
}

/// The cached index that is current, or what `make` returns.
FolderIndex find_index(const IndexKind& kind, const fs::path& place, Split split,
                       const IndexOptions& options,
                       const std::function<bool(const FolderIndex&)>& is_current,
                       const std::function<FolderIndex()>& make,
                       std::vector<std::string>& notices) {
  FolderIndex index;
  const auto accept = [&](std::span<const std::byte> content) {
    auto cached = parse_folder_index(content);
    if (!cached || !is_current(*cached)) return false;
    index = std::move(*cached);
    return true;
  };
  const auto make_content = [&] {
    index = make();
    return write_folder_index(index);
  };
  const IndexSource source = open_index(kind, place, split, options, accept, make_content);
  if (!source.problem.empty()) notices.push_back(source.problem);
  return index;
}

/// Writes or reads the fields of an index.
template <class Io, class Index>
void transfer(Io& io, Index& index) {
  for (auto& one : index.classes) io(one.name, one.line);
  for (auto& source : index.sources) io(source.name, source.modified_ns);
  for (auto* files : {&index.images, &index.bad, &index.others})
    for (auto& file : *files) io(file.label, file.stamp.bytes, file.stamp.modified_ns, file.name);
}

/// Whether a path leads out of its folder.
bool leads_out(std::string_view name) {
  return name.starts_with("../") || name.find("/../") != std::string_view::npos ||
         name.ends_with("/..") || name == "..";
}

bool are_relative(std::span<const ImageFile> files) {
  return std::ranges::none_of(files,
                              [](const ImageFile& file) { return file.name.starts_with('/'); });
}

}  // namespace

std::vector<std::byte> write_folder_index(const FolderIndex& index) {
  ByteWriter out;
  out.bytes().reserve((index.images.size() + 1) * 2 * kSmallestFile);
  out(index.classes.size(), index.sources.size(), index.images.size(), index.bad.size(),
      index.others.size());
  transfer(out, index);
  return std::move(out.bytes());
}

std::optional<FolderIndex> parse_folder_index(std::span<const std::byte> content) {
  ByteReader in(content);
  std::uint64_t classes = 0;
  std::uint64_t sources = 0;
  std::array<std::uint64_t, 3> counts{};
  in(classes, sources, counts[0], counts[1], counts[2]);
  // No count may allocate more memory than the remaining bytes justify.
  if (classes > in.left() / kSmallestClass || sources > in.left() / kSmallestSource ||
      std::ranges::max(counts) > in.left() / kSmallestFile)
    return {};
  FolderIndex index;
  index.classes.resize(classes);
  index.sources.resize(sources);
  index.images.resize(counts[0]);
  index.bad.resize(counts[1]);
  index.others.resize(counts[2]);
  transfer(in, index);
  // Neither a class without a number, nor a name that leads out of its folder.
  const auto is_sound = [&](const ImageFile& file) {
    return file.label >= 0 && static_cast<std::uint64_t>(file.label) < classes &&
           !file.name.empty() && !leads_out(file.name);
  };
  for (const auto* files : {&index.images, &index.bad, &index.others})
    if (!std::ranges::all_of(*files, is_sound)) return {};
  const bool too_large = std::ranges::any_of(
      index.images, [](const ImageFile& image) { return image.stamp.bytes > kMaxRecordBytes; });
  if (!in.ok() || in.left() != 0 || too_large) return {};
  return index;
}

std::string problem_of(const ImageFile& file) {
  if (file.stamp == kNoFile) return "does not exist, or is a broken link";
  if (file.stamp.bytes == 0) return "is empty or not a regular file";
  if (file.stamp.bytes > kMaxRecordBytes)
    return fmt::format("{} bytes exceed the limit of {}", file.stamp.bytes, kMaxRecordBytes);
  return "is neither JPEG nor PNG";
}

FolderIndex index_class_folders(const ClassFolders& folders, Split split,
                                const IndexOptions& options, std::vector<std::string>& notices) {
  const auto folder_of = [&](const ImageFile& file) {
    return folders.folder / folders.classes[static_cast<std::size_t>(file.label)];
  };
  const auto is_current = [&](const FolderIndex& index) {
    return std::ranges::equal(index.classes, folders.classes, {}, &IndexedClass::name) &&
           are_relative(index.images) && are_relative(index.bad) && are_relative(index.others) &&
           std::ranges::all_of(index.sources,
                               [&](const IndexSourceFile& source) {
                                 return !leads_out(source.name) &&
                                        modified_ns(folders.folder / source.name) ==
                                            source.modified_ns;
                               }) &&
           files_are_unchanged(index, folder_of, options.threads);
  };
  return find_index(
      kFolders, folders.folder, split, options, is_current,
      [&] { return list_classes(folders, options); }, notices);
}

FolderIndex index_annotated(const fs::path& annotations, const fs::path& directory, Split split,
                            const IndexOptions& options, std::vector<std::string>& notices) {
  const fs::path folder = annotations.parent_path();
  const std::vector<IndexSourceFile> sources = sources_of_annotated(annotations, directory);
  const auto is_current = [&](const FolderIndex& index) {
    return index.sources == sources &&
           files_are_unchanged(
               index, [&](const ImageFile&) -> const fs::path& { return folder; }, options.threads);
  };
  return find_index(
      kAnnotated, annotations, split, options, is_current,
      [&] { return list_annotated(annotations, directory, options); }, notices);
}

}  // namespace millrace::io
