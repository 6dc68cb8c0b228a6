// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::io {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  /// Closes and reports, as errno or 0, what some file systems say only now.
  [[nodiscard]] int close() noexcept;

 private:
  int fd_ = -1;
};

/// Throws Error(Io): "cannot <action> <path>: <reason of errno>", with a remedy where there is one.
[[noreturn]] void fail_io(std::string_view action, const std::filesystem::path& path,
                          int error_number);

/// The open call with O_CLOEXEC, resumed when interrupted. What is only read must be a regular file
/// (or a directory, where the flags ask for one): nobody waits for a pipe. Errors: Io.
[[nodiscard]] UniqueFd open_file(const std::filesystem::path& path, int flags);

/// Reads until `out` is full or the file ends; returns how much was read. Errors: Io, naming
/// `path`.
[[nodiscard]] std::size_t read_some(int fd, std::span<std::byte> out,
                                    const std::filesystem::path& path);

/// Writes all of `bytes` at `offset`; returns 0 or errno. Resumes after signals and short writes.
[[nodiscard]] int write_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset) noexcept;

/// The fsync call, resumed when interrupted; returns 0 or errno.
[[nodiscard]] int sync_descriptor(int fd) noexcept;

/// Makes the entries of a directory (renames, new files) durable. Errors: Io.
void sync_directory(const std::filesystem::path& directory);

/// A file written beside `path` as "<path>.tmp.<process>-<machine>-<random>", locked, which
/// commit() puts in its place: after a kill there is the old file or the new one. What is not
/// committed is removed. Several for one path do not meet, on whichever machines they are: the last
/// to commit stays.
class StagedFile {
 public:
  /// Errors: Io.
  explicit StagedFile(std::filesystem::path path);
  ~StagedFile();
  StagedFile(StagedFile&&) = delete;

  /// May be called from many threads at once. Errors: Io.
  void write(std::span<const std::byte> bytes, std::uint64_t offset) const;
  /// Syncs the file, renames it and syncs the directory. Errors: Io; what was at `path` stays.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  UniqueFd file_;
};

/// Which file or directory a path leads to.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t number = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// Zeros where there is none.
[[nodiscard]] FileIdentity file_identity(const std::filesystem::path& path) noexcept;

/// Whether a process of this machine lives; one that ended and that nobody has asked about does
/// not.
[[nodiscard]] bool process_lives(std::int64_t process);

/// Removes what StagedFiles for `path` left behind when their processes were killed, those of this
/// machine at once, others when nobody has written to them for an hour. One process at a time may
/// (RunLock). Never fails.
void remove_leftovers(const std::filesystem::path& path);
/// The same for all files of a folder whose name `is_target` takes.
void remove_leftovers(const std::filesystem::path& folder,
                      const std::function<bool(std::string_view)>& is_target);

/// Replaces `path` by a file with the concatenated `pieces`, as a StagedFile. Errors: Io; the old
/// file stays.
void write_file_atomically(const std::filesystem::path& path,
                           std::span<const std::span<const std::byte>> pieces);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// The whole file. Errors: Io, also when it is larger than `max_bytes`.
[[nodiscard]] std::vector<std::byte> read_file(const std::filesystem::path& path,
                                               std::uint64_t max_bytes);
[[nodiscard]] std::string read_text(const std::filesystem::path& path, std::uint64_t max_bytes);

/// Reads a text line by line, in memory for one line. Errors: Io.
class LineReader {
 public:
  /// A longer line is damage: tables of numbers have no such lines.
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 10;
  explicit LineReader(const std::filesystem::path& path);

  /// The next line without its end, until the next call. Nothing at the end of the file, and where
  /// a line is too long or lacks its end: then rest() is not empty.
  [[nodiscard]] std::optional<std::string_view> next();
  /// Where in the file the last line given begins, or what could not be given.
  [[nodiscard]] std::uint64_t offset() const noexcept { return before_ + line_; }
  /// Lines given so far.
  [[nodiscard]] std::int64_t lines() const noexcept { return lines_; }
  /// What follows the last line given, as far as it is known.
  [[nodiscard]] std::string_view rest() const noexcept {
    return std::string_view(buffer_).substr(next_);
  }

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  std::string buffer_;
  std::uint64_t before_ = 0;  ///< bytes of the file before the buffer
  std::size_t line_ = 0;      ///< where the last line given begins in the buffer
  std::size_t next_ = 0;      ///< and where the next one
  std::int64_t lines_ = 0;
};

struct FileChecksum {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  friend bool operator==(const FileChecksum&, const FileChecksum&) = default;
};

/// Size and CRC-32C of a file, read in pieces. Errors: Io.
[[nodiscard]] FileChecksum checksum_file(const std::filesystem::path& path);

}  // namespace millrace::io
