// SPDX-License-Identifier: Apache-2.0
//
// Runs millrace in the background, so that a test can act on its processes.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <thread>

#include "millrace.hpp"
#include "tests/support/variable.hpp"

namespace millrace::test {

/// A process of a run: a rank, or one of those that start ranks.
struct Member {
  pid_t process = -1;
  int rank = -1;  ///< -1: none
  std::string program;
};

/// A file of /proc, or what could be read before its process ended.
inline std::string read_of_process(const std::filesystem::path& file) {
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text;
  std::array<char, 4096> piece{};
  while (descriptor >= 0) {
    const ssize_t n = read(descriptor, piece.data(), piece.size());
    if (n <= 0) break;
    text.append(piece.data(), static_cast<std::size_t>(n));
  }
  if (descriptor >= 0) close(descriptor);
  return text;
}

/// Processes with the run directory on their command line. Ended processes have no command line.
inline std::vector<Member> members_of(const std::filesystem::path& run) {
  const std::string variable = "OMPI_COMM_WORLD_RANK=";
  std::vector<Member> members;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string number = entry.path().filename().string();
    if (number.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string line = read_of_process(entry.path() / "cmdline");
    if (line.find(run.string()) == std::string::npos) continue;
    const std::string environment = read_of_process(entry.path() / "environ");
    const std::size_t at = environment.find(variable);
    const int rank =
        at == std::string::npos ? -1 : std::atoi(environment.c_str() + at + variable.size());
    const std::filesystem::path program(line.substr(0, line.find('\0')));
    members.push_back({std::stoi(number), rank, program.filename().string()});
  }
  return members;
}

/// Process of a rank in any state; -1 if there is none.
inline pid_t process_of_rank(const std::filesystem::path& run, int rank) {
  for (const Member& member : members_of(run))
    if (member.rank == rank) return member.process;
  return -1;
}

/// Polls `condition` for at most a minute; returns whether it became true.
template <class Condition>
bool wait_until(Condition condition, int pause_ms = 5) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  return true;
}

/// A millrace command in its own process group, which is killed with the test.
class Job {
 public:
  explicit Job(const Words& words, const Environment& environment = {}) {
    const Words all =
        Words{"/usr/bin/env"} + environment + Words{std::string(MILLRACE_BINARY)} + words;
    std::vector<char*> argv;
    for (const std::string& word : all) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const std::string output = output_path().string();
    process_ = fork();
    if (process_ != 0) return;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    unsetenv("DATA_DIR");
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Job() {
    if (!ended_) kill(process_, SIGKILL);
    if (!ended_) (void)wait();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] pid_t process() const { return process_; }
  void send(int signal) const {
    if (!ended_) kill(process_, signal);
  }
  [[nodiscard]] bool ended() {
    int status = 0;
    if (!ended_ && waitpid(process_, &status, WNOHANG) == process_) note(status);
    return ended_;
  }
  [[nodiscard]] std::string output() const { return read_text(output_path()); }
  /// Waits until the output contains `text`; returns false if that never happens.
  bool wait_for(const std::string& text) {
    return wait_until([&] { return output().find(text) != std::string::npos || ended(); }, 20) &&
           output().find(text) != std::string::npos;
  }
  /// Waits for the end; kills the command if it takes too long.
  ProcessResult wait() {
    if (!wait_until([this] { return ended(); })) {
      kill(process_, SIGKILL);
      int status = 0;
      waitpid(process_, &status, 0);
      note(status);
    }
    result_.output = output();
    return result_;
  }

 private:
  [[nodiscard]] std::filesystem::path output_path() const { return directory_ / "output"; }
  void note(int status) {
    ended_ = true;
    result_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  TemporaryDirectory directory_;
  pid_t process_ = -1;
  bool ended_ = false;
  ProcessResult result_;
};

}  // namespace millrace::test
