// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::train {

/// Whether the process was started so that nobody means it when the terminal goes, as nohup does.
[[nodiscard]] bool hangups_are_ignored();

/// Turns requests to stop into a flag that the training looks at between two iterations. SIGTERM,
/// SIGUSR1 and SIGUSR2 (what schedulers send before they take the machine), SIGHUP (the terminal is
/// gone; not where nohup had it ignored) and SIGINT are caught while an object lives. A second
/// SIGINT, or a SIGTERM or SIGHUP some seconds after the first request, ends the process as if it
/// had not been caught. SIGPIPE
/// is ignored: a training goes on when nobody reads what it prints. Objects may be nested. When the
/// last one ends, requests count no more if there was one: the process is about to end as it was
/// asked to, and whoever repeats it must not kill it on its way.
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
