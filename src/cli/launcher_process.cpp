// SPDX-License-Identifier: Apache-2.0
#include "cli/launcher_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <thread>

#include "cli/launcher_output.hpp"
#include "cli/pipe.hpp"
#include "core/error.hpp"
#include "train/signals.hpp"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// Signal handlers can access only static objects.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
volatile std::sig_atomic_t g_launcher = 0;
volatile std::sig_atomic_t g_interrupted = 0;
volatile std::sig_atomic_t g_asked = 0;
volatile std::sig_atomic_t g_asked_at = 0;
volatile std::sig_atomic_t g_urgent = 0;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

/// Launchers kill their ranks soon after SIGTERM or SIGINT, but forward SIGUSR1, which asks the
/// ranks to save and stop.
extern "C" void millrace_forward_signal(int signal) {
  if (g_launcher > 0 && training::is_urgent(signal, g_asked, g_asked_at)) {
    g_urgent = 1;
    kill(g_launcher, signal == SIGINT ? SIGINT : SIGTERM);
    return;
  }
  if (signal == SIGINT) g_interrupted = 1;
  if (g_asked == 0) g_asked_at = training::milliseconds_now();
  g_asked = signal;
  if (g_launcher > 0) kill(g_launcher, SIGUSR1);
}

void forward_signals() {
  struct sigaction action = {};
  action.sa_handler = millrace_forward_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : kForwarded)
    if (signal != SIGHUP || !training::hangups_are_ignored()) sigaction(signal, &action, nullptr);
}

/// The pipes that a launcher writes to. It must not write to this program's standard streams
/// directly, because it ends its ranks when its output has no reader.
struct Ends {
  int output;
  int messages;
};

[[noreturn]] void become(const std::vector<std::string>& command, const Ends& ends) {
  dup2(ends.output, STDOUT_FILENO);
  dup2(ends.messages, STDERR_FILENO);
  for (const int signal : kForwarded)
    if (signal != SIGHUP || !training::hangups_are_ignored()) std::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // killing this program also ends its ranks
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  _exit(127);
}

/// Starts the command. Signals are blocked until the handler knows the process to forward them to.
pid_t start(const std::vector<std::string>& command, const Ends& ends) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t child = fork();
  if (child == 0) become(command, ends);
  g_launcher = child;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (child < 0)
    fail(ErrorKind::Io, "cannot start {}: {}", command.front(),
         std::generic_category().message(errno));
  return child;
}

/// A pipe whose read end does not block.
Pipe unblocked_pipe() {
  Pipe pipe = make_pipe();
  fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

/// The status line of the ranks on this terminal.
class StatusLine {
 public:
  void clear() {
    if (!shown_.empty()) std::fputs("\r\033[K", stderr);
    shown_.clear();
  }
  void show(const std::string& text) {
    if (text == shown_) return;
    std::fputs(("\r" + text + "\033[K").c_str(), stderr);
    shown_ = text;
  }

 private:
  std::string shown_;
};

void put(const std::string& text, StatusLine& status) {
  if (!text.empty()) status.clear();
  std::fwrite(text.data(), 1, text.size(), stderr);
}

/// Shows pending output; waits for it for at most `wait`.
void show(const io::UniqueFd& from, LauncherOutput& output, StatusLine& status,
          std::chrono::milliseconds wait) {
  pollfd ready{.fd = from.get(), .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, static_cast<int>(wait.count())) <= 0) return;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t n = read(from.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) std::this_thread::sleep_for(wait);  // the ranks have closed it
    if (n <= 0) return;
    put(output.take({buffer.data(), static_cast<std::size_t>(n)}), status);
    status.show(output.status());
  }
}

