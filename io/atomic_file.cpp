// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <system_error>

#include "core/crc32c.hpp"
#include "core/error.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kReadPiece = std::size_t{1} << 20;

// Repeats a system call that a signal interrupted.
template <class Call>
auto resumed(Call call) noexcept {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

std::string_view remedy(int error_number) noexcept {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "; free some space there or choose another directory";
    case EFBIG:
      return "; raise the limit on file sizes (ulimit -f) or choose another directory";
    case EACCES:
    case EPERM:
      return "; check its permissions and owner";
    case EROFS:
      return "; choose a directory that can be written";
    default:
      return "";
  }
}

}  // namespace

UniqueFd::~UniqueFd() { static_cast<void>(close()); }

int UniqueFd::close() noexcept {
  if (fd_ < 0) return 0;
  // Never repeated: Linux has released the descriptor even when it reports EINTR.
  const int result = ::close(std::exchange(fd_, -1));
  return result == 0 || errno == EINTR ? 0 : errno;
}

void fail_io(std::string_view action, const std::filesystem::path& path, int error_number) {
  fail(ErrorKind::Io, "cannot {} {}: {}{}", action, path.string(),
       std::generic_category().message(error_number), remedy(error_number));
}

std::size_t read_some(int fd, std::span<std::byte> out, const std::filesystem::path& path) {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto n = resumed([&] { return ::read(fd, out.data() + done, out.size() - done); });
    if (n < 0) fail_io("read", path, errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

std::uint64_t regular_size(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_io("inspect", path, errno);
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::Io, "{}: not a regular file", path.string());
  return static_cast<std::uint64_t>(status.st_size);
}

std::int64_t read_at(int fd, std::span<std::byte> out, std::uint64_t offset) noexcept {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto n = resumed([&] {
      return ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    });
    if (n < 0) return n;
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return static_cast<std::int64_t>(done);
}

void read_exactly(int fd, std::uint64_t offset, std::span<std::byte> out,
                  const std::filesystem::path& path) {
  const std::int64_t done = read_at(fd, out, offset);
  if (done < 0) fail_io("read", path, errno);
  if (done == std::ssize(out)) return;
  fail(ErrorKind::Data,
       "{}: the file ends at offset {}, but {} more bytes are expected: it was truncated after it "
       "was opened",
       path.string(), offset + static_cast<std::uint64_t>(done), std::ssize(out) - done);
}

UniqueFd open_file(const std::filesystem::path& path, int flags,
                   const std::filesystem::path& shown) {
  constexpr mode_t kMode = 0666;  // minus the umask
  // Without O_NONBLOCK, opening a pipe would block until it has a writer.
  const bool to_read = (flags & O_ACCMODE) != O_WRONLY && (flags & O_DIRECTORY) == 0;
  if (to_read) flags |= O_NONBLOCK;
  UniqueFd file(resumed([&] { return ::open(path.c_str(), flags | O_CLOEXEC, kMode); }));
  if (!file.valid()) fail_io((flags & O_CREAT) != 0 ? "create" : "open", shown, errno);
  if (to_read) (void)regular_size(file.get(), shown);
  return file;
}

UniqueFd open_file(const std::filesystem::path& path, int flags) {
  return open_file(path, flags, path);
}

int write_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset) noexcept {
  while (!bytes.empty()) {
    const auto n = resumed(
        [&] { return ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (n < 0) return errno;
    if (n == 0) return EIO;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return 0;
}

int sync_descriptor(int fd) noexcept {
  return resumed([&] { return ::fsync(fd); }) == 0 ? 0 : errno;
}

void sync_directory(const std::filesystem::path& directory) {
  const UniqueFd handle = open_file(directory, O_RDONLY | O_DIRECTORY);
  const int error = sync_descriptor(handle.get());
  // Some network file systems return EINVAL for a directory, and need no sync.
  if (error != 0 && error != EINVAL) fail_io("sync", directory, error);
}

FileIdentity file_identity(const std::filesystem::path& path) noexcept {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {.device = status.st_dev, .number = status.st_ino};
}

bool process_lives(std::int64_t process) {
  if (process < 1 || process > std::numeric_limits<pid_t>::max()) return false;
  if (::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH) return false;
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string status;
  std::getline(file, status);
  const std::size_t name_end = status.rfind(')');
  return name_end == std::string::npos || !status.substr(name_end).starts_with(") Z");
}

namespace {

template <class Bytes>
Bytes read_whole(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const UniqueFd file = open_file(path, O_RDONLY);
  const std::uint64_t size = regular_size(file.get(), path);
  if (size > max_bytes)
    fail(ErrorKind::Io, "{}: {} bytes exceed the limit of {}", path.string(), size, max_bytes);
  Bytes bytes;
  try {
    bytes.resize(size);
  } catch (const std::exception&) {  // bad_alloc or length_error
    fail(ErrorKind::Io, "{}: its {} bytes do not fit in memory", path.string(), size);
  }
  bytes.resize(read_some(file.get(), std::as_writable_bytes(std::span(bytes)), path));
  return bytes;
}

}  // namespace

std::vector<std::byte> read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return read_whole<std::vector<std::byte>>(path, max_bytes);
}

std::string read_text(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return read_whole<std::string>(path, max_bytes);
}

LineReader::LineReader(const std::filesystem::path& path)
    : path_(path), file_(open_file(path, O_RDONLY)) {}

std::optional<std::string_view> LineReader::next() {
  constexpr std::size_t kPiece = std::size_t{64} << 10;
  line_ = next_;
  std::size_t looked_at = line_;
  for (;;) {
    if (const std::size_t end = buffer_.find('\n', looked_at); end != std::string::npos) {
      next_ = end + 1;
      ++lines_;
      return std::string_view(buffer_).substr(line_, end - line_);
    }
    if (buffer_.size() - line_ > kMaxLineBytes) return std::nullopt;
    before_ += line_;
    buffer_.erase(0, std::exchange(line_, 0));
    next_ = 0;
    looked_at = buffer_.size();
    buffer_.resize(looked_at + kPiece);
    const auto room = std::as_writable_bytes(std::span(buffer_)).subspan(looked_at);
    const std::size_t n = read_some(file_.get(), room, path_);
    buffer_.resize(looked_at + n);
    if (n == 0) return std::nullopt;
  }
}

FileChecksum checksum_file(const std::filesystem::path& path) {
  const UniqueFd file = open_file(path, O_RDONLY);
  std::vector<std::byte> buffer(kReadPiece);
  FileChecksum result;
  for (;;) {
    const std::size_t n = read_some(file.get(), buffer, path);
    if (n == 0) return result;
    result.crc32c = crc32c(std::span(buffer).first(n), result.crc32c);
    result.bytes += n;
  }
}

}  // namespace millrace::io
