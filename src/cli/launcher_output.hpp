// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
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
  /// The lines to show, now that `piece` has come.
  [[nodiscard]] std::string take(std::string_view piece);
  /// What is left to show when no more comes.
  [[nodiscard]] std::string finish();
  /// Known once the launcher has told it.
  [[nodiscard]] std::optional<EndedRank> ended_rank() const { return ended_; }

 private:
  [[nodiscard]] std::string take_line(std::string line);
  [[nodiscard]] std::string close_box();

  std::string line_;  ///< begun, not ended
  std::string box_;   ///< from its upper edge on; empty: outside
  std::optional<EndedRank> ended_;
};

}  // namespace millrace::cli
