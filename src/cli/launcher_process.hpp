// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/launcher_output.hpp"

namespace millrace::cli {

/// How a launcher ended.
struct LauncherEnd {
  int code = 0;               ///< its exit code, or kSignalled and the signal that ended it
  bool killed = false;        ///< it was itself ended by a signal
  bool interrupted = false;   ///< by SIGINT on its way
  bool asked = false;         ///< to stop, by a signal
  bool complained = false;    ///< about something else than the end of a rank
  bool lost_machine = false;  ///< another one is out of reach
  std::optional<EndedRank> ended_rank;
  std::set<int> stuck_ranks;  ///< those that said so
};

inline constexpr int kSignalled = 128;

/// Runs a launcher in a process group of its own and waits for it. Signals that ask this process to
/// stop reach the ranks as SIGUSR1, which asks them to save first; so does one that came before
/// (`received` gives it, or 0). A second SIGINT or SIGTERM ends the ranks at once. What comes on
/// standard error is shown as LauncherOutput says; what comes on standard output is passed on, and
/// dropped when nobody reads it any more. Errors: Io.
[[nodiscard]] LauncherEnd run_launcher(const std::vector<std::string>& command,
                                       const std::function<int()>& received);

}  // namespace millrace::cli
