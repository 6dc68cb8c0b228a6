// SPDX-License-Identifier: Apache-2.0
//
// A run that outlives its machines (--elastic). A launcher ends with the first rank that is lost;
// the supervisor, the process that was started by hand, then starts another one:
//
//   ask the hosts  ->  ranks for those that answer  ->  launch  ->  the end of the launcher
//        ^                                                            |
//        +--- a rank or host was lost, or a host that was lost is back+---> the end of the run
//
// The ranks that are left share the work of those that are lost (partition/spread.hpp). Which
// process computes a stage, and where stages begin, changes no result, so the weights are those of
// an undisturbed run, bit for bit. Only the updates since the newest checkpoint, or snapshot in the
// memory of the hosts, are computed once more.
//
// Each decision is a line on standard error and in supervisor.jsonl of the run directory.
#pragma once

#include <functional>
#include <optional>

#include "cli/cluster.hpp"
#include "cli/commands.hpp"
#include "run/run.hpp"

namespace millrace::cli {

/// Seconds after which a supervised run is without progress, unless --hang-timeout says otherwise:
/// a host that is lost is to be noticed sooner than a run by itself does.
inline constexpr int kSupervisedHangTimeout = 60;

/// Runs a training that needs ranks of its own to its end and returns the exit code of its last
/// launcher. Ends are final if they would come again (wrong options, bad data, diverged numbers,
/// damaged checkpoints), if somebody asked for them, and after `restarts` losses in a row without a
/// new checkpoint. Errors: Usage if another supervisor holds the run, or it keeps no checkpoints.
[[nodiscard]] int supervise(const run::Run& config, const Invocation& invocation,
                            const std::optional<Cluster>& cluster,
                            const std::function<int()>& received);

}  // namespace millrace::cli
