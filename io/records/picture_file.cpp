// SPDX-License-Identifier: Apache-2.0
#include "io/records/picture_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/records/byte_window.hpp"

namespace millrace::io {
namespace {

constexpr auto kSplitFolders = std::to_array<std::string_view>(
    {"train", "img_train", "val", "validation", "img_val", "test", "img_test"});

}  // namespace

FileLook look_at_file(const std::filesystem::path& path) {
  const UniqueFd file = open_file(path, O_RDONLY);
  const FileStamp stamp = regular_stamp(file.get(), path.string());
  std::array<std::byte, kImageSignatureBytes> head{};
  const auto signature = std::span(head).first(std::min<std::uint64_t>(stamp.bytes, head.size()));
  read_exactly(file.get(), 0, signature, path.string());
  return {.stamp = stamp, .format = format_of(signature)};
}

bool has_picture_name(std::string_view name) {
  const std::string lower = to_lower(name);
  return lower.ends_with(".jpeg") || lower.ends_with(".jpg") || lower.ends_with(".png");
}

bool has_split_name(std::string_view name) noexcept {
  return std::ranges::find(kSplitFolders, name) != kSplitFolders.end();
}

std::string split_folder_names() { return join(kSplitFolders, ", "); }

}  // namespace millrace::io
