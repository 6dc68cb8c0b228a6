// SPDX-License-Identifier: Apache-2.0
//
// What lies on disk: stamps of files, contents of folders, which files and folders may hold images,
// and a window on the bytes of a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/image_format.hpp"
#include "io/atomic_file.hpp"

namespace millrace::io {

/// Size and modification time, to detect that a file has changed. Times are nanoseconds since 1970.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  static constexpr auto kFields = std::tuple(&FileStamp::bytes, &FileStamp::modified_ns);
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// The stamp of a file or folder; empty, with the reason in errno, on failure.
[[nodiscard]] std::optional<FileStamp> stamp_of(const std::filesystem::path& path) noexcept;

/// The modification time, or -1 if the file does not exist.
[[nodiscard]] std::int64_t modified_ns(const std::filesystem::path& path) noexcept;

/// Sorted names in a folder, without hidden ones (".*").
struct FolderListing {
  std::vector<std::string> files;
  std::vector<std::string> folders;
  std::vector<std::string> others;  ///< broken links, pipes, devices
};

/// Empty if the folder does not exist. Errors: Io.
[[nodiscard]] FolderListing list_folder(const std::filesystem::path& folder);

/// Stamp and format of a file. The format comes from its first bytes.
struct FileLook {
  FileStamp stamp;
  ImageFormat format = ImageFormat::Other;
};

/// Inspects a regular file. Errors: Io.
[[nodiscard]] FileLook look_at_file(const std::filesystem::path& path);

/// Whether a name has the extension of an image, in any case.
[[nodiscard]] bool has_image_name(std::string_view name);
/// ".jpg, .jpeg, .jpe, .jfif, .png" for messages.
[[nodiscard]] std::string image_endings();

/// Whether a folder has the name of a split ("train", "img_val", "test"). Beside class folders,
/// such a folder is not a class.
[[nodiscard]] bool has_split_name(std::string_view name) noexcept;
/// "train, img_train, ..." for messages.
[[nodiscard]] std::string split_folder_names();

/// The folder `inner` of a directory, or the directory itself if `inner` is empty.
[[nodiscard]] std::filesystem::path inside(const std::filesystem::path& directory,
                                           std::string_view inner);
/// The first five of many names, for messages: "a, b, c, d, e, ...".
[[nodiscard]] std::string first_of(std::span<const std::string> names);

/// Reads a file through a moving window. It reads little after a jump, and more and more during
/// sequential access. So small records are read in large pieces, and skipped data is hardly read.
/// Not thread-safe.
class ByteWindow {
 public:
  /// Errors: Io.
  explicit ByteWindow(const std::filesystem::path& path);
  /// Bytes in memory, called `label` in messages; they must outlive the window.
  ByteWindow(std::span<const std::byte> bytes, std::string label);

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] const std::string& label() const noexcept { return label_; }

  /// Bytes [offset, offset + count), which must be in the file; valid until the next call. Errors:
  /// Io; Data if the file was truncated meanwhile.
  [[nodiscard]] std::span<const std::byte> at(std::uint64_t offset, std::size_t count);
  /// At least one byte from `offset`, which must be in the file, and all following bytes in the
  /// buffer.
  [[nodiscard]] std::span<const std::byte> from(std::uint64_t offset);

 private:
  void fill(std::uint64_t offset, std::size_t count);
  [[nodiscard]] bool covers(std::uint64_t offset, std::uint64_t count) const noexcept;

  std::string label_;
  UniqueFd file_;
  std::uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> view_;  ///< part of the buffer, or all bytes in memory
  std::uint64_t begin_ = 0;          ///< offset of the view in the file
  std::size_t step_ = 0;             ///< bytes of the last read
};

}  // namespace millrace::io
