// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/child_process.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cli/launcher_process.hpp"
#include "cli/pipe.hpp"
#include "core/error.hpp"

namespace millrace::cli {
namespace {

/// Starts the program with its output in the pipes, of which only the read ends stay open here.
pid_t start(const std::string& program, const std::vector<std::string>& words, Pipe& output,
            Pipe& messages) {
  std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  (void)std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(output.write.get(), STDOUT_FILENO);
    dup2(messages.write.get(), STDERR_FILENO);
    execv(program.c_str(), arguments.data());
    _exit(127);
  }
  if (child < 0)
    fail(ErrorKind::Io, "cannot start {}: {}", program, std::generic_category().message(errno));
  output.write = io::UniqueFd();
  messages.write = io::UniqueFd();
  return child;
}

/// Appends what has arrived to `text`; returns whether more may come.
bool take(const pollfd& ready, std::string& text) {
  if (ready.revents == 0) return true;
  std::array<char, 65536> buffer{};
  const ssize_t n = read(ready.fd, buffer.data(), buffer.size());
  if (n < 0) return errno == EINTR;
  text.append(buffer.data(), static_cast<std::size_t>(n));
  return n > 0;
}

/// Hands over the whole lines in `text`, or at the end also the rest.
void hand_over(std::string& text, bool ended,
               const std::function<void(const std::string&)>& on_message) {
  for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
    on_message(text.substr(0, end));
  if (ended && !text.empty()) on_message(text);
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      fail(ErrorKind::Io, "cannot wait for a run: {}", std::generic_category().message(errno));
  return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled + WTERMSIG(status);
}

}  // namespace

ChildEnd run_this_program(const std::vector<std::string>& words,
                          const std::function<void(const std::string&)>& on_message) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  Pipe output = make_pipe();
  Pipe messages = make_pipe();
  const pid_t child = start(program, words, output, messages);
  ChildEnd end;
  std::string said;
  std::array<pollfd, 2> ends = {pollfd{.fd = output.read.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = messages.read.get(), .events = POLLIN, .revents = 0}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {  // poll passes over negative numbers
    if (poll(ends.data(), ends.size(), -1) < 0) continue;
    if (ends[0].fd >= 0 && !take(ends[0], end.output)) ends[0].fd = -1;
    if (ends[1].fd >= 0 && !take(ends[1], said)) ends[1].fd = -1;
    hand_over(said, ends[1].fd < 0, on_message);
    if (ends[1].fd < 0) said.clear();
  }
  end.code = wait_for(child);
  return end;
}

}  // namespace millrace::cli
