// SPDX-License-Identifier: Apache-2.0
#include "io/data/class_folders.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/counted.hpp"
#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/data/little_endian.hpp"
#include "io/data/parallel.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;
using Names = std::span<const std::string_view>;

constexpr auto kTrainFolders = std::to_array<std::string_view>({"train", "img_train", ""});
constexpr auto kValidationFolders =
    std::to_array<std::string_view>({"val", "validation", "img_val"});
/// Levels of folders in which a file is searched for: "n01440764/images/a.JPEG".
constexpr int kLevelsLookedAt = 2;

constexpr IndexFormat<FolderIndex> kFormat = {.kind = {.magic = "MLRFOLDR",
                                                       .version = 4,
                                                       .extension = ".folders",
                                                       .place = IndexPlace::Cache},
                                              .write = write_folder_index,
                                              .parse = parse_folder_index};
constexpr std::size_t kFilesATime = 4096;  // inspected by one thread at a time

Names folders_of(Split split) {
  return split == Split::Train ? Names(kTrainFolders) : Names(kValidationFolders);
}

/// Reads only up to the first file, so it is fast.
bool holds_a_file(const fs::path& folder, int levels) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.is_regular_file(ignored)) return true;
    if (levels > 1 && entry.is_directory(ignored) && holds_a_file(entry.path(), levels - 1))
      return true;
  }
  return false;
}

/// Whether a folder is a whole data set, with folders of splits.
bool holds_splits(const fs::path& folder) {
  return std::ranges::any_of(list_folder(folder).folders, has_split_name);
}

/// The folders in the place `name` of a directory that may be classes.
std::vector<std::string> folders_in(const fs::path& directory, std::string_view name) {
  const fs::path folder = inside(directory, name);
  std::vector<std::string> folders = list_folder(folder).folders;
  if (name.empty())
    std::erase_if(folders, [&](const std::string& inner) {
      return has_split_name(inner) || holds_splits(folder / inner);
    });
  return folders;
}

bool holds_classes(const fs::path& directory, std::string_view name) {
  return std::ranges::any_of(folders_in(directory, name), [&](const std::string& inner) {
    return holds_a_file(inside(directory, name) / inner, kLevelsLookedAt);
  });
}

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
    found_.folders.push_back({.name = class_ + "/" + inner, .modified_ns = modified_ns(folder)});
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
  index.classes = folders.classes;
  for (FolderIndex& part : parts) {
    std::ranges::move(part.folders, std::back_inserter(index.folders));
    std::ranges::move(part.images, std::back_inserter(index.images));
    std::ranges::move(part.bad, std::back_inserter(index.bad));
    std::ranges::move(part.others, std::back_inserter(index.others));
  }
  return index;
}

/// Overwriting a file does not change its folder's time, so every file is inspected: with cached
/// metadata, 1.28 million files take one thread 2 to 4 s.
bool are_unchanged(std::span<const ImageFile> files, const ClassFolders& folders,
                   unsigned threads) {
  std::atomic<bool> changed = false;
  parallel_for((files.size() + kFilesATime - 1) / kFilesATime, threads, [&](std::size_t part) {
    const std::size_t end = std::min((part + 1) * kFilesATime, files.size());
    for (std::size_t i = part * kFilesATime; i < end && !changed; ++i) {
      const ImageFile& file = files[i];
      const std::string& name = folders.classes[static_cast<std::size_t>(file.label)];
      if (stamp_of(folders.folder / name / file.name).value_or(kNoFile) != file.stamp)
        changed = true;
    }
  });
  return !changed;
}

bool is_current(const FolderIndex& index, const ClassFolders& folders, unsigned threads) {
  const auto has_time = [&](const IndexedFolder& folder) {
    return modified_ns(folders.folder / folder.name) == folder.modified_ns;
  };
  return index.classes == folders.classes && std::ranges::all_of(index.folders, has_time) &&
         are_unchanged(index.images, folders, threads) &&
         are_unchanged(index.bad, folders, threads) &&
         are_unchanged(index.others, folders, threads);
}

