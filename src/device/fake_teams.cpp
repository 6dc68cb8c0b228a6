// SPDX-License-Identifier: Apache-2.0
#include "device/fake_teams.hpp"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "device/compat.hpp"
#include "device/fake_device.hpp"
#include "device/vendor_scope.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define MILLRACE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MILLRACE_ASAN 1
#endif
#endif
#if defined(MILLRACE_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

/// _longjmp() without the check of _FORTIFY_SOURCE, which takes a change of stacks for a mistake.
extern "C" [[noreturn]] void millrace_jump(jmp_buf to, int value) __asm__("_longjmp");

namespace millrace::device {
namespace fake {
namespace {

/// A stack whose overflow ends the process.
class Stack {
 public:
  static constexpr std::size_t kBytes = 128 * 1024;  // untouched pages take no memory

  Stack() : base_(mmap(nullptr, guard() + kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    MILLRACE_ASSERT(base_ != MAP_FAILED);
    MILLRACE_ASSERT(mprotect(begin(), kBytes, PROT_READ | PROT_WRITE) == 0);
  }
  ~Stack() { munmap(base_, guard() + kBytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  [[nodiscard]] std::byte* begin() const { return static_cast<std::byte*>(base_) + guard(); }

 private:
  static std::size_t guard() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
  void* base_;
};

/// A stack and where it goes on. The address sanitizer is told of every change of stacks.
struct Place {
  jmp_buf at;
  const void* bottom = nullptr;  ///< of the stack; null: not known yet
  std::size_t bytes = 0;
};

void leaves_for([[maybe_unused]] const Place& to, [[maybe_unused]] void** own) {
#if defined(MILLRACE_ASAN)
  __sanitizer_start_switch_fiber(own, to.bottom, to.bytes);
#endif
}
void arrives([[maybe_unused]] void* own, [[maybe_unused]] Place* from) {
#if defined(MILLRACE_ASAN)
  __sanitizer_finish_switch_fiber(own, from != nullptr ? &from->bottom : nullptr,
                                  from != nullptr ? &from->bytes : nullptr);
#endif
}

/// Goes on at `to`, until somebody goes on at `from`. Jumps, because swapcontext() calls the system
/// each time.
[[gnu::noinline]] void change(Place& from, Place& to) {
  void* own = nullptr;
  leaves_for(to, &own);
  if (_setjmp(from.at) == 0) millrace_jump(to.at, 1);
  arrives(own, nullptr);
}

}  // namespace

/// A fibre. It lives as long as its host thread and runs one thread of a team after another.
class TeamThread {
 public:
  /// `number` spreads the stacks over the sets of the cache.
  explicit TeamThread(std::size_t number) {
    constexpr std::size_t kColors = 16;
    constexpr std::size_t kColorBytes = 256;
    own_.bottom = stack_.begin();
    own_.bytes = Stack::kBytes - number % kColors * kColorBytes;
    starting() = this;
    ucontext_t context;
    MILLRACE_ASSERT(getcontext(&context) == 0);
    context.uc_stack.ss_sp = stack_.begin();
    context.uc_stack.ss_size = own_.bytes;
    context.uc_link = nullptr;
    makecontext(&context, &TeamThread::begin, 0);
    void* own = nullptr;
    leaves_for(own_, &own);
    if (_setjmp(host_.at) == 0) setcontext(&context);
    arrives(own, nullptr);
  }

  void prepare(const TeamKernel& kernel, int rank, std::byte* shared, std::int64_t i) {
    kernel_ = &kernel;
    rank_ = rank;
    shared_ = shared;
    team_ = i;
  }
  /// Runs until the thread waits or ends; whether it waits.
  bool go_on() {
    change(host_, own_);
    return waits_;
  }
  /// Called by the thread itself.
  void wait() {
    waits_ = true;
    change(own_, host_);
  }

 private:
  /// makecontext() hands over no pointer.
  static TeamThread*& starting() {
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
    static thread_local TeamThread* value = nullptr;
    return value;
  }
  static void begin() { starting()->live(); }
  [[noreturn]] void live() {
    arrives(nullptr, &host_);
    for (;;) {
      waits_ = false;
      change(own_, host_);
      kernel_->run(kernel_->functor, Team(*this, rank_, kernel_->threads, shared_), team_);
    }
  }

  Stack stack_;
  Place own_;
  Place host_;
  const TeamKernel* kernel_ = nullptr;
  int rank_ = 0;
  std::byte* shared_ = nullptr;
  std::int64_t team_ = 0;
  bool waits_ = false;
};

namespace {

/// Fibres of a host thread and the shared memory of the team that it runs.
class TeamThreads {
 public:
  static TeamThreads& of_host_thread() {
    static thread_local TeamThreads threads;
    return threads;
  }

  void run(const TeamKernel& kernel, std::int64_t i) {
    std::byte* const shared = begin(kernel);
    for (int rank = 0; rank < kernel.threads; ++rank) of(rank).prepare(kernel, rank, shared, i);
    for (std::int64_t turn = 0; take_turns(kernel.threads, i, turn); ++turn)
      ;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  TeamThread& of(int rank) { return *threads_[static_cast<std::size_t>(rank)]; }

  std::byte* begin(const TeamKernel& kernel) {
    const auto threads = static_cast<std::size_t>(kernel.threads);
    const std::size_t lines = (kernel.shared_bytes + sizeof(Line) - 1) / sizeof(Line);
    const VendorScope accelerators_allocate_themselves;
    while (threads_.size() < threads)
      threads_.push_back(std::make_unique<TeamThread>(threads_.size()));
    if (shared_.size() < lines) shared_.resize(lines);
    std::memset(static_cast<void*>(shared_.data()), 0xff, lines * sizeof(Line));
    return shared_.front().bytes;
  }

  /// Each thread until its next wait or its end; whether they wait.
  bool take_turns(int threads, std::int64_t team, std::int64_t turn) {
    const bool descends = (team + turn) % 2 != 0;
    const auto first = static_cast<int>((team * 11 + turn * 5) % threads);
    int waiting = 0;
    for (int k = 0; k < threads; ++k) {
      const int place = first + k < threads ? first + k : first + k - threads;
      waiting += of(descends ? threads - 1 - place : place).go_on() ? 1 : 0;
    }
    MILLRACE_ASSERT(waiting == 0 || waiting == threads);  // all threads of a team wait
    return waiting > 0;
  }

  std::vector<std::unique_ptr<TeamThread>> threads_;
  std::vector<Line> shared_;
};

}  // namespace

void run_team(const TeamKernel& kernel, std::int64_t i) {
  TeamThreads::of_host_thread().run(kernel, i);
}

}  // namespace fake

void Team::wait() const { thread_.wait(); }

}  // namespace millrace::device
