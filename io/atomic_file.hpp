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
  /// Closes the file; returns errno or 0. Some file systems report write errors only here.
  [[nodiscard]] int close() noexcept;

 private:
  int fd_ = -1;
};

/// Throws Error(Io): "cannot <action> <path>: <reason of errno>", with a remedy if there is one.
[[noreturn]] void fail_io(std::string_view action, const std::filesystem::path& path,
                          int error_number);

/// The open call with O_CLOEXEC, resumed when interrupted. A file opened only for reading must be a
/// regular file (or a directory, if the flags ask for one), so a pipe never blocks. Errors: Io.
[[nodiscard]] UniqueFd open_file(const std::filesystem::path& path, int flags);

/// The same; errors name `shown`.
[[nodiscard]] UniqueFd open_file(const std::filesystem::path& path, int flags,
                                 const std::filesystem::path& shown);

/// Reads until `out` is full or the file ends; returns the number of bytes read. Errors: Io, naming
/// `path`.
[[nodiscard]] std::size_t read_some(int fd, std::span<std::byte> out,
                                    const std::filesystem::path& path);

/// The size of an open file. Errors: Io, naming `path`, also if it is not a regular file: pipes,
/// devices and directories have no reliable size and may never end.
[[nodiscard]] std::uint64_t regular_size(int fd, const std::filesystem::path& path);

/// Reads at `offset` until `out` is full or the file ends; returns the number of bytes read, or -1
/// with the reason in errno.
[[nodiscard]] std::int64_t read_at(int fd, std::span<std::byte> out, std::uint64_t offset) noexcept;

/// Fills `out` from `offset`. Errors, naming `path`: Io; Data if the file is too short.
void read_exactly(int fd, std::uint64_t offset, std::span<std::byte> out,
                  const std::filesystem::path& path);

/// Writes all of `bytes` at `offset`; returns 0 or errno. Resumes after signals and short writes.
[[nodiscard]] int write_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset) noexcept;

/// The fsync call, resumed when interrupted; returns 0 or errno.
[[nodiscard]] int sync_descriptor(int fd) noexcept;

/// Makes the entries of a directory (renames, new files) durable. Errors: Io.
void sync_directory(const std::filesystem::path& directory);

/// "<path>.tmp.<process>-<machine>-<random>": a name for what becomes `path` when it is complete.
[[nodiscard]] std::filesystem::path temporary_for(const std::filesystem::path& path);

/// A locked temporary file "<path>.tmp.<process>-<machine>-<random>" that commit() renames to
/// `path`. After a kill, `path` is the old file or the new one. An uncommitted file is removed.
/// Several staged files for one path do not interfere, even across machines: the last commit wins.
/// A link is followed.
class StagedFile {
 public:
  /// Errors: Io, also if `path` is a device or a pipe, which a rename would replace.
  explicit StagedFile(std::filesystem::path path);
  ~StagedFile();
  StagedFile(StagedFile&&) = delete;

  /// Thread-safe. Errors: Io.
  void write(std::span<const std::byte> bytes, std::uint64_t offset) const;
  /// Syncs the file, renames it and syncs the directory. On error (Io), the old file at `path`
  /// stays.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  UniqueFd file_;
};

/// Exclusive use of a run directory, or of another output directory (`what`, for the message), for
/// the lifetime of the object: an flock on `RUN_DIR/.lock` (`name`), which contains the owner's
/// process id, the time and the host. The kernel releases the lock when its owner dies, so no
/// cleanup is needed. A file server gives the lock of a host that it has not heard of for a while
/// to others, and some mounts keep locks to their host: require_lock() notices. Errors: Usage,
/// naming the holder, if the directory is still in use after four seconds; Io.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_directory,
                   std::string_view what = "run directory", std::string_view name = ".lock");

 private:
  UniqueFd file_;
};

/// What a lock contains, which each owner writes anew; empty if it cannot be read.
[[nodiscard]] std::string lock_text(const std::filesystem::path& run_directory,
                                    std::string_view name = ".lock");

/// Requires that nobody else has taken the lock since it contained `text`. One that was removed, or
/// cannot be read, was not taken. Errors: Io, naming the new owner.
void require_lock(const std::filesystem::path& run_directory, std::string_view text,
                  std::string_view name = ".lock");

/// Identifies the file or directory that a path leads to.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t number = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// Zeros if `path` does not exist.
[[nodiscard]] FileIdentity file_identity(const std::filesystem::path& path) noexcept;

/// Whether a process of this machine is alive. A zombie is not.
[[nodiscard]] bool process_lives(std::int64_t process);

/// Removes temporary files of StagedFiles for `path` whose processes were killed: those of this
/// machine at once, others after an hour without a write. Only one process at a time may call it
/// (RunLock). Never fails.
void remove_leftovers(const std::filesystem::path& path);
/// The same for all files of a folder whose name satisfies `is_target`.
void remove_leftovers(const std::filesystem::path& folder,
                      const std::function<bool(std::string_view)>& is_target);

/// Replaces `path` atomically by a file with the concatenated `pieces`. On error (Io), the old file
/// stays.
void write_file_atomically(const std::filesystem::path& path,
                           std::span<const std::span<const std::byte>> pieces);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Reads the whole file. Errors: Io, also if it is larger than `max_bytes`.
[[nodiscard]] std::vector<std::byte> read_file(const std::filesystem::path& path,
                                               std::uint64_t max_bytes);
[[nodiscard]] std::string read_text(const std::filesystem::path& path, std::uint64_t max_bytes);

/// Reads a text file line by line with memory for one line. Errors: Io.
class LineReader {
 public:
  /// A longer line is treated as damage.
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 10;
  explicit LineReader(const std::filesystem::path& path);

  /// The next line without its line break; valid until the next call. Empty at the end of the file,
  /// and when a line is too long or has no line break; in these cases rest() is not empty.
  [[nodiscard]] std::optional<std::string_view> next();
  /// File offset of the last line returned, or of the line that could not be returned.
  [[nodiscard]] std::uint64_t offset() const noexcept { return before_ + line_; }
  /// Lines returned so far.
  [[nodiscard]] std::int64_t lines() const noexcept { return lines_; }
  /// What follows the last line returned, as far as it has been read.
  [[nodiscard]] std::string_view rest() const noexcept {
    return std::string_view(buffer_).substr(next_);
  }

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  std::string buffer_;
  std::uint64_t before_ = 0;  ///< bytes of the file before the buffer
  std::size_t line_ = 0;      ///< start of the last returned line in the buffer
  std::size_t next_ = 0;      ///< start of the next line in the buffer
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
