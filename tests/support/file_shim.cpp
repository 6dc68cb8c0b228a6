// SPDX-License-Identifier: Apache-2.0
//
// Intercepts the file calls of one rank (through LD_PRELOAD) to simulate a mount, a cache or a disk
// of that rank's machine.
//
//   MILLRACE_SHIM_RANK=1             the rank; other ranks are not affected. "alone" is a process
//                                    without a launcher
//   MILLRACE_SHIM_DENY=TEXT          opening a path that contains this fails: input/output error
//   MILLRACE_SHIM_SWAP=FROM=>TO      replaces FROM by TO in paths
//   MILLRACE_SHIM_BELOW=DIRECTORY    counts the calls that change something in there
//   MILLRACE_SHIM_AT=N               the N-th of them, from 1, goes wrong:
//   MILLRACE_SHIM_FAULT=kill         the process is killed before it
//                       torn         half of the data is written, then the process is killed
//                       short        the call writes half of the data
//                       slow         it takes eight seconds longer
//                       hang         it never returns
//                       stop         the process is stopped before it
//                       ENOSPC, ..   the call does nothing and fails with this error
//   MILLRACE_SHIM_RECORD=FILE        writes a line per counted call: its action and path
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio_ext.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace {

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_for_this_rank() {
  static const bool result = [] {
    const std::string wanted = variable("MILLRACE_SHIM_RANK");
    const std::string here = variable("OMPI_COMM_WORLD_RANK");
    return !wanted.empty() && wanted == (here.empty() ? "alone" : here);
  }();
  return result;
}

bool denied(const char* path) {
  static const std::string text = variable("MILLRACE_SHIM_DENY");
  return is_for_this_rank() && !text.empty() && std::strstr(path, text.c_str()) != nullptr;
}

std::string swapped(const char* path) {
  static const std::string rule = variable("MILLRACE_SHIM_SWAP");
  static const std::size_t arrow = rule.find("=>");
  std::string result = path;
  if (!is_for_this_rank() || arrow == std::string::npos) return result;
  const std::size_t at = result.find(rule.substr(0, arrow));
  return at == std::string::npos ? result : result.replace(at, arrow, rule.substr(arrow + 2));
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

// ---- calls that change files --------------------------------------------------------------------

/// The path that a descriptor, or a path relative to one, refers to.
std::string path_of(int descriptor) {
  std::array<char, PATH_MAX> target;
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t n = readlink(link.c_str(), target.data(), target.size());
  return n > 0 ? std::string(target.data(), static_cast<std::size_t>(n)) : std::string();
}
std::string path_at(int folder, const char* path) {
  return path[0] == '/' || folder == AT_FDCWD ? path : path_of(folder) + "/" + path;
}

void record(const char* action, const std::string& path) {
  static const std::string file = variable("MILLRACE_SHIM_RECORD");
  if (file.empty()) return;
  // Bypasses the intercepted open and write.
  static const long descriptor =
      syscall(SYS_openat, AT_FDCWD, file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const std::string line = std::string(action) + " " + path + "\n";
  syscall(SYS_write, descriptor, line.data(), line.size());
}

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

/// Delays a call.
void delay(const std::string& fault) {
  constexpr unsigned kSlow = 8;
  if (fault == "slow") sleep(kSlow);
  if (fault == "stop") raise(SIGSTOP);
  while (fault == "hang") pause();
}

int number_of_error(const std::string& name) {
  for (const auto& [text, number] : {std::pair{"ENOSPC", ENOSPC},
                                     {"EIO", EIO},
                                     {"EDQUOT", EDQUOT},
                                     {"EINTR", EINTR},
                                     {"EACCES", EACCES}})
    if (name == text) return number;
  return 0;
}

/// What happens to a call.
enum class Fate { Goes, Fails, Torn, Short };

/// Counts a call that changes `path`.
Fate fate_of(const char* action, const std::string& path) {
  static const std::string below = variable("MILLRACE_SHIM_BELOW");
  static const long at = std::strtol(variable("MILLRACE_SHIM_AT"), nullptr, 10);
  static const std::string fault = variable("MILLRACE_SHIM_FAULT");
  static std::atomic<long> calls{0};
  if (!is_for_this_rank() || below.empty() || path.compare(0, below.size(), below) != 0)
    return Fate::Goes;
  record(action, path);
  if (++calls != at) return Fate::Goes;
  if (fault == "kill") die();
  if (fault == "torn") return Fate::Torn;
  if (fault == "short") return Fate::Short;
  delay(fault);
  errno = number_of_error(fault);
  return errno != 0 ? Fate::Fails : Fate::Goes;
}

/// A call that is done completely or not at all.
template <class Call>
int whole(const char* action, const std::string& path, Call call) {
  switch (fate_of(action, path)) {
    case Fate::Torn:
      die();
    case Fate::Fails:
      return -1;
    default:
      return call();
  }
}

/// A call that writes `bytes`, or fewer of them.
template <class Call>
ssize_t transfer(int descriptor, std::size_t bytes, Call call) {
  switch (fate_of("write", path_of(descriptor))) {
    case Fate::Torn:
      call(bytes / 2);
      die();
    case Fate::Short:
      return call((bytes + 1) / 2);
    case Fate::Fails:
      return -1;
    default:
      return call(bytes);
  }
}

bool is_for_writing(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

/// Opening for writing counts as a change; opening for reading does not.
template <class Call>
int opening(const std::string& path, int flags, Call call) {
  return is_for_writing(flags) ? whole("open", path, call) : call();
}

mode_t mode_of(int flags, std::va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

}  // namespace

extern "C" {

#define MILLRACE_SHIM_OPEN(name)                                                                 \
  int name(const char* path, int flags, ...) {                                                   \
    std::va_list list;                                                                           \
    va_start(list, flags);                                                                       \
    const mode_t mode = mode_of(flags, list);                                                    \
    va_end(list);                                                                                \
    static const auto original = next<int(const char*, int, ...)>(#name);                        \
    if (!denied(path))                                                                           \
      return opening(path, flags, [&] { return original(swapped(path).c_str(), flags, mode); }); \
    errno = EIO;                                                                                 \
    return -1;                                                                                   \
  }
MILLRACE_SHIM_OPEN(open)
MILLRACE_SHIM_OPEN(open64)
// With _FORTIFY_SOURCE, for flags that are not constant.
int __open_2(const char* path, int flags) {  // NOLINT(readability-identifier-naming)
  errno = EIO;
  if (denied(path)) return -1;
  return opening(path, flags, [&] {
    return static_cast<int>(syscall(SYS_openat, AT_FDCWD, swapped(path).c_str(), flags));
  });
}

#define MILLRACE_SHIM_OPENAT(name)                                                          \
  int name(int folder, const char* path, int flags, ...) {                                  \
    std::va_list list;                                                                      \
    va_start(list, flags);                                                                  \
    const mode_t mode = mode_of(flags, list);                                               \
    va_end(list);                                                                           \
    static const auto original = next<int(int, const char*, int, ...)>(#name);              \
    if (!denied(path))                                                                      \
      return opening(path_at(folder, path), flags,                                          \
                     [&] { return original(folder, swapped(path).c_str(), flags, mode); }); \
    errno = EIO;                                                                            \
    return -1;                                                                              \
  }
MILLRACE_SHIM_OPENAT(openat)
MILLRACE_SHIM_OPENAT(openat64)

#define MILLRACE_SHIM_FOPEN(name)                                                     \
  std::FILE* name(const char* path, const char* mode) {                               \
    static const auto original = next<std::FILE*(const char*, const char*)>(#name);   \
    errno = EIO;                                                                      \
    if (denied(path)) return nullptr;                                                 \
    if (mode[0] != 'r' && whole("open", path, [] { return 0; }) != 0) return nullptr; \
    return original(swapped(path).c_str(), mode);                                     \
  }
MILLRACE_SHIM_FOPEN(fopen)
MILLRACE_SHIM_FOPEN(fopen64)

#define MILLRACE_SHIM_STAT(name, type)                                        \
  int name(const char* path, struct type* result) {                           \
    static const auto original = next<int(const char*, struct type*)>(#name); \
    return original(swapped(path).c_str(), result);                           \
  }
MILLRACE_SHIM_STAT(stat, stat)
MILLRACE_SHIM_STAT(stat64, stat64)
MILLRACE_SHIM_STAT(lstat, stat)
MILLRACE_SHIM_STAT(lstat64, stat64)

ssize_t write(int descriptor, const void* data, std::size_t bytes) {
  static const auto original = next<ssize_t(int, const void*, std::size_t)>("write");
  return transfer(descriptor, bytes, [&](std::size_t n) { return original(descriptor, data, n); });
}

#define MILLRACE_SHIM_PWRITE(name, offset_type)                                                    \
  ssize_t name(int descriptor, const void* data, std::size_t bytes, offset_type at) {              \
    static const auto original = next<ssize_t(int, const void*, std::size_t, offset_type)>(#name); \
    return transfer(descriptor, bytes,                                                             \
                    [&](std::size_t n) { return original(descriptor, data, n, at); });             \
  }
MILLRACE_SHIM_PWRITE(pwrite, off_t)
MILLRACE_SHIM_PWRITE(pwrite64, off64_t)

/// A partial write affects the first piece.
ssize_t writev(int descriptor, const iovec* pieces, int count) {
  static const auto original = next<ssize_t(int, const iovec*, int)>("writev");
  const std::size_t first = count > 0 ? pieces[0].iov_len : 0;
  return transfer(descriptor, first, [&](std::size_t n) {
    if (n == first) return original(descriptor, pieces, count);
    const iovec part{pieces[0].iov_base, n};
    return original(descriptor, &part, 1);
  });
}

/// Inside the C library, fflush() does not use the intercepted write.
int fflush(std::FILE* file) {
  static const auto original = next<int(std::FILE*)>("fflush");
  const std::size_t waiting = file != nullptr ? __fpending(file) : 0;
  if (waiting == 0) return original(file);
  switch (fate_of("write", path_of(fileno(file)))) {
    case Fate::Torn:
      syscall(SYS_write, fileno(file), file->_IO_write_base, waiting / 2);
      die();
    case Fate::Fails:
      return EOF;
    default:
      return original(file);
  }
}

#define MILLRACE_SHIM_SYNC(name)                                                     \
  int name(int descriptor) {                                                         \
    static const auto original = next<int(int)>(#name);                              \
    return whole("sync", path_of(descriptor), [&] { return original(descriptor); }); \
  }
MILLRACE_SHIM_SYNC(fsync)
MILLRACE_SHIM_SYNC(fdatasync)

#define MILLRACE_SHIM_TRUNCATE(name, file_type, path_of_file)                      \
  int name(file_type file, off_t size) noexcept {                                  \
    static const auto original = next<int(file_type, off_t)>(#name);               \
    return whole("cut", path_of_file(file), [&] { return original(file, size); }); \
  }
MILLRACE_SHIM_TRUNCATE(ftruncate, int, path_of)
MILLRACE_SHIM_TRUNCATE(ftruncate64, int, path_of)
MILLRACE_SHIM_TRUNCATE(truncate, const char*, std::string)
MILLRACE_SHIM_TRUNCATE(truncate64, const char*, std::string)

int rename(const char* from, const char* to) noexcept {
  static const auto original = next<int(const char*, const char*)>("rename");
  return whole("rename", from, [&] { return original(from, to); });
}

#define MILLRACE_SHIM_REMOVE(name)                                \
  int name(const char* path) noexcept {                           \
    static const auto original = next<int(const char*)>(#name);   \
    return whole("remove", path, [&] { return original(path); }); \
  }
MILLRACE_SHIM_REMOVE(unlink)
MILLRACE_SHIM_REMOVE(rmdir)
MILLRACE_SHIM_REMOVE(remove)

int unlinkat(int folder, const char* path, int flags) noexcept {
  static const auto original = next<int(int, const char*, int)>("unlinkat");
  return whole("remove", path_at(folder, path), [&] { return original(folder, path, flags); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto original = next<int(const char*, mode_t)>("mkdir");
  return whole("make", path, [&] { return original(path, mode); });
}
}
