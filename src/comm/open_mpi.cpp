// SPDX-License-Identifier: Apache-2.0
#include "comm/open_mpi.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "comm/world.hpp"
#include "core/error.hpp"

namespace millrace::comm {
namespace {

// Below, only what may be called in a child of a process with threads.

/// `name_file` is /proc/<process>/comm. The daemon is called orted, since Open MPI 5 prted.
bool is_daemon(const char* name_file) {
  const int file = ::open(name_file, O_RDONLY | O_CLOEXEC);
  std::array<char, 16> name{};
  const ssize_t bytes = file < 0 ? 0 : ::read(file, name.data(), name.size());
  if (file >= 0) ::close(file);
  const std::string_view text(name.data(), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  return text == "orted\n" || text == "prted\n";
}

void pause_for(std::chrono::seconds time) {
  timespec left{.tv_sec = time.count(), .tv_nsec = 0};
  while (::nanosleep(&left, &left) != 0) continue;
}

[[noreturn]] void end_later(pid_t daemon, const char* name_file, std::chrono::seconds grace) {
  constexpr std::chrono::seconds kToRemoveItsFiles{2};
  ::setsid();
  // The daemon waits for the end of our output, and a restart for our lock.
  constexpr int kFiles = 65'536;
  for (int file = 0; file < kFiles; ++file) ::close(file);
  pause_for(grace);
  if (is_daemon(name_file)) ::kill(daemon, SIGTERM);
  pause_for(kToRemoveItsFiles);
  if (is_daemon(name_file)) ::kill(daemon, SIGKILL);
  // What is left of this job; another one may have a folder beside it.
  ::execl("/bin/sh", "sh", "-c",
          "rm -rf \"$OMPI_MCA_orte_jobfam_session_dir\"; rmdir \"$OMPI_MCA_orte_top_session_dir\"",
          nullptr);
  ::_exit(0);
}

}  // namespace

void end_daemon_after(std::chrono::seconds grace) {
  const pid_t daemon = ::getppid();
  std::array<char, 32> name_file{};
  fmt::format_to_n(name_file.data(), name_file.size() - 1, "/proc/{}/comm", daemon);
  if (!is_daemon(name_file.data())) return;
  // Unlike fork(), this waits for no lock that another thread holds.
  if (::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) end_later(daemon, name_file.data(), grace);
}

void watch_daemon() noexcept try {
  const pid_t daemon = ::getppid();
  if (!is_daemon(fmt::format("/proc/{}/comm", daemon).c_str())) return;
  std::thread([daemon] {
    constexpr std::chrono::seconds kPause{1};
    constexpr int kMost = 30;
    for (int stopped = 0; stopped < kMost; std::this_thread::sleep_for(kPause)) {
      std::ifstream state(fmt::format("/proc/{}/stat", daemon));
      std::string number;
      std::string name;
      char letter = 0;
      state >> number >> name >> letter;
      stopped = letter == 'T' ? stopped + 1 : 0;
    }
    remove_shared_memory();
    end_daemon_after(std::chrono::seconds{0});
    std::_Exit(exit_code(ErrorKind::Watchdog));
  }).detach();
} catch (const std::exception&) {  // without a thread, it waits
}

// A message that is not announced is received into memory of max_send_size bytes, one for each
// peer. Open MPI 4 does not check that it fits, so nobody sets one of the two alone.
void prefer_eager_messages() {
  constexpr std::array kNames = {"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_max_send_size"};
  constexpr std::int64_t kHeader = 1024;  // MPI's own, at most
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  if (std::any_of(kNames.begin(), kNames.end(), is_set)) return;
  for (const char* const name : kNames)
    ::setenv(name, std::to_string(kEagerBytes + kHeader).c_str(), 0);
}

}  // namespace millrace::comm