/// Passes on the output of the ranks as long as it has a reader. Returns whether there was any.
bool pass_on(const io::UniqueFd& from, StatusLine& status) {
  std::array<char, 65536> buffer{};
  bool some = false;
  for (;;) {
    const ssize_t n = read(from.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return some;
    some = true;
    status.clear();
    for (ssize_t done = 0; done < n;) {
      const ssize_t m =
          write(STDOUT_FILENO, buffer.data() + done, static_cast<std::size_t>(n - done));
      if (m < 0 && errno != EINTR) break;  // no reader
      if (m > 0) done += m;
    }
  }
}

using Clock = std::chrono::steady_clock;

/// Asks a launcher repeatedly to forward the signal, because one that is still starting ranks
/// cannot. Ranks that print something are ready to receive it. Where it is known that none has
/// begun, or just now, nothing is asked: that would end them.
class Reminder {
 public:
  void remind(pid_t child, bool too_early, bool ranks_print, bool asked) {
    constexpr std::chrono::milliseconds kAgain{500};
    constexpr int kMostToListeners = 6;
    if (too_early) told_ = Clock::now();
    if (ranks_print) left_ = std::min(left_, kMostToListeners);
    if (!asked || left_ == 0 || Clock::now() - told_ < kAgain) return;
    told_ = Clock::now();
    --left_;
    kill(child, SIGUSR1);
  }

 private:
  int left_ = 240;  // two minutes
  Clock::time_point told_ = Clock::now();
};

/// A process that another one has started, with its command line.
struct Child {
  pid_t process = 0;
  std::string command;
};

std::vector<Child> children_of(pid_t parent) {
  std::vector<Child> children;
  std::error_code error;
  const fs::path tasks = fs::path("/proc") / std::to_string(parent) / "task";
  for (fs::directory_iterator task(tasks, error), end; !error && task != end;
       task.increment(error)) {
    std::ifstream numbers(task->path() / "children");
    for (pid_t process = 0; numbers >> process;) {
      std::ifstream words("/proc/" + std::to_string(process) + "/cmdline");
      std::string command(std::istreambuf_iterator<char>(words), {});
      std::ranges::replace(command, '\0', ' ');
      children.push_back({process, std::move(command)});
    }
  }
  return children;
}

/// Ends a launcher that cannot reach its other machines some time after the ranks gave up, or
/// before it has started them, or when it does not do its part.
class Deadline {
 public:
  Deadline(std::chrono::seconds to_begin, const Supervision& supervision)
      : to_begin_(to_begin),
        to_end_(supervision.grace + supervision.to_end),
        to_continue_(supervision.to_continue) {}

  void check(pid_t child, const LauncherOutput& output, bool is_stopped) {
    constexpr std::chrono::seconds kUrgent{3};
    constexpr std::chrono::seconds kToClose{20};
    constexpr Clock::duration kTick = std::chrono::milliseconds{500};
    const Clock::time_point now = Clock::now();
    stopped_ += std::min(now - last_, kTick);  // this program may have been stopped, too
    if (!is_stopped) stopped_ = {};
    if (g_urgent == 0) urgent_ = now;
    if (output.stuck_ranks().empty()) gave_up_ = now;
    if (!output.ranks_code()) ended_ = now;
    last_ = now;
    overdue_ = to_begin_.count() > 0 && !output.ranks_began() && now - started_ > to_begin_;
    was_stopped_ = to_continue_.count() > 0 && stopped_ > to_continue_;
    was_open_ = now - ended_ > kToClose;
    if (overdue_) end_agents(child);
    if (overdue_ || was_stopped_ || was_open_ || now - gave_up_ > to_end_ ||
        now - urgent_ > kUrgent)
      kill(-child, SIGKILL);
  }
  [[nodiscard]] bool overdue() const { return overdue_; }
  [[nodiscard]] bool was_stopped() const { return was_stopped_; }
  [[nodiscard]] bool was_open() const { return was_open_; }
  [[nodiscard]] const std::vector<std::string>& agents() const { return agents_; }

 private:
  /// The launcher's death does not end them.
  void end_agents(pid_t launcher) {
    for (Child& child : children_of(launcher)) {
      kill(-child.process, SIGKILL);
      kill(child.process, SIGKILL);
      agents_.push_back(std::move(child.command));
    }
  }

  std::chrono::seconds to_begin_;
  std::chrono::milliseconds to_end_;
  std::chrono::seconds to_continue_;
  bool overdue_ = false;
  bool was_stopped_ = false;
  bool was_open_ = false;
  std::vector<std::string> agents_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point last_ = started_;
  Clock::duration stopped_{};
  Clock::time_point gave_up_ = started_;  ///< or when they had not yet
  Clock::time_point ended_ = started_;    ///< likewise: the ranks
  Clock::time_point urgent_ = started_;   ///< likewise: asked for a second time
};

/// Whether ranks of ours end with this code, having said why.
bool was_explained(int code) {
  return (code > kLauncherFailed && code < kSignalled) || code == exit_code(ErrorKind::Interrupted);
}

/// Waits for the launcher, shows its output and returns how it ended.
LauncherEnd wait_for(pid_t child, const io::UniqueFd& printed, const io::UniqueFd& messages,
                     const Supervision& supervision, std::chrono::seconds to_begin) {
  constexpr std::chrono::milliseconds kPause{10};
  int status = 0;
  LauncherOutput output(supervision.grace);
  LauncherEnd end;
  Reminder reminder;
  Deadline deadline(to_begin, supervision);
  StatusLine status_line;
  bool gave_up = false;
  bool is_stopped = false;
  for (;;) {
    pid_t ended = waitpid(child, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (ended < 0 && errno != EINTR)
      fail(ErrorKind::Io, "cannot wait for the ranks: {}", std::generic_category().message(errno));
    if (ended == child && !WIFEXITED(status) && !WIFSIGNALED(status)) {
      is_stopped = WIFSTOPPED(status);
      ended = 0;
    }
    end.ranks_printed = pass_on(printed, status_line) || end.ranks_printed;
    show(messages, output, status_line, ended == child ? std::chrono::milliseconds{0} : kPause);
    if (ended == child) break;
    put(output.late(), status_line);
    if (!gave_up && !output.stuck_ranks().empty()) {
      gave_up = true;
      if (supervision.gave_up) supervision.gave_up();
    }
    end.asked = end.asked || g_asked != 0 || (supervision.ends && supervision.ends());
    reminder.remind(child, to_begin.count() > 0 && !output.ranks_began(), end.ranks_printed,
                    end.asked);
    deadline.check(child, output, is_stopped);
  }
  status_line.clear();
  end.stuck_ranks = output.stuck_ranks();
  end.ended_rank = output.ended_rank();
  end.ranks_began = output.ranks_began();
  end.ranks_trained = output.ranks_trained();
  end.overdue = deadline.overdue();
  end.agents = deadline.agents();
  end.stopped = deadline.was_stopped();
  const bool closed = output.ranks_code() && deadline.was_open();
  end.killed = WIFSIGNALED(status) && !closed;
  end.code = closed       ? *output.ranks_code()
             : end.killed ? kSignalled + WTERMSIG(status)
                          : WEXITSTATUS(status);
  put(output.finish(end.stuck_ranks.empty() && !was_explained(end.code)), status_line);
  return end;
}

}  // namespace

LauncherEnd run_launcher(const std::vector<std::string>& command,
                         const std::function<int()>& received, const Supervision& supervision,
                         std::chrono::seconds to_begin) {
  forward_signals();
  (void)std::fflush(stdout);  // before the output of the ranks
  // Asked only now, so that no signal is lost between the two handlers.
  if (const int before = received(); before != 0) millrace_forward_signal(before);
  Pipe printed = unblocked_pipe();
  Pipe messages = unblocked_pipe();
  const pid_t child =
      start(command, {.output = printed.write.get(), .messages = messages.write.get()});
  printed.write = io::UniqueFd();
  messages.write = io::UniqueFd();
  if (g_asked != 0 && to_begin.count() == 0) kill(child, SIGUSR1);
  LauncherEnd end = wait_for(child, printed.read, messages.read, supervision, to_begin);
  g_launcher = 0;
  end.interrupted = g_interrupted != 0;
  end.asked = end.asked || g_asked != 0;
  return end;
}

int asked_to_stop() { return g_asked; }

}  // namespace millrace::cli
