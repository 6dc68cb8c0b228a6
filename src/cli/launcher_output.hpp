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

/// Filters a launcher's standard error. Lines of the ranks pass. Boxes in which Open MPI reports
/// the end of a job are parsed and dropped, because this program reports it in one line; other
/// boxes pass.
class LauncherOutput {
 public:
  using Clock = std::chrono::steady_clock;

  /// Adds `piece` and returns the lines to show.
  [[nodiscard]] std::string take(std::string_view piece, Clock::time_point now = Clock::now());
  /// Returns the rest to show at the end of the output.
  [[nodiscard]] std::string finish();
  /// Known once the launcher has reported it.
  [[nodiscard]] std::optional<EndedRank> ended_rank() const { return ended_; }
  /// Whether the launcher has reported a failed rank; it then ends the others.
  [[nodiscard]] bool ending() const { return ending_; }
  /// Whether a box passed, that is, the launcher has a message of its own.
  [[nodiscard]] bool complained() const { return complained_; }
  /// Whether contact with another machine was lost.
  [[nodiscard]] bool lost_machine() const { return lost_machine_; }
  /// The ranks that reported where they stand after too long without progress. A report long after
  /// the first is ignored: that rank was stopped, and continued only to be ended.
  [[nodiscard]] const std::set<int>& stuck_ranks() const { return stuck_; }
  /// The exit code with which a rank ended all others, if reported.
  [[nodiscard]] std::optional<int> abort_code() const { return abort_code_; }

 private:
  [[nodiscard]] std::string take_line(std::string line);
  void note_stuck(std::string_view line);
  [[nodiscard]] std::string close_box();

  std::string line_;  ///< an incomplete line
  std::string box_;   ///< an incomplete box; empty outside of boxes
  std::optional<EndedRank> ended_;
  std::optional<int> abort_code_;
  std::set<int> stuck_;
  Clock::time_point now_;  ///< of the current piece
  Clock::time_point first_stuck_;
  bool ending_ = false;
  bool complained_ = false;
  bool lost_machine_ = false;
};

}  // namespace millrace::cli
