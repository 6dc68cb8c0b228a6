// SPDX-License-Identifier: Apache-2.0
#include "io/records/image_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "io/records/byte_window.hpp"
#include "io/records/file_stamp.hpp"
#include "io/records/folder_listing.hpp"
#include "io/records/little_endian.hpp"
#include "io/records/parallel.hpp"
#include "io/records/record_frame.hpp"
#include "io/records/sealed_file.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;
using Names = std::span<const std::string_view>;

constexpr Seal kFolderSeal = {.magic = "MLRFOLDR", .version = 1};
constexpr std::size_t kSignatureBytes = 8;
constexpr std::size_t kSmallestPicture = 4 + 8 + 4;

constexpr auto kTrainFolders = std::to_array<std::string_view>({"train", "img_train", ""});
constexpr auto kValidationFolders =
    std::to_array<std::string_view>({"val", "validation", "img_val"});

Names folders_of(Split split) {
  return split == Split::Train ? Names(kTrainFolders) : Names(kValidationFolders);
}

fs::path inside(const fs::path& directory, std::string_view name) {
  return name.empty() ? directory : directory / name;
}

/// Whether a folder is one of classes: it holds a folder with a picture. Looks no further than the
/// first file of each, so that a folder of something else is soon known.
bool holds_pictures(const fs::path& folder) {
  for (const std::string& name : list_folder(folder).folders) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder / name, ignored))
      if (entry.is_regular_file(ignored)) return true;
  }
  return false;
}

std::vector<std::string> training_classes(const fs::path& directory) {
  for (const std::string_view name : {kTrainFolders[0], kTrainFolders[1]})
    if (holds_pictures(inside(directory, name)))
      return list_folder(inside(directory, name)).folders;
  return {};
}

std::vector<std::int64_t> folder_times(const ClassFolders& folders) {
  std::vector<std::int64_t> times;
  times.reserve(folders.classes.size());
  for (const std::string& name : folders.classes)
    times.push_back(modified_ns(folders.folder / name));
  return times;
}

struct ClassContent {
  std::vector<PictureFile> pictures;
  std::vector<std::string> others;
};

ClassContent look_into(const fs::path& folder, const std::string& name, std::int32_t label) {
  ClassContent content;
  for (std::string& file_name : list_folder(folder / name).files) {
    const fs::path path = folder / name / file_name;
    const UniqueFd file = open_file(path, O_RDONLY);
    const std::uint64_t bytes = regular_size(file.get(), path.string());
    std::array<std::byte, kSignatureBytes> head{};
    const auto signature = std::span(head).first(std::min<std::uint64_t>(bytes, head.size()));
    read_exactly(file.get(), 0, signature, path.string());
    if (picture_kind(signature) == PictureKind::Unknown || bytes > kMaxRecordBytes)
      content.others.push_back(fmt::format("{}/{}", name, file_name));
    else
      content.pictures.push_back({.label = label, .bytes = bytes, .name = std::move(file_name)});
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
  FolderIndex index{
      .classes = folders.classes, .modified_ns = std::move(times), .pictures = {}, .others = {}};
  for (ClassContent& part : parts) {
    std::ranges::move(part.pictures, std::back_inserter(index.pictures));
    std::ranges::move(part.others, std::back_inserter(index.others));
  }
  return index;
}

std::optional<FolderIndex> find_cached(std::span<const fs::path> places,
                                       const ClassFolders& folders,
                                       std::span<const std::int64_t> times) {
  for (const fs::path& place : places) {
    const auto bytes = read_cached(place);
    if (!bytes) continue;
    const auto content = unseal(kFolderSeal, *bytes);
    if (!content) continue;
    auto index = parse_folder_index(*content);
    if (index && index->classes == folders.classes && std::ranges::equal(index->modified_ns, times))
      return index;
  }
  return {};
}

FolderIndex open_index(const ClassFolders& folders, Split split, const IndexOptions& options,
                       std::vector<std::string>& notices) {
  const std::vector<fs::path> places = cache_places(
      folders.folder, options.cache_folder,
      split == Split::Train ? "millrace-train.folders" : "millrace-validation.folders");
  const std::vector<std::int64_t> times = folder_times(folders);
  if (auto cached = find_cached(places, folders, times)) return std::move(*cached);
  const FolderLock lock(folders.folder);
  if (auto cached = find_cached(places, folders, times)) return std::move(*cached);
  FolderIndex index = make_index(folders, times, options);
  const Written written = write_cached(places, seal(kFolderSeal, write_folder_index(index)));
  if (written.place.empty())
    notices.push_back(fmt::format("the index of {} is made anew every time: {}",
                                  folders.folder.string(), written.problem));
  return index;
}

std::uint32_t fingerprint_of(const FolderIndex& index) {
  std::uint32_t crc = 0;
  for (const PictureFile& picture : index.pictures) {
    std::array<std::byte, 12> bytes{};
    store_little(picture.bytes, bytes.data());
    store_little(static_cast<std::uint32_t>(picture.label), bytes.data() + 8);
    crc = crc32c(bytes, crc);
  }
  return crc;
}

}  // namespace

