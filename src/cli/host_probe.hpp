// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cluster.hpp"
#include "io/atomic_file.hpp"

namespace millrace::cli {

/// Whether a name or address is one of this machine.
[[nodiscard]] bool is_this_machine(const std::string& host);

/// Asks hosts whether they can start a process: the launcher's own agent runs a command on all of
/// them at once. This machine always answers, and alone where its cable is out: where no interface
/// of the cluster is up. What has not ended with the object is killed.
class HostProbe {
 public:
  /// Asks `hosts` (names without numbers of ranks) as the launcher would reach them in `cluster`. A
  /// host on which nothing can be started does not answer. Errors: Io without processes.
  HostProbe(const Cluster& cluster, std::span<const std::string> hosts,
            const std::string& command = "true");
  HostProbe(HostProbe&&) = default;
  ~HostProbe();

  /// Looks who has answered since. Does not wait.
  void look();
  /// Looks again and again until every host but those in `unless` has answered or failed, or `most`
  /// has passed since they were asked.
  void wait(std::chrono::milliseconds most, const std::set<std::string>& unless = {});
  [[nodiscard]] bool is_over() const { return open_.empty(); }
  [[nodiscard]] const std::set<std::string>& asked() const { return asked_; }
  /// The time since the hosts were asked.
  [[nodiscard]] std::chrono::milliseconds age() const;
  [[nodiscard]] const std::set<std::string>& answered() const { return answered_; }
  /// The last line that the agent said about each host that it could not reach, by host.
  [[nodiscard]] const std::map<std::string, std::string>& refused() const { return refused_; }
  /// The time that the slowest of the answers took, as far as wait() saw it.
  [[nodiscard]] std::chrono::milliseconds slowest() const { return slowest_; }

 private:
  struct Question {
    std::string host;
    int process = 0;
    io::UniqueFd words;  ///< what the agent says
  };
  std::vector<Question> open_;  ///< without an answer so far
  std::set<std::string> asked_;
  std::set<std::string> answered_;
  std::map<std::string, std::string> refused_;
  std::chrono::steady_clock::time_point begun_;
  std::chrono::milliseconds slowest_{0};
};

}  // namespace millrace::cli
