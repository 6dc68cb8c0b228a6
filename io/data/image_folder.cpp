// SPDX-License-Identifier: Apache-2.0
#include "io/data/image_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/bad_images.hpp"
#include "io/data/byte_window.hpp"
#include "io/data/files.hpp"
#include "io/data/little_endian.hpp"
#include "io/data/parallel.hpp"
#include "io/data/record_frame.hpp"
#include "io/data/sealed_file.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;
using Names = std::span<const std::string_view>;

constexpr Seal kFolderSeal = {.magic = "MLRFOLDR", .version = 2};
constexpr std::size_t kListed = 5;         // names in a message
constexpr std::size_t kFilesATime = 4096;  // inspected by one thread at a time

constexpr auto kTrainFolders = std::to_array<std::string_view>({"train", "img_train", ""});
constexpr auto kValidationFolders =
    std::to_array<std::string_view>({"val", "validation", "img_val"});

Names folders_of(Split split) {
  return split == Split::Train ? Names(kTrainFolders) : Names(kValidationFolders);
}

fs::path inside(const fs::path& directory, std::string_view name) {
  return name.empty() ? directory : directory / name;
}

/// Whether folders with the name of a split are classes.
enum class SplitNames : std::uint8_t { AreClasses, AreNone };

/// Whether a folder contains classes: it has a folder with a file. Reads only up to the first file
/// of each, so it is fast for other folders.
bool holds_classes(const fs::path& folder, SplitNames split_names = SplitNames::AreClasses) {
  for (const std::string& name : list_folder(folder).folders) {
    if (split_names == SplitNames::AreNone && has_split_name(name)) continue;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder / name, ignored))
      if (entry.is_regular_file(ignored)) return true;
  }
  return false;
}

std::vector<std::string> training_classes(const fs::path& directory) {
  for (const std::string_view name : {kTrainFolders[0], kTrainFolders[1]})
    if (holds_classes(inside(directory, name))) return list_folder(inside(directory, name)).folders;
  return {};
}

std::vector<std::int64_t> folder_times(const ClassFolders& folders) {
  std::vector<std::int64_t> times;
  times.reserve(folders.classes.size());
  for (const std::string& name : folders.classes)
    times.push_back(modified_ns(folders.folder / name));
  return times;
}

/// The stamp of a missing file in an index.
constexpr FileStamp kNothing = {.bytes = 0, .modified_ns = -1};

/// The problem of a file that should be an image.
std::string problem_of(const ImageFile& file) {
  if (file.stamp == kNothing) return "is a broken link";
  if (file.stamp.bytes == 0) return "is empty or not a regular file";
  if (file.stamp.bytes > kMaxRecordBytes)
    return fmt::format("{} bytes exceed the limit of {}", file.stamp.bytes, kMaxRecordBytes);
  return "is neither JPEG nor PNG";
}

struct ClassContent {
  std::vector<ImageFile> images;
  std::vector<ImageFile> bad;
  std::vector<ImageFile> others;

  void add(ImageFile&& file, ImageFormat format) {
    const std::uint64_t bytes = file.stamp.bytes;
    if (bytes == 0 || bytes > kMaxRecordBytes)
      bad.push_back(std::move(file));
    else if (format != ImageFormat::Other)
      images.push_back(std::move(file));
    else
      (has_image_name(file.name) ? bad : others).push_back(std::move(file));
  }
};

ClassContent look_into(const fs::path& folder, const std::string& name, std::int32_t label) {
  ClassContent content;
  FolderListing listing = list_folder(folder / name);
  for (std::string& other : listing.others)
    if (has_image_name(other))
      content.bad.push_back(
          {.label = label,
           .stamp = {.bytes = 0,
                     .modified_ns = stamp_of(folder / name / other).value_or(kNothing).modified_ns},
           .name = std::move(other)});
  for (std::string& file_name : listing.files) {
    const auto [stamp, format] = look_at_file(folder / name / file_name);
    content.add({.label = label, .stamp = stamp, .name = std::move(file_name)}, format);
  }
  return content;
}

