// SPDX-License-Identifier: Apache-2.0
//
// Files that are written under another name and become files when they are complete: "train.packed"
// is written as "train.packed.tmp.4711-0123abcd-89ef4567". And the locks of directories.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <random>
#include <system_error>
#include <thread>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/machine_limits.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::io {
namespace {

/// End of a temporary file's name. Process ids alone are not enough: containers and hosts that
/// share a volume may have equal ones.
struct Mark {
  std::int64_t process = 0;
  std::uint32_t machine = 0;
  std::uint32_t random = 0;
};

constexpr std::string_view kTemporary = ".tmp.";

std::string to_string(const Mark& mark) {
  return fmt::format("{}-{:08x}-{:08x}", mark.process, mark.machine, mark.random);
}

/// Identifies this boot of the machine, equally in all its containers; none if unknown.
std::optional<std::uint32_t> this_boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!std::getline(file, id) || id.empty()) return {};
  return crc32c(std::as_bytes(std::span(id)));
}

std::uint32_t parse_hex(std::string_view text) {
  std::uint32_t value = 0;
  static_cast<void>(std::from_chars(text.data(), text.data() + text.size(), value, 16));
  return value;
}

std::optional<Mark> parse_mark(std::string_view text) {
  const std::vector<std::string> parts = split_list(text, '-');
  if (parts.size() != 3) return {};
  const Mark mark{.process = parse_number<std::int64_t>(parts[0]).value_or(0),
                  .machine = parse_hex(parts[1]),
                  .random = parse_hex(parts[2])};
  if (to_string(mark) != text) return {};
  return mark;
}

struct StagedName {
  std::string_view target;
  Mark mark;
};

/// The file that a temporary file becomes, and its mark; none for other names.
std::optional<StagedName> parse_staged(std::string_view name) {
  const std::size_t infix = name.rfind(kTemporary);
  if (infix == std::string_view::npos) return {};
  const auto mark = parse_mark(name.substr(infix + kTemporary.size()));
  if (!mark) return {};
  return StagedName{name.substr(0, infix), *mark};
}

// A file without a visible lock is abandoned after this time without a write. Writers write every
// few seconds.
constexpr std::chrono::hours kGivenUp{1};

// Whether a temporary file has no writer any more. Its writer holds a lock, which all containers of
// a machine see, but other machines only on some file systems.
bool is_left_over(const std::filesystem::path& path, const Mark& mark) {
  constexpr int kFlags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const UniqueFd file(::open(path.c_str(), kFlags));
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  const bool locked = ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
  if (!locked && errno == EWOULDBLOCK) return false;
  if (locked && this_boot() == mark.machine) return true;
  const auto written = std::chrono::system_clock::from_time_t(status.st_mtime);
  return std::chrono::system_clock::now() - written > kGivenUp;
}

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// The file that a link leads to, which is replaced instead of the link. Errors: Io for anything
/// but a regular file: replacing a device would destroy it.
std::filesystem::path target_of(std::filesystem::path path) {
  std::error_code none;
  if (std::filesystem::is_symlink(path, none)) {
    std::filesystem::path target = std::filesystem::canonical(path, none);
    if (!none) path = std::move(target);
  }
  const std::filesystem::file_status status = std::filesystem::status(path, none);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    fail(ErrorKind::Io, "cannot write {}: not a regular file", path.string());
  return path;
}

}  // namespace

std::filesystem::path temporary_for(const std::filesystem::path& path) {
  std::filesystem::path temporary = path;
  temporary += kTemporary;
  temporary += to_string({.process = ::getpid(),
                          .machine = this_boot().value_or(0),
                          .random = std::random_device{}()});
  return temporary;
}

StagedFile::StagedFile(std::filesystem::path path)
    : path_(target_of(std::move(path))),
      temporary_(temporary_for(path_)),
      file_(open_file(temporary_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, path_)) {
  // If files cannot be locked, remove_leftovers() uses their age.
  static_cast<void>(::flock(file_.get(), LOCK_EX | LOCK_NB));
}

StagedFile::~StagedFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void StagedFile::write(std::span<const std::byte> bytes, std::uint64_t offset) const {
  if (const int error = write_at(file_.get(), bytes, offset); error != 0)
    fail_io("write", path_, error);
}

void StagedFile::commit() {
  if (const int error = sync_descriptor(file_.get()); error != 0) fail_io("sync", path_, error);
  if (const int error = file_.close(); error != 0) fail_io("close", path_, error);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("replace", path_, errno);
  temporary_.clear();
  sync_directory(directory_of(path_));
}

