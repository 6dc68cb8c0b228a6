// SPDX-License-Identifier: Apache-2.0
#include "io/run_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <span>
#include <string>
#include <thread>

#include "core/error.hpp"

namespace millrace::io {
namespace {

// Process id in the lock file; empty until the owner has written it.
std::string holder_of(int fd) {
  std::array<char, 32> text{};
  const auto n = ::pread(fd, text.data(), text.size(), 0);
  const std::string_view line(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  return std::string(line.substr(0, line.find('\n')));
}

// Ranks live on for a moment when their launcher was killed, and a killed process releases its
// memory first and its file locks later: a restart must not fail because of them. A holder on
// another machine looks the same, because its process is unknown here.
bool is_ending(const std::string& holder) {
  std::ifstream command_line("/proc/" + holder + "/cmdline");
  return command_line.peek() == std::ifstream::traits_type::eof();
}

// Returns 0 or errno.
int lock(int fd) {
  constexpr std::chrono::milliseconds kPause{50};
  constexpr int kAttempts = 100;
  constexpr int kAttemptsWhileAlive = 80;
  for (int attempt = 1;; ++attempt) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
    const int error = errno;
    if (error != EWOULDBLOCK || attempt == kAttempts) return error;
    if (attempt > kAttemptsWhileAlive && !is_ending(holder_of(fd))) return error;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& run_directory, std::string_view what) {
  const std::filesystem::path path = run_directory / ".lock";
  file_ = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (const int error = lock(file_.get()); error != 0) {
    if (error != EWOULDBLOCK) fail_io("lock", path, error);
    const std::string holder = holder_of(file_.get());
    fail(ErrorKind::Usage, "{} {} is in use by process {}; wait for it or choose another", what,
         run_directory.string(), holder.empty() ? "(just starting)" : holder);
  }
  // The second line tells this directory from a copy of it.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string text = std::to_string(::getpid()) + "\n" + std::to_string(now) + "\n";
  if (::ftruncate(file_.get(), 0) != 0) fail_io("write", path, errno);
  const int error = write_at(file_.get(), std::as_bytes(std::span(text)), 0);
  if (error != 0) fail_io("write", path, error);
}

}  // namespace millrace::io
