// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::cli {

/// In the environment of ranks that a launcher of this program has started, on whichever host.
inline constexpr const char* kLaunchedVariable = "MILLRACE_LAUNCHED";
/// What rank 0 of them writes to standard error as soon as it is started. It is not shown.
inline constexpr std::string_view kRanksBegin = "millrace: the ranks begin";
/// The same, after its first update of a run that is supervised.
inline constexpr std::string_view kRanksTrain = "millrace: the ranks train";
/// The same when all is done, followed by its exit code.
inline constexpr std::string_view kRanksEnd = "millrace: the ranks end with code ";

/// What comes from a launcher's standard error, which is its own and that of the ranks. Lines pass,
/// and what the launcher says is not read. But Open MPI puts its messages into boxes between lines
/// of dashes, some of which only say that the job has ended: boxes are kept back for a while, so
/// that they can be left out where a rank has said why. The status line of rank 0, which is
/// rewritten in place, is kept apart.
class LauncherOutput {
 public:
  using Clock = std::chrono::steady_clock;

  /// `grace`: the time that ranks which give up wait for each other before the first one ends.
  explicit LauncherOutput(std::chrono::milliseconds grace) : grace_(grace) {}

  /// Adds `piece` and returns the lines to show.
  [[nodiscard]] std::string take(std::string_view piece, Clock::time_point now = Clock::now());
  /// Boxes that the end of the launcher has not followed soon, to show.
  [[nodiscard]] std::string late(Clock::time_point now = Clock::now());
  /// Returns the rest to show at the end of the output. `with_boxes`: also those kept back, which
  /// otherwise are only shown if one is incomplete.
  [[nodiscard]] std::string finish(bool with_boxes);

  /// The newest status line; "" if it was cleared.
  [[nodiscard]] const std::string& status() const { return status_; }
  [[nodiscard]] bool ranks_began() const { return began_; }
  [[nodiscard]] bool ranks_trained() const { return trained_; }
  /// The exit code of ranks that are about to end.
  [[nodiscard]] std::optional<int> ranks_code() const { return code_; }
  /// The rank that a signal ended, as Open MPI says in a box; -1: it does not.
  [[nodiscard]] int ended_rank() const { return ended_rank_; }
  /// The ranks that reported where they stand after too long without progress, each with the rank
  /// that it waits for, or -1. A report long after the first is ignored: that rank was stopped, and
  /// continued only to be ended.
  [[nodiscard]] const std::map<int, int>& stuck_ranks() const { return stuck_ranks_; }

 private:
  [[nodiscard]] std::string take_line(std::string line);
  void take_status();
  void note_stuck(std::string_view line);

  std::chrono::milliseconds grace_;
  std::string line_;  ///< an incomplete line
  std::string status_;
  std::string boxes_;  ///< kept back
  bool in_box_ = false;
  bool began_ = false;
  bool trained_ = false;
  std::optional<int> code_;
  int ended_rank_ = -1;
  std::map<int, int> stuck_ranks_;
  Clock::time_point now_;    ///< of the current piece
  Clock::time_point since_;  ///< that of the first box kept back
  Clock::time_point first_stuck_;
};

}  // namespace millrace::cli
