// SPDX-License-Identifier: Apache-2.0
#include "train/memory.hpp"

#include <cstdio>
#include <cstring>
#include <memory>

namespace millrace::train {
namespace {

/// A line "<key>:  <n> kB" of /proc/self/status.
std::int64_t status_bytes(const char* key) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/status", "r"),
                                                             &std::fclose);
  if (!file) return 0;
  char line[256];
  const std::size_t length = std::strlen(key);
  while (std::fgets(line, sizeof line, file.get()) != nullptr) {
    long long kilobytes = 0;
    if (std::strncmp(line, key, length) == 0 &&
        std::sscanf(line + length, ": %lld", &kilobytes) == 1) {
      return kilobytes * 1024;
    }
  }
  return 0;
}

}  // namespace

std::int64_t resident_bytes() { return status_bytes("VmRSS"); }
std::int64_t peak_resident_bytes() { return status_bytes("VmHWM"); }

}  // namespace millrace::train
