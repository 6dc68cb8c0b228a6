// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace millrace::cli {

/// A rank that was ended by a signal.
struct EndedRank {
  int rank = 0;
  int signal = 0;
  friend bool operator==(const EndedRank&, const EndedRank&) = default;
};

/// What a launcher and its ranks have said so far.
struct LauncherReport {
  std::optional<EndedRank> ended_rank;
  std::optional<int> abort_code;  ///< the exit code with which a rank ended all others
  /// The ranks that reported where they stand after too long without progress. A report long after
  /// the first is ignored: that rank was stopped, and continued only to be ended.
  std::set<int> stuck_ranks;
  bool ending = false;      ///< a rank failed; the launcher then ends the others
  bool complained = false;  ///< of anything but the end of a rank
  std::string lost_host;    ///< the name of a host that the launcher lost contact with
};

/// Filters a launcher's standard error. Lines of the ranks pass. Boxes in which Open MPI reports
/// the end of a job are parsed and dropped, because this program reports it in one line; so is the
/// line that it forwards a signal, which this program sent. Other boxes pass. The status line of
/// rank 0, which is rewritten in place, is kept apart.
class LauncherOutput {
 public:
  using Clock = std::chrono::steady_clock;

  /// Adds `piece` and returns the lines to show.
  [[nodiscard]] std::string take(std::string_view piece, Clock::time_point now = Clock::now());
  /// The newest status line; "" if it was cleared.
  [[nodiscard]] const std::string& status() const { return status_; }
  /// Returns the rest to show at the end of the output.
  [[nodiscard]] std::string finish();
  [[nodiscard]] const LauncherReport& report() const { return report_; }

 private:
  [[nodiscard]] std::string take_line(std::string line);
  void take_status();
  void note_stuck(std::string_view line);
  [[nodiscard]] std::string close_box();

  std::string line_;  ///< an incomplete line
  std::string status_;
  std::string box_;  ///< an incomplete box; empty outside of boxes
  LauncherReport report_;
  Clock::time_point now_;  ///< of the current piece
  Clock::time_point first_stuck_;
};

}  // namespace millrace::cli