PictureKind picture_kind(std::span<const std::byte> bytes) noexcept {
  constexpr std::array<unsigned char, 3> kJpeg = {0xff, 0xd8, 0xff};
  constexpr std::array<unsigned char, 8> kPng = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  const auto begins_with = [&](std::span<const unsigned char> signature) {
    return bytes.size() >= signature.size() &&
           std::ranges::equal(bytes.first(signature.size()), std::as_bytes(signature));
  };
  if (begins_with(kJpeg)) return PictureKind::Jpeg;
  return begins_with(kPng) ? PictureKind::Png : PictureKind::Unknown;
}

ClassFolders find_class_folders(const fs::path& directory, Split split) {
  for (const std::string_view name : folders_of(split)) {
    const fs::path folder = inside(directory, name);
    if (!holds_pictures(folder)) continue;
    ClassFolders found{.folder = folder, .classes = list_folder(folder).folders};
    if (split == Split::Train) return found;
    std::vector<std::string> known = training_classes(directory);
    if (known.empty()) return found;
    for (const std::string& own : found.classes)
      if (!std::ranges::binary_search(known, own))
        fail(ErrorKind::Data,
             "{}: class {} has pictures for validation, but none for training, so it has no number",
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
  return fmt::format("{}", fmt::join(places, ", "));
}

ImageFolderSource::ImageFolderSource(const ClassFolders& folders, Split split,
                                     const IndexOptions& options)
    : folder_(folders.folder), index_(open_index(folders, split, options, notices_)) {
  if (!index_.others.empty())
    notices_.push_back(
        fmt::format("{}: {} files are neither JPEG nor PNG and are left out, such as "
                    "{}",
                    folder_.string(), index_.others.size(), index_.others.front()));
  if (index_.pictures.empty())
    fail(ErrorKind::Data, "{}: its {} folders hold no JPEG or PNG file", folder_.string(),
         index_.classes.size());
  fingerprint_ = fingerprint_of(index_);
}

const PictureFile& ImageFolderSource::picture(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < size());
  return index_.pictures[static_cast<std::size_t>(index)];
}

std::int32_t ImageFolderSource::label(std::int64_t index) const { return picture(index).label; }

fs::path ImageFolderSource::path_of(std::int64_t index) const {
  const PictureFile& file = picture(index);
  return folder_ / index_.classes[static_cast<std::size_t>(file.label)] / file.name;
}

std::uint64_t ImageFolderSource::stored_bytes(std::int64_t index) const {
  return picture(index).bytes;
}

std::string ImageFolderSource::where(std::int64_t index) const { return path_of(index).string(); }

EncodedImage ImageFolderSource::read(std::int64_t index, ReadBuffer& buffer) const {
  const fs::path path = path_of(index);
  const UniqueFd file = open_file(path, O_RDONLY);
  const std::uint64_t bytes = regular_size(file.get(), path.string());
  if (bytes != picture(index).bytes)
    fail(ErrorKind::Data, "{}: {} bytes, and {} when it was indexed: remove {}'s index",
         path.string(), bytes, picture(index).bytes, folder_.string());
  buffer.bytes.resize(bytes);
  read_exactly(file.get(), 0, buffer.bytes, path.string());
  return {.bytes = buffer.bytes, .boxes = {}};
}

std::vector<std::byte> write_folder_index(const FolderIndex& index) {
  ByteWriter out;
  out.put(static_cast<std::uint64_t>(index.classes.size()));
  out.put(static_cast<std::uint64_t>(index.pictures.size()));
  out.put(static_cast<std::uint64_t>(index.others.size()));
  for (std::size_t i = 0; i < index.classes.size(); ++i) {
    out.put_text(index.classes[i]);
    out.put(static_cast<std::uint64_t>(index.modified_ns[i]));
  }
  for (const PictureFile& picture : index.pictures) {
    out.put(static_cast<std::uint32_t>(picture.label));
    out.put(picture.bytes);
    out.put_text(picture.name);
  }
  for (const std::string& other : index.others) out.put_text(other);
  return std::move(out.bytes());
}

std::optional<FolderIndex> parse_folder_index(std::span<const std::byte> content) {
  ByteReader in(content);
  const auto classes = in.get<std::uint64_t>();
  const auto pictures = in.get<std::uint64_t>();
  const auto others = in.get<std::uint64_t>();
  if (classes > in.left() / 12 || pictures > in.left() / kSmallestPicture || others > in.left() / 4)
    return {};
  FolderIndex index;
  for (std::uint64_t i = 0; i < classes; ++i) {
    index.classes.emplace_back(in.get_text());
    index.modified_ns.push_back(static_cast<std::int64_t>(in.get<std::uint64_t>()));
  }
  index.pictures.resize(pictures);
  for (PictureFile& picture : index.pictures) {
    const auto label = in.get<std::uint32_t>();
    if (label >= classes) return {};
    picture.label = static_cast<std::int32_t>(label);
    picture.bytes = in.get<std::uint64_t>();
    picture.name = in.get_text();
    if (picture.bytes > kMaxRecordBytes || picture.name.empty() ||
        picture.name.find('/') != std::string::npos || picture.name.starts_with('.'))
      return {};
  }
  index.others.resize(others);
  for (std::string& other : index.others) other = in.get_text();
  if (!in.ok() || in.left() != 0) return {};
  return index;
}

}  // namespace millrace::io
