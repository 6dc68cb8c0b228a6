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
#include "io/data/little_endian.hpp"
#include "io/data/parallel.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;
using Names = std::span<const std::string_view>;

constexpr IndexKind kKind = {.magic = "MLRFOLDR", .version = 2, .extension = ".folders"};
constexpr std::size_t kSmallestClass = 4 + 8;  // bytes in an index, with an empty name
constexpr std::size_t kSmallestFile = 4 + 8 + 8 + 4;
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

/// Adds the files of class `label`, whose folder is `folder`.
void look_into(const fs::path& folder, std::int32_t label, FolderIndex& content) {
  FolderListing listing = list_folder(folder);
  for (std::string& name : listing.others) {
    if (!has_image_name(name)) continue;
    const std::int64_t modified = stamp_of(folder / name).value_or(kNothing).modified_ns;
    content.bad.push_back(
        {.label = label, .stamp = {.bytes = 0, .modified_ns = modified}, .name = std::move(name)});
  }
  for (std::string& name : listing.files) {
    const auto [stamp, format] = look_at_file(folder / name);
    const bool unusable = stamp.bytes == 0 || stamp.bytes > kMaxRecordBytes;
    const bool is_image = format != ImageFormat::Other;
    const bool is_bad = unusable || (!is_image && has_image_name(name));
    (is_bad     ? content.bad
     : is_image ? content.images
                : content.others)
        .push_back({.label = label, .stamp = stamp, .name = std::move(name)});
  }
}

FolderIndex make_index(const ClassFolders& folders, std::span<const std::int64_t> times,
                       const IndexOptions& options) {
  std::vector<FolderIndex> parts(folders.classes.size());
  ProgressMeter meter(options.progress, parts.size());
  parallel_for(parts.size(), options.threads, [&](std::size_t i) {
    look_into(folders.folder / folders.classes[i], static_cast<std::int32_t>(i), parts[i]);
    meter.add(1);
  });
  FolderIndex index;
  index.classes = folders.classes;
  index.modified_ns.assign(times.begin(), times.end());
  for (FolderIndex& part : parts) {
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

FolderIndex find_index(const ClassFolders& folders, Split split, const IndexOptions& options,
                       std::vector<std::string>& notices) {
  const std::vector<std::int64_t> times = folder_times(folders);
  FolderIndex index;
  const auto accept = [&](std::span<const std::byte> content) {
    auto cached = parse_folder_index(content);
    if (!cached || !is_current(*cached, folders, times, options.threads)) return false;
    index = std::move(*cached);
    return true;
  };
  const auto make = [&] {
    index = make_index(folders, times, options);
    return write_folder_index(index);
  };
  const IndexSource source = open_index(kKind, folders.folder, split, options, accept, make);
  if (!source.problem.empty()) notices.push_back(source.problem);
  return index;
}

/// Writes or reads the fields of an index.
template <class Io, class Index>
void transfer(Io& io, Index& index) {
  for (std::size_t i = 0; i < index.classes.size(); ++i) io(index.classes[i], index.modified_ns[i]);
  for (auto* files : {&index.images, &index.bad, &index.others})
    for (auto& file : *files) io(file.label, file.stamp.bytes, file.stamp.modified_ns, file.name);
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

std::vector<std::byte> write_folder_index(const FolderIndex& index) {
  ByteWriter out;
  out(index.classes.size(), index.images.size(), index.bad.size(), index.others.size());
  transfer(out, index);
  return std::move(out.bytes());
}

std::optional<FolderIndex> parse_folder_index(std::span<const std::byte> content) {
  ByteReader in(content);
  std::uint64_t classes = 0;
  std::array<std::uint64_t, 3> counts{};
  in(classes, counts[0], counts[1], counts[2]);
  // No count may allocate more memory than the remaining bytes justify.
  if (classes > in.left() / kSmallestClass || std::ranges::max(counts) > in.left() / kSmallestFile)
    return {};
  FolderIndex index;
  index.classes.resize(classes);
  index.modified_ns.resize(classes);
  index.images.resize(counts[0]);
  index.bad.resize(counts[1]);
  index.others.resize(counts[2]);
  transfer(in, index);
  // Neither a class without a number, nor a name that leads out of its folder.
  const auto is_sound = [&](const ImageFile& file) {
    return file.label >= 0 && static_cast<std::uint64_t>(file.label) < classes &&
           !file.name.empty() && !file.name.starts_with('.') &&
           file.name.find('/') == std::string::npos;
  };
  for (const auto* files : {&index.images, &index.bad, &index.others})
    if (!std::ranges::all_of(*files, is_sound)) return {};
  const bool too_large = std::ranges::any_of(
      index.images, [](const ImageFile& image) { return image.stamp.bytes > kMaxRecordBytes; });
  if (!in.ok() || in.left() != 0 || too_large) return {};
  return index;
}

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
    : folder_(folders.folder), index_(find_index(folders, split, options, notices_)) {
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
