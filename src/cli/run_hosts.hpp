// SPDX-License-Identifier: Apache-2.0
//
// The hosts of a run that outlives them, and which of them answer.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cli/cluster.hpp"
#include "cli/host_probe.hpp"

namespace millrace::cli {

/// What is known of a host of the run.
struct Host {
  using Clock = std::chrono::steady_clock;
  std::string name;
  int room = 0;                      ///< ranks
  bool suspected = false;            ///< its ranks were silent, and it did not answer
  double speed = 1.0;                ///< of its ranks, as found in the last start
  bool proven = false;               ///< part of the last start that made updates
  int failures = 0;                  ///< starts in a row that took it in and failed because of it
  Clock::time_point out_until = {};  ///< not asked before
  [[nodiscard]] bool is_out() const { return Clock::now() < out_until; }
  /// For a while, which grows. `probe`: the time between two questions.
  void leave_out(std::chrono::seconds probe) {
    constexpr int kProbes = 10;
    out_until = Clock::now() + kProbes * probe * (1 << std::min(failures++, 10));
  }
};

[[nodiscard]] bool is_among(std::span<const Host> hosts, const std::string& name);

/// The hosts of a cluster. Questions to them are asked by its agent.
class RunHosts {
 public:
  /// For a run of so many ranks. Those of no cluster are on this machine, which is not in the list.
  RunHosts(const std::optional<Cluster>& cluster, int ranks);

  /// Reads the list, whose file may have changed. What is known of those that stay is kept.
  void find();
  [[nodiscard]] std::vector<Host>& all() { return hosts_; }
  [[nodiscard]] Host& at(const std::string& name);  ///< which is in the list
  /// Those of the list that are not among these.
  [[nodiscard]] std::vector<Host> besides(std::span<const Host> hosts) const;
  /// How many ranks there are on these.
  [[nodiscard]] int ranks_on(std::span<const Host> hosts) const;
  /// The cluster with these hosts alone.
  [[nodiscard]] std::optional<Cluster> cluster_of(std::span<const Host> hosts) const;

  /// When the first rank gives up: the answers are there when the ranks have ended.
  void ask_early();
  /// The answers of before count no more.
  void forget_answers() { probe_.reset(); }
  /// Hosts that answer, or did so just now, when ranks gave up, of those that are not left out.
  /// Those that are suspected get less time than those that may be busy.
  [[nodiscard]] std::vector<Host> answering();
  /// What the agent said of each that did not, the last time.
  [[nodiscard]] const std::map<std::string, std::string>& refused() const { return refused_; }
  /// Those of these hosts that have not answered since the first rank gave up. Ranks of others may
  /// have been too slow to speak.
  [[nodiscard]] std::set<std::string> unreached(std::set<std::string> names);
  /// Asks those that are not left out whether they can start something.
  [[nodiscard]] HostProbe ask(std::span<const Host> hosts) const;
  /// Runs a command on each of these that can be reached soon.
  void command(std::span<const Host> hosts, const std::string& command) const;

 private:
  static constexpr std::chrono::milliseconds kBusy{5000};  ///< for a host that is there to answer

  /// The time for a host that may be lost to answer: thrice that of the slowest login so far.
  [[nodiscard]] std::chrono::milliseconds for_suspected() const;

  std::optional<Cluster> cluster_;
  int ranks_;
  std::vector<Host> hosts_;
  std::optional<HostProbe> probe_;              ///< since ranks gave up, or for the next start
  std::map<std::string, std::string> refused_;  ///< by host
  std::chrono::milliseconds login_{0};          ///< of the slowest host that has answered so far
};

}  // namespace millrace::cli