/// Whether a path leads out of its folder.
bool leads_out(std::string_view name) {
  return name.starts_with('/') || name.starts_with("../") ||
         name.find("/../") != std::string_view::npos || name.ends_with("/..") || name == "..";
}

/// Neither a class without a number, nor a name that leads out of its folder.
bool is_sound(const FolderIndex& index) {
  const auto is_file = [&](const ImageFile& file) {
    return file.label >= 0 && static_cast<std::size_t>(file.label) < index.classes.size() &&
           !file.name.empty() && !leads_out(file.name);
  };
  return std::ranges::all_of(index.images, is_file) && std::ranges::all_of(index.bad, is_file) &&
         std::ranges::all_of(index.others, is_file) &&
         std::ranges::none_of(index.folders, leads_out, &IndexedFolder::name) &&
         std::ranges::none_of(index.images, [](const ImageFile& image) {
           return image.stamp.bytes > kMaxRecordBytes;
         });
}

/// Whether the name is that of an image in a format that is not read.
bool is_other_image(const fs::path& path) {
  constexpr std::array<std::string_view, 10> kExtensions = {
      ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".jp2", ".ppm", ".jxl"};
  return std::ranges::find(kExtensions, to_lower(path.extension().string())) != kExtensions.end();
}

/// Over sizes and classes.
std::uint32_t fingerprint_of(std::span<const ImageFile> images) {
  std::uint32_t crc = 0;
  for (const ImageFile& image : images) {
    std::array<std::byte, 12> bytes{};
    store_little(image.stamp.bytes, bytes.data());
    store_little(static_cast<std::uint32_t>(image.label), bytes.data() + 8);
    crc = crc32c(bytes, crc);
  }
  return crc;
}

/// The problem of a file that should be an image.
std::string problem_of(const ImageFile& file) {
  if (file.stamp == kNoFile) return "does not exist, or is a broken link";
  if (file.stamp.bytes == 0) return "is empty or not a regular file";
  if (file.stamp.bytes > kMaxRecordBytes)
    return fmt::format("{} bytes exceed the limit of {}", file.stamp.bytes, kMaxRecordBytes);
  return "is neither JPEG nor PNG";
}

}  // namespace

ClassFolders find_class_folders(const fs::path& directory, Split split, const KnownClasses& known) {
  for (const std::string_view name : folders_of(split)) {
    if (!holds_classes(directory, name)) continue;
    ClassFolders found{.folder = inside(directory, name), .classes = folders_in(directory, name)};
    if (known.names.empty()) return found;
    for (const std::string& own : found.classes)
      if (std::ranges::find(known.names, own) == known.names.end())
        fail(ErrorKind::Data,
             "{}: class {} has {} images, but is not one of the {} classes of the training images, "
             "so it has no number",
             found.folder.string(), printable(own), split_name(split), known.names.size());
    found.classes = known.names;
    found.number_them = false;
    return found;
  }
  return {};
}

bool has_class_folders(const fs::path& directory, Split split) {
  return std::ranges::any_of(folders_of(split),
                             [&](std::string_view name) { return holds_classes(directory, name); });
}

std::string describe_class_places(const fs::path& directory, Split split) {
  std::vector<std::string> places;
  for (const std::string_view name : folders_of(split))
    places.push_back(inside(directory, name).string());
  return fmt::format("{}{}", join(places, ", "),
                     split == Split::Train
                         ? fmt::format(" ({} are not classes there)", split_folder_names())
                         : "");
}

std::vector<std::byte> write_folder_index(const FolderIndex& index) {
  return write_lists(index.classes, index.folders, index.images, index.bad, index.others);
}

std::optional<FolderIndex> parse_folder_index(std::span<const std::byte> content) {
  FolderIndex index;
  const bool whole =
      read_lists(content, index.classes, index.folders, index.images, index.bad, index.others);
  if (!whole || !is_sound(index)) return {};
  return index;
}