FolderIndex make_index(const ClassFolders& folders, std::vector<std::int64_t> times,
                       const IndexOptions& options) {
  std::vector<ClassContent> parts(folders.classes.size());
  ProgressMeter meter(options.progress, parts.size());
  parallel_for(parts.size(), options.threads, [&](std::size_t i) {
    parts[i] = look_into(folders.folder, folders.classes[i], static_cast<std::int32_t>(i));
    meter.add(1);
  });
  FolderIndex index{.classes = folders.classes,
                    .modified_ns = std::move(times),
                    .images = {},
                    .bad = {},
                    .others = {}};
  for (ClassContent& part : parts) {
    std::ranges::move(part.images, std::back_inserter(index.images));
    std::ranges::move(part.bad, std::back_inserter(index.bad));
    std::ranges::move(part.others, std::back_inserter(index.others));
  }
  return index;
}

bool are_unchanged(const ClassFolders& folders, std::span<const ImageFile> files,
                   unsigned threads) {
  std::atomic<bool> changed = false;
  parallel_for((files.size() + kFilesATime - 1) / kFilesATime, threads, [&](std::size_t part) {
    const std::size_t end = std::min((part + 1) * kFilesATime, files.size());
    for (std::size_t i = part * kFilesATime; i < end && !changed; ++i) {
      const fs::path folder =
          folders.folder / folders.classes[static_cast<std::size_t>(files[i].label)];
      if (stamp_of(folder / files[i].name).value_or(kNothing) != files[i].stamp) changed = true;
    }
  });
  return !changed;
}

// Overwriting a file does not change its folder's time, so every file is inspected: with cached
// metadata, 1.28 million files take one thread 2 to 4 s.
bool is_current(const FolderIndex& index, const ClassFolders& folders,
                std::span<const std::int64_t> times, unsigned threads) {
  return index.classes == folders.classes && std::ranges::equal(index.modified_ns, times) &&
         are_unchanged(folders, index.images, threads) &&
         are_unchanged(folders, index.bad, threads) &&
         are_unchanged(folders, index.others, threads);
}

std::optional<FolderIndex> find_cached(std::span<const fs::path> places,
                                       const ClassFolders& folders,
                                       std::span<const std::int64_t> times, unsigned threads) {
  for (const fs::path& place : places) {
    const auto bytes = read_cached(place);
    if (!bytes) continue;
    const auto content = unseal(kFolderSeal, *bytes);
    if (!content) continue;
    auto index = parse_folder_index(*content);
    if (index && is_current(*index, folders, times, threads)) return index;
  }
  return {};
}

FolderIndex open_index(const ClassFolders& folders, Split split, const IndexOptions& options,
                       std::vector<std::string>& notices) {
  const std::vector<fs::path> places = cache_places(
      folders.folder, options.cache_folder,
      split == Split::Train ? "millrace-train.folders" : "millrace-validation.folders");
  const std::vector<std::int64_t> times = folder_times(folders);
  if (auto cached = find_cached(places, folders, times, options.threads)) return std::move(*cached);
  const FolderLock lock(folders.folder, options.tell);
  if (auto cached = find_cached(places, folders, times, options.threads)) return std::move(*cached);
  FolderIndex index = make_index(folders, times, options);
  const Written written = write_cached(places, seal(kFolderSeal, write_folder_index(index)));
  if (written.place.empty())
    notices.push_back(fmt::format("the index of {} is rebuilt every time: {}",
                                  folders.folder.string(), written.problem));
  return index;
}

std::uint32_t fingerprint_of(const FolderIndex& index) {
  std::uint32_t crc = 0;
  for (const ImageFile& image : index.images) {
    std::array<std::byte, 12> bytes{};
    store_little(image.stamp.bytes, bytes.data());
    store_little(static_cast<std::uint32_t>(image.label), bytes.data() + 8);
    crc = crc32c(bytes, crc);
  }
  return crc;
}

}  // namespace

