// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/watchdog.hpp"

namespace millrace::cli {

/// How a launcher ended.
struct LauncherEnd {
  int code = 0;              ///< its exit code, or kSignalled + the signal that ended it
  bool killed = false;       ///< a signal ended the launcher itself
  bool interrupted = false;  ///< by SIGINT while it ran
  bool asked = false;        ///< to stop, by a signal or by `ends`
  bool overdue = false;      ///< it was ended, as it had not started the ranks in time
  bool stopped = false;      ///< it was ended, as a signal had stopped it for too long
  bool ranks_printed = false;
  bool ranks_began = true;     ///< false: neither they nor the launcher have said so
  bool ranks_trained = false;  ///< made an update of a run that is supervised
  int ended_rank = -1;         ///< that a signal ended, as the launcher says
  /// Those that said where they stand when they gave up, with the rank that each awaits; -1: none.
  std::map<int, int> stuck_ranks;
  /// If it was overdue: the command lines by which it was still starting daemons on other hosts.
  std::vector<std::string> agents;
};

inline constexpr int kLauncherFailed = 1;  ///< no rank ends with this code
inline constexpr int kSignalled = 128;

/// What a supervisor does while a launcher runs.
struct Supervision {
  /// Whether the ranks are to end; called about a hundred times a second until it returns true.
  std::function<bool()> ends;
  std::function<void()> gave_up;  ///< called when the first rank gives up; throws nothing
  std::chrono::milliseconds grace = training::Watchdog::grace(false);  ///< of the ranks' watchdogs
  /// The time that a launcher then has to end before it is killed.
  std::chrono::milliseconds to_end{1000};
  /// The time for which a launcher may be stopped by a signal; 0: no limit.
  std::chrono::seconds to_continue{};
};

/// Runs a launcher in its own process group and waits for it. Signals that ask this process to stop
/// reach the ranks as SIGUSR1, which asks them to save first; so does a signal that arrived earlier
/// (`received` returns it, or 0), and Supervision::ends. A second SIGINT or SIGTERM ends the ranks
/// at once, and kills a launcher that does not follow. So is one killed that goes on for long after
/// its ranks have ended, whose code then counts. Standard error is filtered by LauncherOutput.
/// Standard output is passed on, and dropped when it has no reader. A launcher that waits for a
/// lost machine would do so for ever: it is ended if the ranks have not begun within `to_begin`,
/// and is asked to stop only once they have, so that they can save; 0: no limit, and it is asked at
/// once. Errors: Io.
[[nodiscard]] LauncherEnd run_launcher(const std::vector<std::string>& command,
                                       const std::function<int()>& received,
                                       const Supervision& supervision = {},
                                       std::chrono::seconds to_begin = {});

/// The signal that asked to stop since the first run_launcher(), also when none runs; 0: none.
[[nodiscard]] int asked_to_stop();

}  // namespace millrace::cli