ImageFolder::ImageFolder(const ClassFolders& folders, Split split, const IndexOptions& options,
                         double max_bad_fraction, const fs::path& words)
    : folder_(folders.folder) {
  auto opened = open_index(
      kFormat, folder_, split, options,
      [&](const FolderIndex& cached) { return is_current(cached, folders, options.threads); },
      [&] { return list_classes(folders, options); });
  index_ = std::move(opened.index);
  std::ranges::move(opened.notices, std::back_inserter(notices_));
  titles_ = with_words(folders.classes, words);
  note_others();
  judge_bad(max_bad_fraction);
  fingerprint_ = fingerprint_of(index_.images);
  if (index_.images.empty())
    fail(ErrorKind::Data, "{}: its {} folders contain no JPEG or PNG file", folder_.string(),
         classes());
  note_empty_classes(folders, split);
}

const ImageFile& ImageFolder::image(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < size());
  return index_.images[static_cast<std::size_t>(index)];
}

fs::path ImageFolder::path_of(const ImageFile& file) const {
  return folder_ / index_.classes[static_cast<std::size_t>(file.label)] / file.name;
}

void ImageFolder::judge_bad(double max_bad_fraction) {
  const std::int64_t bad = std::ssize(index_.bad);
  const std::int64_t all = bad + size();
  const std::string count =
      fmt::format("{}: {} of {} {} bad (`millrace data check` lists them)", folder_.string(), bad,
                  counted(all, "file"), is_or_are(bad));
  leave_out_bad({.bad = bad, .all = all, .max_fraction = max_bad_fraction}, count,
                count + ", and left out", notices_, [this](std::size_t i) {
                  const ImageFile& file = index_.bad[i];
                  return fmt::format("{}: {}", path_of(file).string(), problem_of(file));
                });
}

void ImageFolder::note_others() {
  if (index_.others.empty()) return;
  // An image is missed more than a file that a file manager made.
  const auto image = std::ranges::find_if(
      index_.others, [this](const ImageFile& file) { return is_other_image(path_of(file)); });
  const ImageFile& example = image != index_.others.end() ? *image : index_.others.front();
  notices_.push_back(fmt::format("{}: {} left out, neither JPEG nor PNG, for example {}",
                                 folder_.string(), counted(std::ssize(index_.others), "file"),
                                 path_of(example).string()));
}

void ImageFolder::note_empty_classes(const ClassFolders& folders, Split split) {
  std::vector<bool> has_images(index_.classes.size(), false);
  for (const ImageFile& image : index_.images)
    has_images[static_cast<std::size_t>(image.label)] = true;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < has_images.size(); ++i)
    if (!has_images[i]) names.push_back(index_.classes[i]);
  if (names.empty()) return;
  notices_.push_back(fmt::format(
      "{}: {} of {} classes have no {} images: {}{}", folder_.string(), names.size(), classes(),
      split_name(split), first_of(names),
      folders.number_them ? "; a folder that is not a class shifts the labels of the classes after "
                            "it: remove it"
                          : ""));
}

StoredImage ImageFolder::stored(std::int64_t index, ReadBuffer& buffer) const {
  const fs::path path = path_of(image(index));
  if (!stamp_of(path) && (errno == ENOENT || errno == ENOTDIR))
    fail(ErrorKind::Data, "{}: was removed after this process started", path.string());
  const UniqueFd file = open_file(path, O_RDONLY);
  const std::uint64_t bytes = regular_size(file.get(), path);
  if (bytes != stored_bytes(index))
    fail(ErrorKind::Data,
         "{}: {} bytes, but {} when it was indexed: it changed after this process started; the "
         "next process indexes it again",
         path.string(), bytes, stored_bytes(index));
  buffer.bytes.resize(bytes);
  read_exactly(file.get(), 0, buffer.bytes, path);
  return {.bytes = buffer.bytes};
}

}  // namespace millrace::io