ClassFolders find_class_folders(const fs::path& directory, Split split) {
  for (const std::string_view name : folders_of(split)) {
    const fs::path folder = inside(directory, name);
    if (!holds_classes(folder, name.empty() ? SplitNames::AreNone : SplitNames::AreClasses))
      continue;
    ClassFolders found{.folder = folder, .classes = list_folder(folder).folders};
    if (split == Split::Train) return found;
    std::vector<std::string> known = training_classes(directory);
    if (known.empty()) return found;
    for (const std::string& own : found.classes)
      if (!std::ranges::binary_search(known, own))
        fail(ErrorKind::Data,
             "{}: class {} has validation images, but no training images, so it has no number",
             folder.string(), own);
    found.classes = std::move(known);
    return found;
  }
  return {};
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

ImageFolder::ImageFolder(const ClassFolders& folders, Split split, const IndexOptions& options,
                         double max_bad_fraction)
    : folder_(folders.folder), index_(open_index(folders, split, options, notices_)) {
  if (!index_.others.empty())
    notices_.push_back(fmt::format(
        "{}: {} files are neither JPEG nor PNG and are left out, for example {}", folder_.string(),
        index_.others.size(), path_of(index_.others.front()).string()));
  judge_bad(max_bad_fraction);
  if (index_.images.empty())
    fail(ErrorKind::Data, "{}: its {} folders contain no JPEG or PNG file", folder_.string(),
         index_.classes.size());
  note_empty_classes(split);
  fingerprint_ = fingerprint_of(index_);
}

void ImageFolder::judge_bad(double max_bad_fraction) {
  if (index_.bad.empty()) return;
  const auto describe = [this](std::size_t i) {
    return fmt::format("{}: {}", path_of(index_.bad[i]).string(), problem_of(index_.bad[i]));
  };
  const std::int64_t all = std::ssize(index_.bad) + std::ssize(index_.images);
  const std::string count =
      fmt::format("{}: {} of {} files are bad (`millrace data check` lists them)", folder_.string(),
                  index_.bad.size(), all);
  if (too_many_bad(std::ssize(index_.bad), all, max_bad_fraction))
    fail(ErrorKind::Data, "{}, the first: {}; the limit is {:g} % (--max-bad-fraction)", count,
         describe(0), 100.0 * max_bad_fraction);
  add_left_out(notices_, count + ", and are left out", index_.bad.size(), describe);
}

void ImageFolder::note_empty_classes(Split split) {
  std::vector<bool> has_images(index_.classes.size(), false);
  for (const ImageFile& image : index_.images)
    has_images[static_cast<std::size_t>(image.label)] = true;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < has_images.size(); ++i)
    if (!has_images[i]) names.push_back(index_.classes[i]);
  if (names.empty()) return;
  const std::size_t all = names.size();
  names.resize(std::min(all, kListed));
  notices_.push_back(
      fmt::format("{}: {} of {} classes have no {} images: {}{}; a folder that is not a class "
                  "shifts the labels of the classes after it: remove it",
                  folder_.string(), all, index_.classes.size(), split_name(split),
                  join(names, ", "), names.size() < all ? ", ..." : ""));
}

const ImageFile& ImageFolder::image(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < size());
  return index_.images[static_cast<std::size_t>(index)];
}

std::int32_t ImageFolder::label(std::int64_t index) const { return image(index).label; }

fs::path ImageFolder::path_of(const ImageFile& file) const {
  return folder_ / index_.classes[static_cast<std::size_t>(file.label)] / file.name;
}

std::uint64_t ImageFolder::stored_bytes(std::int64_t index) const {
  return image(index).stamp.bytes;
}

std::string ImageFolder::where(std::int64_t index) const { return path_of(image(index)).string(); }

StoredImage ImageFolder::stored(std::int64_t index, ReadBuffer& buffer) const {
  const fs::path path = path_of(image(index));
  if (!stamp_of(path) && (errno == ENOENT || errno == ENOTDIR))
    fail(ErrorKind::Data, "{}: was removed after this process started", path.string());
  const UniqueFd file = open_file(path, O_RDONLY);
  const std::uint64_t bytes = regular_stamp(file.get(), path.string()).bytes;
  if (bytes != stored_bytes(index))
    fail(ErrorKind::Data,
         "{}: {} bytes, but {} when it was indexed: it changed after this process started; the "
         "next process indexes it again",
         path.string(), bytes, stored_bytes(index));
  buffer.bytes.resize(bytes);
  read_exactly(file.get(), 0, buffer.bytes, path.string());
  return {.bytes = buffer.bytes};
}

}  // namespace millrace::io
