// SPDX-License-Identifier: Apache-2.0
#include "io/data/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::io {
namespace {

constexpr auto kSplitFolders = std::to_array<std::string_view>(
    {"train", "img_train", "val", "validation", "img_val", "test", "img_test"});
constexpr auto kImageEndings =
    std::to_array<std::string_view>({".jpg", ".jpeg", ".jpe", ".jfif", ".png"});
// Of a ByteWindow.
constexpr std::size_t kFirstStep = std::size_t{4} << 10;
constexpr std::size_t kLastStep = std::size_t{1} << 20;

}  // namespace

std::optional<FileStamp> stamp_of(const std::filesystem::path& path) noexcept {
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return FileStamp{.bytes = static_cast<std::uint64_t>(status.st_size),
                   .modified_ns = status.st_mtim.tv_sec * kNsPerSecond + status.st_mtim.tv_nsec};
}

std::int64_t modified_ns(const std::filesystem::path& path) noexcept {
  const std::optional<FileStamp> stamp = stamp_of(path);
  return stamp ? stamp->modified_ns : -1;
}

FolderListing list_folder(const std::filesystem::path& folder) {
  FolderListing listing;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    std::string name = entry->path().filename().string();
    if (name.starts_with('.')) continue;
    if (entry->is_directory(ignored))
      listing.folders.push_back(std::move(name));
    else if (entry->is_regular_file(ignored))
      listing.files.push_back(std::move(name));
    else
      listing.others.push_back(std::move(name));
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    fail(ErrorKind::Io, "{}: cannot be listed ({}): check its permissions", folder.string(),
         error.message());
  std::ranges::sort(listing.files);
  std::ranges::sort(listing.folders);
  std::ranges::sort(listing.others);
  return listing;
}

FileLook look_at_file(const std::filesystem::path& path) {
  const UniqueFd file = open_file(path, O_RDONLY);
  const std::optional<FileStamp> stamp = stamp_of(path);
  if (!stamp) fail_io("inspect", path, errno);
  std::array<std::byte, kImageSignatureBytes> head{};
  const auto signature = std::span(head).first(std::min<std::uint64_t>(stamp->bytes, head.size()));
  read_exactly(file.get(), 0, signature, path);
  return {.stamp = *stamp, .format = format_of(signature)};
}

bool has_image_name(std::string_view name) {
  const std::string lower = to_lower(name);
  return std::ranges::any_of(kImageEndings,
                             [&](std::string_view ending) { return lower.ends_with(ending); });
}

std::string image_endings() { return join(kImageEndings, ", "); }

bool has_split_name(std::string_view name) noexcept {
  return std::ranges::find(kSplitFolders, name) != kSplitFolders.end();
}

std::filesystem::path inside(const std::filesystem::path& directory, std::string_view inner) {
  return inner.empty() ? directory : directory / inner;
}

std::string first_of(std::span<const std::string> names) {
  constexpr std::size_t kShown = 5;
  const std::size_t shown = std::min(names.size(), kShown);
  return printable(
      fmt::format("{}{}", join(names.first(shown), ", "), shown < names.size() ? ", ..." : ""));
}

std::string split_folder_names() { return join(kSplitFolders, ", "); }

ByteWindow::ByteWindow(const std::filesystem::path& path)
    : label_(path.string()),
      file_(open_file(path, O_RDONLY)),
      size_(regular_size(file_.get(), path)) {}

ByteWindow::ByteWindow(std::span<const std::byte> bytes, std::string label)
    : label_(std::move(label)), size_(bytes.size()), view_(bytes) {}

bool ByteWindow::covers(std::uint64_t offset, std::uint64_t count) const noexcept {
  return offset >= begin_ && offset - begin_ <= view_.size() &&
         count <= view_.size() - (offset - begin_);
}

std::span<const std::byte> ByteWindow::at(std::uint64_t offset, std::size_t count) {
  MILLRACE_ASSERT(offset <= size_ && count <= size_ - offset);
  if (!covers(offset, count)) fill(offset, count);
  return view_.subspan(static_cast<std::size_t>(offset - begin_), count);
}

std::span<const std::byte> ByteWindow::from(std::uint64_t offset) {
  static_cast<void>(at(offset, 1));
  return view_.subspan(static_cast<std::size_t>(offset - begin_));
}

void ByteWindow::fill(std::uint64_t offset, std::size_t count) {
  const std::uint64_t end = begin_ + view_.size();
  const bool goes_on = step_ > 0 && offset >= begin_ && offset <= end;
  step_ = goes_on ? std::min(2 * step_, kLastStep) : kFirstStep;
  const std::size_t kept = goes_on ? static_cast<std::size_t>(end - offset) : 0;
  const std::size_t wanted = static_cast<std::size_t>(
      std::min<std::uint64_t>(std::max(count, kept + step_), size_ - offset));
  std::copy(view_.end() - static_cast<std::ptrdiff_t>(kept), view_.end(), buffer_.begin());
  view_ = {};
  if (buffer_.size() < wanted) buffer_.resize(wanted);
  read_exactly(file_.get(), offset + kept, std::span(buffer_).first(wanted).subspan(kept), label_);
  view_ = std::span(buffer_).first(wanted);
  begin_ = offset;
}

}  // namespace millrace::io
