// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.hpp"

namespace millrace::cli {

/// The machines of a run.
struct Cluster {
  std::vector<std::string> hosts;  ///< "name" or "name:ranks"
  std::filesystem::path file;      ///< that has them; empty: they were given
  int task = 0;                    ///< index of the host that this process was started for
  int ssh_port = 0;                ///< 0: the launcher's default
  std::string interface;           ///< empty: the launcher's choice
  int hang_timeout = 0;            ///< seconds that a rank waits for another
};

/// Reads TF_CONFIG of distributed TensorFlow: its workers without ports, preceded by the chief, and
/// this task. For a process that a launcher started, the launcher's rank takes the place of the
/// task's index, which may then be missing. Errors: Usage, naming a missing key or an unsupported
/// task type.
[[nodiscard]] Cluster parse_tf_config(
    std::string_view json,
    const Environment& environment = [](const std::string&) { return std::nullopt; });

/// The hosts in a file, as Cluster has them: one a line, "name", "name:4" or "name slots=4"; #
/// begins a remark. Errors: Io; Usage.
[[nodiscard]] std::vector<std::string> hosts_in(const std::filesystem::path& file);

/// The machines given by options (--hosts, or --distributed with TF_CONFIG); nothing if the run
/// stays on this machine. Errors: Usage.
[[nodiscard]] std::optional<Cluster> cluster_of(const Patch& options,
                                                const Environment& environment);

/// The name in "name" or "name:ranks".
[[nodiscard]] std::string name_of_host(std::string_view host);
/// Further words for the agent that reaches other hosts, as Open MPI takes them: those of the user,
/// and the port.
[[nodiscard]] std::string agent_arguments(const Cluster& cluster);
/// Whether a name is one of those that this machine gives itself.
[[nodiscard]] bool names_this_machine(std::string_view name);

/// How many ranks the hosts have room for; nothing if one of them has no limit. Errors: Usage.
[[nodiscard]] std::optional<std::int64_t> room_of(const Cluster& cluster);
/// Errors: Usage if all hosts limit their ranks and there is not enough room for `ranks`.
void check_room(const Cluster& cluster, std::int64_t ranks);

/// The hosts as "name:ranks". Those without a number have room for equal parts of all ranks.
[[nodiscard]] std::vector<std::string> with_room(const Cluster& cluster, int ranks);
/// The name of each rank's host: a launcher fills one host after the other.
[[nodiscard]] std::vector<std::string> hosts_by_rank(const Cluster& cluster, int ranks);
/// The names of hosts that no rank is left for.
[[nodiscard]] std::vector<std::string> hosts_without_rank(const Cluster& cluster, int ranks);

/// In a distributed run --replicas counts per worker; returns options with the total.
[[nodiscard]] Patch for_all_workers(Patch options, const std::optional<Cluster>& cluster);

}  // namespace millrace::cli
