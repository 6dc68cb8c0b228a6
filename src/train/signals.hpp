// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace millrace::train {

/// Whether the process was started so that nobody means it when the terminal goes, as nohup does.
[[nodiscard]] bool hangups_are_ignored();

/// For is_urgent(), of a clock that nobody sets; goes round after 49 days.
[[nodiscard]] std::sig_atomic_t milliseconds_now();
/// Whether `signal` means "at once" behind a first one (0: none came). A person who asks again
/// does; but schedulers pass one request on by several ways within a moment, and repeat SIGUSR1 and
/// SIGUSR2. Handlers may call it.
[[nodiscard]] bool is_urgent(int signal, int first, std::sig_atomic_t first_at);

/// Turns requests to stop into a flag that the training looks at between two iterations. SIGTERM,
/// SIGUSR1 and SIGUSR2 (what schedulers send before they take the machine), SIGHUP (the terminal is
/// gone; not where nohup had it ignored) and SIGINT are caught while an object lives. A second one
/// that is_urgent() ends the process as if it had not been caught. SIGPIPE is ignored: a training
/// goes on when nobody reads what it prints. Objects may be nested. When the last one ends,
/// requests count no more if there was one: the process is about to end as it was asked to, and
/// whoever repeats it must not kill it on its way.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that arrived first, or 0.
  [[nodiscard]] int received() const;

 private:
  bool outermost_;
};

}  // namespace millrace::train