void remove_leftovers(const std::filesystem::path& folder,
                      const std::function<bool(std::string_view)>& is_target) {
  std::vector<std::filesystem::path> left;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const std::optional<StagedName> staged = parse_staged(name);
    if (staged && is_target(staged->target) && is_left_over(entry->path(), staged->mark))
      left.push_back(entry->path());
  }
  for (const std::filesystem::path& leftover : left) std::filesystem::remove(leftover, error);
}

void remove_leftovers(const std::filesystem::path& path) {
  remove_leftovers(directory_of(path), [name = path.filename().string()](std::string_view target) {
    return target == name;
  });
}

void write_file_atomically(const std::filesystem::path& path,
                           std::span<const std::span<const std::byte>> pieces) {
  StagedFile file(path);
  std::uint64_t offset = 0;
  for (const auto piece : pieces) {
    file.write(piece, offset);
    offset += piece.size();
  }
  file.commit();
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  const std::array<std::span<const std::byte>, 1> pieces = {std::as_bytes(std::span(text))};
  write_file_atomically(path, pieces);
}

// Locks of directories.

std::string lock_text(const std::filesystem::path& run_directory, std::string_view name) {
  const std::filesystem::path path = run_directory / name;
  constexpr std::size_t kBlock = 4096;
  alignas(kBlock) std::array<char, kBlock> text{};
  // From the server, if there is one: the cache may still hold what this host wrote. Not every file
  // system can.
  for (const int way : {O_DIRECT, 0}) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | way));
    const auto n = file.valid() ? ::pread(file.get(), text.data(), text.size(), 0) : -1;
    if (n >= 0) return {text.data(), static_cast<std::size_t>(n)};
  }
  return {};
}

namespace {

// "process 12 on node1". The text of a lock has process id, time and host; fewer until the owner
// has written them.
std::string holder_in(std::string_view text) {
  const std::vector<std::string> holder = split_list(text, '\n');
  return fmt::format("process {}{}", holder.empty() ? "(just starting)" : printable(holder[0]),
                     holder.size() > 2 ? " on " + printable(holder[2]) : "");
}

// Ranks live on for a moment when their launcher was killed, and a killed process releases its
// memory first and its file locks later: a restart must not fail because of them. A holder on
// another machine may be ending, too, because its process is unknown here.
bool is_ending(std::string_view text) {
  const std::vector<std::string> holder = split_list(text, '\n');
  if (holder.empty() || (holder.size() > 2 && holder[2] != host_name())) return true;
  std::ifstream command_line("/proc/" + holder[0] + "/cmdline");
  return command_line.peek() == std::ifstream::traits_type::eof();
}

// Returns 0 or errno.
int lock(int fd, const std::filesystem::path& run_directory, std::string_view name) {
  constexpr std::chrono::milliseconds kPause{50};
  constexpr int kAttempts = 100;
  constexpr int kAttemptsWhileAlive = 80;
  for (int attempt = 1;; ++attempt) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
    const int error = errno;
    if (error != EWOULDBLOCK || attempt == kAttempts) return error;
    if (attempt > kAttemptsWhileAlive && !is_ending(lock_text(run_directory, name))) return error;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& run_directory, std::string_view what,
                 std::string_view name) {
  const std::filesystem::path path = run_directory / name;
  file_ = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (const int error = lock(file_.get(), run_directory, name); error != 0) {
    if (error != EWOULDBLOCK) fail_io("lock", path, error);
    fail(ErrorKind::Usage, "{} {} is in use by {}; wait for it or choose another", what,
         run_directory.string(), holder_in(lock_text(run_directory, name)));
  }
  // The second line tells this directory from a copy of it.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string text = fmt::format("{}\n{}\n{}\n", ::getpid(), now, host_name());
  if (::ftruncate(file_.get(), 0) != 0) fail_io("write", path, errno);
  int error = write_at(file_.get(), std::as_bytes(std::span(text)), 0);
  if (error != 0) fail_io("write", path, error);
  // Over NFS other hosts would read it half a minute later.
  error = sync_descriptor(file_.get());
  if (error != 0) fail_io("sync", path, error);
}

void require_lock(const std::filesystem::path& run_directory, std::string_view text,
                  std::string_view name) {
  const std::string found = lock_text(run_directory, name);
  if (text.empty() || found.empty() || found == text) return;
  fail(ErrorKind::Io,
       "{}: {} has it now: the lock was lost with the way to the file server, or is not seen by "
       "other hosts: nothing more is written here",
       run_directory.string(), holder_in(found));
}

}  // namespace millrace::io
