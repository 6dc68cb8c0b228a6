// SPDX-License-Identifier: Apache-2.0
//
// Stands between one rank of a job and its files (through LD_PRELOAD), as a mount, a cache or a
// disk that only this rank's machine has.
//
//   MILLRACE_SHIM_RANK=1             the rank; the others see files as they are
//   MILLRACE_SHIM_DENY=TEXT          opening a path with this in it fails: input/output error
//   MILLRACE_SHIM_SWAP=FROM=>TO      in a path, FROM is read as TO
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_for_this_rank() {
  static const bool result = [] {
    const std::string wanted = variable("MILLRACE_SHIM_RANK");
    return !wanted.empty() && wanted == variable("OMPI_COMM_WORLD_RANK");
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

mode_t mode_of(int flags, std::va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

}  // namespace

extern "C" {

#define MILLRACE_SHIM_OPEN(name)                                            \
  int name(const char* path, int flags, ...) {                              \
    std::va_list list;                                                      \
    va_start(list, flags);                                                  \
    const mode_t mode = mode_of(flags, list);                               \
    va_end(list);                                                           \
    static const auto original = next<int(const char*, int, ...)>(#name);   \
    if (!denied(path)) return original(swapped(path).c_str(), flags, mode); \
    errno = EIO;                                                            \
    return -1;                                                              \
  }
MILLRACE_SHIM_OPEN(open)
MILLRACE_SHIM_OPEN(open64)

#define MILLRACE_SHIM_OPENAT(name)                                                  \
  int name(int folder, const char* path, int flags, ...) {                          \
    std::va_list list;                                                              \
    va_start(list, flags);                                                          \
    const mode_t mode = mode_of(flags, list);                                       \
    va_end(list);                                                                   \
    static const auto original = next<int(int, const char*, int, ...)>(#name);      \
    if (!denied(path)) return original(folder, swapped(path).c_str(), flags, mode); \
    errno = EIO;                                                                    \
    return -1;                                                                      \
  }
MILLRACE_SHIM_OPENAT(openat)
MILLRACE_SHIM_OPENAT(openat64)

#define MILLRACE_SHIM_FOPEN(name)                                                   \
  std::FILE* name(const char* path, const char* mode) {                             \
    static const auto original = next<std::FILE*(const char*, const char*)>(#name); \
    if (!denied(path)) return original(swapped(path).c_str(), mode);                \
    errno = EIO;                                                                    \
    return nullptr;                                                                 \
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
}
