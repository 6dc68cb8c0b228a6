// SPDX-License-Identifier: Apache-2.0
#include "tests/io/fault_injection.hpp"

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#if defined(__linux__) && defined(__x86_64__)
#include <sys/user.h>

namespace millrace::io {
namespace {

bool changes_files(const user_regs_struct& registers) {
  switch (registers.orig_rax) {
    case SYS_write:
    case SYS_pwrite64:
    case SYS_fsync:
    case SYS_ftruncate:
    case SYS_rename:
    case SYS_renameat:
    case SYS_renameat2:
    case SYS_mkdir:
    case SYS_mkdirat:
    case SYS_unlink:
    case SYS_unlinkat:
    case SYS_rmdir:
      return true;
    case SYS_openat:
      return (registers.rdx & O_CREAT) != 0;
    default:
      return false;
  }
}

bool is_transfer(const user_regs_struct& registers) {
  return registers.orig_rax == SYS_write || registers.orig_rax == SYS_pwrite64 ||
         registers.orig_rax == SYS_fsync;
}

class Tracer {
 public:
  Tracer(pid_t child, FaultPlan plan) : child_(child), plan_(plan) {}

  FaultOutcome run() {
    ::ptrace(PTRACE_SETOPTIONS, child_, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    int status = 0;
    long signal = 0;
    for (;;) {
      ::ptrace(PTRACE_SYSCALL, child_, nullptr, signal);
      if (::waitpid(child_, &status, 0) != child_) return outcome_;
      if (!WIFSTOPPED(status)) break;
      const bool at_call = WSTOPSIG(status) == (SIGTRAP | 0x80);
      signal = at_call ? 0 : WSTOPSIG(status);
      if (!at_call) continue;
      inside_ = !inside_;
      if (inside_) {
        begin_call();
      } else {
        end_call();
      }
    }
    outcome_.supported = true;
    outcome_.killed = WIFSIGNALED(status);
    outcome_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return outcome_;
  }

 private:
  // Kills the process, or changes the system call.
  void begin_call() {
    user_regs_struct registers{};
    ::ptrace(PTRACE_GETREGS, child_, nullptr, &registers);
    if (!changes_files(registers)) return;
    ++outcome_.calls;
    if (is_transfer(registers)) outcome_.transfers.push_back(outcome_.calls);
    if (outcome_.calls != plan_.at) return;
    switch (plan_.fault) {
      case Fault::None:
        return;
      case Fault::Kill:
        ::kill(child_, SIGKILL);
        return;
      case Fault::TornKill:
        registers.rdx /= 2;  // the number of bytes; fsync has none
        break;
      case Fault::Fail:
        registers.orig_rax = ~0ull;
        break;  // no such call
    }
    ::ptrace(PTRACE_SETREGS, child_, nullptr, &registers);
    struck_ = true;
  }

  void end_call() {
    if (!struck_) return;
    struck_ = false;
    if (plan_.fault == Fault::TornKill) {
      ::kill(child_, SIGKILL);
      return;
    }
    user_regs_struct registers{};
    ::ptrace(PTRACE_GETREGS, child_, nullptr, &registers);
    registers.rax = static_cast<unsigned long long>(-static_cast<long long>(plan_.error));
    ::ptrace(PTRACE_SETREGS, child_, nullptr, &registers);
  }

  pid_t child_;
  FaultPlan plan_;
  FaultOutcome outcome_;
  bool inside_ = false;
  bool struck_ = false;
};

}  // namespace

FaultOutcome run_with_fault(const std::function<int()>& child, FaultPlan plan) {
  const pid_t process = ::fork();
  if (process == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(0);
    ::raise(SIGSTOP);
    ::_exit(child());
  }
  int status = 0;
  if (process < 0 || ::waitpid(process, &status, 0) != process || !WIFSTOPPED(status)) return {};
  return Tracer(process, plan).run();
}

}  // namespace millrace::io

#else

namespace millrace::io {

FaultOutcome run_with_fault(const std::function<int()>&, FaultPlan) { return {}; }

}  // namespace millrace::io

#endif
