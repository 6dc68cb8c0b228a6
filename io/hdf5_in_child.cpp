// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <new>
#include <span>
#include <string_view>
#include <system_error>

#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/hdf5_handles.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

/// What a child leaves in memory that it shares with its parent begins with one of these, or with
/// kError + the kind of an error. It is written last, so a child that crashed has left kNothing.
constexpr std::uint8_t kNothing = 0;
constexpr std::uint8_t kResult = 1;
constexpr std::uint8_t kError = 2;

ChildLimits limits_for(const fs::path& file) {
  constexpr std::uint64_t kBytesPerSecond = 4 << 20;
  std::error_code error;  // then reading will tell
  const std::uintmax_t size = fs::file_size(file, error);
  const std::uint64_t bytes = error ? 0 : size;
  return {.seconds = 5 + bytes / kBytesPerSecond, .bytes = (1 << 30) + 8 * bytes};
}

std::uint64_t mapped_bytes() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void limit(decltype(RLIMIT_CPU) resource, std::uint64_t most) {
  rlimit now{};
  ::getrlimit(resource, &now);
  now.rlim_cur = std::min<rlim_t>(most, now.rlim_max);
  ::setrlimit(resource, &now);
}

/// What this process has set up for itself must not happen in the child, too. `memory` stays open.
void confine(const ChildLimits& limits, int memory) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  // Who asks to stop asks the parent as well, which may want to finish first.
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, limits.seconds);
  ::alarm(static_cast<unsigned>(10 * limits.seconds));
  if (const std::uint64_t mapped = mapped_bytes(); mapped > 0)
    limit(RLIMIT_AS, mapped + limits.bytes);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    if (stream != memory) ::dup2(nowhere, stream);
}

/// Writes what a child leaves to the memory that it shares.
void leave(int memory, std::uint8_t what, std::string_view text) {
  if (write_at(memory, std::as_bytes(std::span(text)), 1) == 0)
    (void)write_at(memory, std::as_bytes(std::span(&what, 1)), 0);
}

/// How a child ended that left nothing.
std::string end_of(int status, const ChildLimits& limits) {
  if (!WIFSIGNALED(status)) return "gave up";
  const int signal = WTERMSIG(status);
  if (signal == SIGXCPU || signal == SIGALRM)
    return fmt::format("was still busy after {} s", (signal == SIGALRM ? 10 : 1) * limits.seconds);
  return fmt::format("crashed ({})", ::strsignal(signal));
}

class Child {
 public:
  Child(const fs::path& file, ErrorKind kind, const ChildLimits& limits)
      : file_(file), kind_(kind), limits_(limits) {
    if (!memory_.valid()) fail_io("take memory to read", file_, errno);
  }

  /// What a child leaves that runs `read`.
  std::string run(const std::function<std::string()>& read) {
    const pid_t child = [] {
      const Hdf5Session session;  // no other thread is inside the library, so a child may enter it
      return ::fork();
    }();
    if (child == 0) be_child(read);
    if (child < 0) fail_io("start a process to read", file_, errno);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return take(status);
  }

 private:
  [[nodiscard]] Error failed(std::string_view how) const {
    return {kind_, fmt::format("{}: cannot be read: the HDF5 library {}: fetch or save it again",
                               file_.string(), how)};
  }

  [[noreturn]] void be_child(const std::function<std::string()>& read) const {
    confine(limits_, memory_.get());
    const auto leave_error = [&](const Error& error) {
      leave(memory_.get(), static_cast<std::uint8_t>(kError + static_cast<int>(error.kind())),
            error.what());
    };
    try {
      leave(memory_.get(), kResult, read());
    } catch (const std::bad_alloc&) {
      leave_error(failed(fmt::format("needs more than {} of memory",
                                     human_bytes(static_cast<std::int64_t>(limits_.bytes)))));
    } catch (...) {
      leave_error(current_error());
    }
    ::_exit(0);  // neither buffers nor handlers are the child's
  }

  [[nodiscard]] std::string take(int status) const {
    const std::uint64_t size = regular_size(memory_.get(), file_);
    std::uint8_t what = kNothing;
    if (size > 0)
      read_exactly(memory_.get(), 0, std::as_writable_bytes(std::span(&what, 1)), file_);
    if (what == kNothing) throw failed(end_of(status, limits_));
    std::string text(size - 1, '\0');
    read_exactly(memory_.get(), 1, std::as_writable_bytes(std::span(text)), file_);
    if (what == kResult) return text;
    throw Error(static_cast<ErrorKind>(what - kError), text);
  }

  const fs::path& file_;
  ErrorKind kind_;
  ChildLimits limits_;
  UniqueFd memory_{::memfd_create("millrace", MFD_CLOEXEC)};  ///< shared with the child
};

}  // namespace

std::string hdf5_in_child(const fs::path& file, ErrorKind kind,
                          const std::function<std::string()>& read,
                          std::optional<ChildLimits> limits) {
  return Child(file, kind, limits ? *limits : limits_for(file)).run(read);
}

}  // namespace millrace::io
