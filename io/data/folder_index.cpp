// SPDX-License-Identifier: Apache-2.0
#include "io/data/folder_index.hpp"

#include <algorithm>
#include <utility>

#include "io/data/little_endian.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

/// Smallest entry of a file, with an empty name.
constexpr std::size_t kSmallestEntry = 4 + 8 + 8 + 4;

void put_files(ByteWriter& out, std::span<const ImageFile> files) {
  for (const ImageFile& file : files) {
    out.put(static_cast<std::uint32_t>(file.label));
    out.put(file.stamp.bytes);
    out.put(static_cast<std::uint64_t>(file.stamp.modified_ns));
    out.put_text(file.name);
  }
}

/// Empty if a file has an invalid class, or a name that leads out of its folder.
std::optional<std::vector<ImageFile>> get_files(ByteReader& in, std::uint64_t count,
                                                std::uint64_t classes) {
  std::vector<ImageFile> files(count);
  for (ImageFile& file : files) {
    const auto label = in.get<std::uint32_t>();
    if (label >= classes) return {};
    file.label = static_cast<std::int32_t>(label);
    file.stamp.bytes = in.get<std::uint64_t>();
    file.stamp.modified_ns = static_cast<std::int64_t>(in.get<std::uint64_t>());
    file.name = in.get_text();
    if (file.name.empty() || file.name.find('/') != std::string::npos || file.name.starts_with('.'))
      return {};
  }
  return files;
}

}  // namespace

std::vector<std::byte> write_folder_index(const FolderIndex& index) {
  ByteWriter out;
  out.put(static_cast<std::uint64_t>(index.classes.size()));
  out.put(static_cast<std::uint64_t>(index.images.size()));
  out.put(static_cast<std::uint64_t>(index.bad.size()));
  out.put(static_cast<std::uint64_t>(index.others.size()));
  for (std::size_t i = 0; i < index.classes.size(); ++i) {
    out.put_text(index.classes[i]);
    out.put(static_cast<std::uint64_t>(index.modified_ns[i]));
  }
  for (const auto* files : {&index.images, &index.bad, &index.others}) put_files(out, *files);
  return std::move(out.bytes());
}

std::optional<FolderIndex> parse_folder_index(std::span<const std::byte> content) {
  ByteReader in(content);
  const auto classes = in.get<std::uint64_t>();
  const auto images = in.get<std::uint64_t>();
  const auto bad = in.get<std::uint64_t>();
  const auto others = in.get<std::uint64_t>();
  if (classes > in.left() / 12) return {};
  for (const std::uint64_t count : {images, bad, others})
    if (count > in.left() / kSmallestEntry) return {};
  FolderIndex index;
  for (std::uint64_t i = 0; i < classes; ++i) {
    index.classes.emplace_back(in.get_text());
    index.modified_ns.push_back(static_cast<std::int64_t>(in.get<std::uint64_t>()));
  }
  for (const auto& [files, count] : {std::pair(&index.images, images), std::pair(&index.bad, bad),
                                     std::pair(&index.others, others)}) {
    auto read = get_files(in, count, classes);
    if (!read) return {};
    *files = std::move(*read);
  }
  const bool too_large = std::ranges::any_of(
      index.images, [](const ImageFile& image) { return image.stamp.bytes > kMaxRecordBytes; });
  if (!in.ok() || in.left() != 0 || too_large) return {};
  return index;
}

}  // namespace millrace::io
