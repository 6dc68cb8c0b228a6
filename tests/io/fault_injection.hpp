// SPDX-License-Identifier: Apache-2.0
//
// Runs code in a child whose system calls are watched (ptrace), and lets the n-th of those that
// change files go wrong: the process is killed before it, or half-way through a write, or the call
// fails. So the program under test needs no seam, and calls of libraries count too.
#pragma once

#include <functional>
#include <vector>

namespace millrace::io {

enum class Fault {
  None,
  Kill,      ///< SIGKILL instead of the call
  TornKill,  ///< half of a write is done, then SIGKILL
  Fail,      ///< the call is not made and fails with `error`
};

struct FaultPlan {
  Fault fault = Fault::None;
  int at = 0;     ///< which call, from 1
  int error = 0;  ///< errno of Fail
};

struct FaultOutcome {
  bool supported = false;      ///< false: processes cannot be traced here, nothing was run
  int calls = 0;               ///< that change files, as far as the child came
  std::vector<int> transfers;  ///< which of them write or sync data
  bool killed = false;
  int exit_code = 0;  ///< unless killed
};

/// `child` runs in a forked process, which ends with the result as its exit code.
[[nodiscard]] FaultOutcome run_with_fault(const std::function<int()>& child, FaultPlan plan);

}  // namespace millrace::io
