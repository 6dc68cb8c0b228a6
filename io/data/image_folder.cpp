// SPDX-License-Identifier: Apache-2.0
#include "io/data/class_folders.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <vector>

#include "core/counted.hpp"
#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/data/little_endian.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

ImageFolder::ImageFolder(const ClassFolders& folders, Split split, const IndexOptions& options,
                         double max_bad_fraction, const fs::path& words)
    : folder_(folders.folder), index_(index_class_folders(folders, split, options, notices_)) {
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
