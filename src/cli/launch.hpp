// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/cluster.hpp"
#include "cli/commands.hpp"
#include "comm/world.hpp"
#include "train/config.hpp"
#include "train/watchdog.hpp"

namespace millrace::cli {

/// The command that starts `ranks` processes of this program with `words`, on this machine or on
/// those of `cluster`.
[[nodiscard]] std::vector<std::string> launch_command(int ranks, std::span<const std::string> words,
                                                      const std::optional<Cluster>& cluster);

/// Starts the ranks of a run and waits for them; returns their exit code. Signals are passed on as
/// a request to save and stop, and so is one that came before, which `received` gives (0: none
/// did). Errors: Io when there is no launcher; Peer, naming the rank that a signal ended.
[[nodiscard]] int launch(
    const pipeline::PipelinePlan& plan, std::span<const std::string> words,
    const std::optional<Cluster>& cluster, const std::function<int()>& received = [] { return 0; });

/// The same for a command line, unless it says --no-launch. Only task 0 of a cluster starts ranks;
/// the others say so and are done. Errors: Usage with --no-launch, with the number of processes
/// that are missing.
[[nodiscard]] int launch_ranks(
    const train::TrainConfig& config, const Invocation& invocation,
    const std::function<int()>& received = [] { return 0; });

/// The watchdog of a rank from its very begin until it knows its whole configuration, so that a
/// rank which hangs before the training does not hang the others for ever. Nothing in a process
/// that no launcher started.
class StartupWatch {
 public:
  explicit StartupWatch(const Options& options);
  /// From now on it can say which rank this one waits for.
  void follow(const comm::World& world) {
    if (watchdog_) watchdog_->follow(world);
  }
  void end() { watchdog_.reset(); }

 private:
  std::optional<train::Watchdog> watchdog_;
};

/// Runs `body` on every rank of a world: an error that all share is reported once, by rank 0; one
/// that a single rank has ends all of them, naming the rank.
[[nodiscard]] int run_on_all_ranks(const comm::World& world, const std::function<int()>& body);

/// Gives each rank of this machine cores of its own, as many as it has threads, where there are
/// enough of them and the launcher has not done so. Call before any thread is started.
void pin_rank(const comm::World& world, int threads);

/// The same, or where the run names its devices, gives this rank the cores of those that it
/// computes on: number n stands for cores n x threads .. of those that the process may use.
void pin_rank(const comm::World& world, const train::TrainConfig& config);

}  // namespace millrace::cli
