// SPDX-License-Identifier: Apache-2.0
#include "train/memory.hpp"

#include <cstdio>
#include <cstring>
#include <memory>

namespace millrace::train {
namespace {

/// A line "<key>:  <n> kB" of a file in /proc.
std::int64_t bytes_in(const char* path, const char* key) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "r"), &std::fclose);
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

std::int64_t resident_bytes() { return bytes_in("/proc/self/status", "VmRSS"); }
std::int64_t peak_resident_bytes() { return bytes_in("/proc/self/status", "VmHWM"); }

std::int64_t available_bytes() { return bytes_in("/proc/meminfo", "MemAvailable"); }
std::int64_t machine_bytes() { return bytes_in("/proc/meminfo", "MemTotal"); }

}  // namespace millrace::train
