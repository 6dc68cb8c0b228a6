// SPDX-License-Identifier: Apache-2.0
//
// Runs code in a traced child (ptrace) and injects a fault into the n-th system call that changes
// files: the process is killed before the call or after half of a write, or the call fails. So the
// tested code needs no hooks, and calls of libraries are included.
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
  int calls = 0;               ///< number of calls that change files, until the child ended
  std::vector<int> transfers;  ///< which of them write or sync data
  bool killed = false;
  int exit_code = 0;  ///< unless killed
};

/// `child` runs in a forked process, which ends with the result as its exit code.
[[nodiscard]] FaultOutcome run_with_fault(const std::function<int()>& child, FaultPlan plan);

}  // namespace millrace::io
