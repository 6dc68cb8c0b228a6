// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>

#include "cli/launcher_process.hpp"
#include "pipeline/pipeline_plan.hpp"

namespace millrace::cli {

/// The launcher's exit code as one of ours. `hosts` has the host of each rank; empty on one
/// machine. Errors: Io if the ranks could not be started; Peer if a rank was ended by a signal or a
/// host is lost, of which the launcher has said which; Watchdog, naming the ranks that said nothing
/// when the others gave up.
[[nodiscard]] int meaning_of(const LauncherEnd& end, const std::string& launcher,
                             const pipeline::PipelinePlan& plan,
                             std::span<const std::string> hosts);

/// The hosts of whose ranks none said anything when the others gave up: they are cut off, or hang.
[[nodiscard]] std::set<std::string> silent_hosts(const LauncherEnd& end,
                                                 std::span<const std::string> hosts);

/// The number of ranks on other hosts that waited for ranks on a host when all gave up.
[[nodiscard]] std::map<std::string, int> awaited_hosts(const LauncherEnd& end,
                                                       std::span<const std::string> hosts);

/// Those of the hosts on which the launcher was still starting its daemon when it was ended.
[[nodiscard]] std::set<std::string> unstarted_hosts(const LauncherEnd& end,
                                                    std::span<const std::string> hosts);

}  // namespace millrace::cli
