// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::train {

/// Turns requests to stop into a flag that the training looks at between two iterations. SIGTERM,
/// SIGUSR1 and SIGUSR2 (what schedulers send before they take the machine) and SIGINT are caught
/// while the object lives; a second SIGINT ends the process as if it had not been caught. SIGPIPE
/// is ignored: a training goes on when nobody reads what it prints.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that arrived first, or 0.
  [[nodiscard]] int received() const;
};

}  // namespace millrace::train
