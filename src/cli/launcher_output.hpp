// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace millrace::cli {

/// Which rank a signal ended, and which signal.
struct EndedRank {
  int rank = 0;
  int signal = 0;
  friend bool operator==(const EndedRank&, const EndedRank&) = default;
};

/// What comes out of a launcher's standard error: the lines of the ranks pass; the boxes in which
/// Open MPI tells how a job ended are read and left out, as this program says it in a line; other
/// boxes pass.
class LauncherOutput {
 public:
  using Clock = std::chrono::steady_clock;

  /// The lines to show, now that `piece` has come.
  [[nodiscard]] std::string take(std::string_view piece, Clock::time_point now = Clock::now());
  /// What is left to show when no more comes.
  [[nodiscard]] std::string finish();
  /// Known once the launcher has told it.
  [[nodiscard]] std::optional<EndedRank> ended_rank() const { return ended_; }
  /// Whether the launcher has told that a rank failed, after which it ends the others.
  [[nodiscard]] bool ending() const { return ending_; }
  /// Whether a box passed: the launcher has something to say itself.
  [[nodiscard]] bool complained() const { return complained_; }
  /// Whether another machine is out of reach.
  [[nodiscard]] bool lost_machine() const { return lost_machine_; }
  /// The ranks that have said where they stand, after no progress for too long. One that comes long
  /// after the first was stopped, and woken to be ended.
  [[nodiscard]] const std::set<int>& stuck_ranks() const { return stuck_; }
  /// The exit code with which a rank ended all others, where it is told.
  [[nodiscard]] std::optional<int> abort_code() const { return abort_code_; }

 private:
  [[nodiscard]] std::string take_line(std::string line);
  void note_stuck(std::string_view line);
  [[nodiscard]] std::string close_box();

  std::string line_;  ///< begun, not ended
  std::string box_;   ///< from its upper edge on; empty: outside
  std::optional<EndedRank> ended_;
  std::optional<int> abort_code_;
  std::set<int> stuck_;
  Clock::time_point now_;  ///< of the piece that is looked at
  Clock::time_point first_stuck_;
  bool ending_ = false;
  bool complained_ = false;
  bool lost_machine_ = false;
};

}  // namespace millrace::cli
