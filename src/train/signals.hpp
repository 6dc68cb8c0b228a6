// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace millrace::training {

/// Whether SIGHUP is ignored, as under nohup.
[[nodiscard]] bool hangups_are_ignored();

/// For is_urgent(): a monotonic clock that wraps around after 49 days.
[[nodiscard]] std::sig_atomic_t milliseconds_now();
/// Whether `signal` means "stop at once" after a first signal (0: there was none). A person who
/// asks again means that. Schedulers, however, send one request in several ways at nearly the same
/// time, and repeat SIGUSR1 and SIGUSR2. Safe to call in signal handlers.
[[nodiscard]] bool is_urgent(int signal, int first, std::sig_atomic_t first_at);

/// Turns requests to stop into a flag that the training checks between two iterations. While an
/// object lives, it catches SIGTERM, SIGUSR1 and SIGUSR2 (sent by schedulers before they take the
/// machine), SIGHUP (the terminal is gone; ignored under nohup) and SIGINT. A second signal that
/// is_urgent() ends the process as if it were not caught. SIGPIPE is ignored: a training continues
/// when nobody reads its output. If there was a request, later ones are ignored after the object
/// ends: the process is about to end, and a repeated request must not kill it on its way. For
/// programs, one at a time; the library asks TrainInputs::stop_asked.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that arrived first, or 0.
  [[nodiscard]] static int received();
};

}  // namespace millrace::training
