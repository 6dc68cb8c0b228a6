// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cluster.hpp"
#include "cli/commands.hpp"
#include "cli/launcher_process.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "run/run.hpp"
#include "train/watchdog.hpp"

namespace millrace::cli {

/// The command that starts `ranks` processes of this program with arguments `words`, on this
/// machine or on those of `cluster`. $MILLRACE_MPIEXEC replaces the launcher of the build.
/// Errors: Usage, if another file is in the place of this program, as after an upgrade.
[[nodiscard]] std::vector<std::string> launch_command(int ranks, std::span<const std::string> words,
                                                      const std::optional<Cluster>& cluster);

/// The environment variables that ranks use, as lines to print.
[[nodiscard]] std::vector<std::string> environment_lines();

/// The ranks of one launch, and the arguments of each of them.
struct RanksToStart {
  pipeline::PipelinePlan plan;  ///< with the number of ranks
  std::vector<std::string> words;
  std::optional<Cluster> cluster;  ///< none: they run on this machine
  run::Verbosity verbosity = run::Verbosity::Normal;
  std::chrono::seconds to_begin{0};  ///< for the launcher; 0: no limit

  /// The host of each rank; empty on one machine.
  [[nodiscard]] std::vector<std::string> hosts() const;
};
/// Starts ranks and waits for them, like run_launcher().
[[nodiscard]] LauncherEnd start_ranks(const RanksToStart& start,
                                      const std::function<int()>& received,
                                      const Supervision& supervision = {});

/// Starts the ranks of a run, waits for them and returns their exit code; with --elastic, starts
/// them again where that can help. Signals are forwarded as
/// a request to save and stop, including one that arrived earlier, which `received` returns (0:
/// none). Only task 0 of a cluster starts ranks; the others print that and return. Errors: Usage
/// with --no-launch, giving the number of processes needed; those of meaning_of().
[[nodiscard]] int launch_ranks(
    const run::Run& config, const Invocation& invocation,
    const std::function<int()>& received = [] { return 0; });

/// The watchdog of a rank from its start until the whole configuration is known, so that a rank
/// that hangs before the training does not block the others forever. Does nothing in a process that
/// no launcher started.
class StartupWatch {
 public:
  explicit StartupWatch(const Patch& options);
  /// From now on messages can name the rank that this one waits for.
  void follow(const comm::World& world) {
    if (watchdog_) watchdog_->follow(world);
  }
  void end() { watchdog_.reset(); }

 private:
  std::optional<training::Watchdog> watchdog_;
};

/// Prints an error as the last thing that a command says, and the table that belongs to it. `place`
/// stands before the message.
void report_error(const Error& raised, std::string_view place = {});

/// Runs `body` on every rank of a world. Rank 0 reports an error that all ranks share, in the words
/// of the line. An error of a single rank ends all ranks and names that rank.
[[nodiscard]] int run_on_all_ranks(const comm::World& world, const Invocation& invocation,
                                   const std::function<int()>& body);

/// Pins each rank of this machine to its own cores, one per thread, if there are enough cores and
/// the launcher has not pinned them. Call before any thread is started.
void pin_rank(const comm::World& world, int threads);

/// The same, unless the run names its devices: then this rank is pinned to the cores of its
/// devices. Device n stands for `threads` of the cores that the process may use, starting at n x
/// threads.
void pin_rank(const comm::World& world, const run::Run& config);

}  // namespace millrace::cli
