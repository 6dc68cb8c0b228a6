// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.hpp"

namespace millrace::cli {

/// The machines of a run.
struct Cluster {
  std::vector<std::string> hosts;  ///< "name" or "name:ranks"
  int task = 0;                    ///< which of them this process was started for
  int ssh_port = 0;                ///< 0: the launcher's default
  std::string interface;           ///< empty: the launcher's choice
};

/// TF_CONFIG of a distributed TensorFlow: its workers without their ports, the chief before them,
/// and this task. Errors: Usage, naming the key that is missing, and for tasks of other types.
[[nodiscard]] Cluster parse_tf_config(std::string_view json);

/// The machines that options name (--hosts, --distributed with TF_CONFIG); nothing when the run
/// stays on this one. Errors: Usage.
[[nodiscard]] std::optional<Cluster> cluster_of(const Options& options,
                                                const Environment& environment);

/// Errors: Usage, when hosts that all say how many ranks they take have no room for so many.
void check_room(const Cluster& cluster, std::int64_t ranks);

/// --replicas of a distributed run are those of each worker.
[[nodiscard]] Options for_all_workers(Options options, const std::optional<Cluster>& cluster);

}  // namespace millrace::cli
