// SPDX-License-Identifier: Apache-2.0
#include "cli/launcher_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <vector>

#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

/// The replica and stages of a rank, in words.
std::string place_of(int rank, const pipeline::PipelinePlan& plan) {
  std::vector<std::string> parts;
  for (int r = 0; r < plan.ranks.replicas; ++r) {
    std::vector<int> stages;
    for (int s = 0; s < static_cast<int>(plan.schedule.device_of.size()); ++s)
      if (plan.rank_of(r, s) == rank) stages.push_back(s);
    if (!stages.empty()) parts.push_back(fmt::format("replica {}, stage {}", r, join(stages, " ")));
  }
  return join(parts, "; ");
}

/// The ranks that printed nothing when the others gave up: not even their watchdog runs.
std::vector<std::string> silent_ranks(const LauncherEnd& end, const pipeline::PipelinePlan& plan,
                                      std::span<const std::string> hosts) {
  std::vector<std::string> silent;
  for (int rank = 0; rank < plan.ranks.ranks; ++rank) {
    if (end.stuck_ranks.contains(rank)) continue;
    const auto at = static_cast<std::size_t>(rank);
    const std::string on = at < hosts.size() ? " on " + hosts[at] : "";
    silent.push_back(fmt::format("rank {}{} ({})", rank, on, place_of(rank, plan)));
  }
  return silent;
}

}  // namespace

int meaning_of(const LauncherEnd& end, const std::string& launcher,
               const pipeline::PipelinePlan& plan, std::span<const std::string> hosts) {
  constexpr int kNotFound = 127;
  constexpr int kNoSignal = kSignalled + 65;  // codes of the launcher's own begin here
  const int interrupted = exit_code(ErrorKind::Interrupted);
  if (end.overdue)
    fail(ErrorKind::Watchdog, "{} did not start the ranks in time: a host may be cut off",
         launcher);
  if (end.stopped)
    fail(ErrorKind::Watchdog,
         "{} was stopped by a signal, and did not go on in time; the last checkpoint can be "
         "restored",
         launcher);
  // A launcher that lost a host ends itself, or was killed while it waited for the host.
  const bool gave_up = !end.stuck_ranks.empty();
  const bool lost = gave_up && (end.killed || end.code >= kNoSignal);
  const int code = lost ? exit_code(ErrorKind::Watchdog) : end.code;
  if (code == kNotFound)
    fail(ErrorKind::Io,
         "cannot run {}: install MPI, name its mpiexec in MILLRACE_MPIEXEC, start millrace with "
         "your own launcher, or use --ranks 1",
         launcher);
  if (code != 0 && end.interrupted) return interrupted;
  if (code == interrupted) return code;
  if (const auto silent = silent_ranks(end, plan, hosts);
      code == exit_code(ErrorKind::Watchdog) && gave_up && !silent.empty())
    fail(ErrorKind::Watchdog,
         "{} did not respond: it is stopped, or its machine hangs{}; the last checkpoint can be "
         "restored",
         join(silent, ", "), hosts.empty() ? "" : " or is cut off");
  // Open MPI's launcher sometimes crashes if it is asked to stop before the ranks listen, or asked
  // again just after they have ended.
  const bool stumbled = end.asked && (code == kLauncherFailed || (end.killed && !gave_up) ||
                                      (code == 0 && !end.ranks_began));
  if (code == kSignalled + SIGUSR1 || stumbled) return exit_code(ErrorKind::Preempted);
  if (code == kLauncherFailed) fail(ErrorKind::Io, "{} failed: see its message above", launcher);
  if (code >= kNoSignal && end.ranks_printed)
    fail(ErrorKind::Peer,
         "{} ended the ranks: see its message above; the last checkpoint can be restored",
         launcher);
  // Open MPI has more codes of its own among those of signals, but mostly names a rank that one
  // ended, or says at least that ranks ran.
  const bool unnamed = comm::is_open_mpi() && !end.killed && end.ended_rank < 0 &&
                       !end.ranks_printed && !end.ranks_began;
  if (code >= kNoSignal || (code > kSignalled && unnamed))
    fail(ErrorKind::Io, "{} could not start the ranks: see its message above", launcher);
  if (code > kSignalled)
    fail(ErrorKind::Peer, "{} was ended by signal {} ({}){}; the last checkpoint can be restored",
         end.killed ? launcher : "a rank", code - kSignalled, strsignal(code - kSignalled),
         end.ended_rank < 0 ? "" : fmt::format(": {} names it above", launcher));
  return code;
}

std::set<std::string> silent_hosts(const LauncherEnd& end, std::span<const std::string> hosts) {
  std::set<std::string> silent;
  if (end.stuck_ranks.empty()) return silent;
  silent.insert(hosts.begin(), hosts.end());
  for (const auto& [rank, awaited] : end.stuck_ranks)
    if (const auto at = static_cast<std::size_t>(rank); at < hosts.size()) silent.erase(hosts[at]);
  return silent;
}

std::map<std::string, int> awaited_hosts(const LauncherEnd& end,
                                         std::span<const std::string> hosts) {
  std::map<std::string, int> ranks;
  for (const auto& [rank, awaited] : end.stuck_ranks) {
    const auto from = static_cast<std::size_t>(rank);
    const auto to = static_cast<std::size_t>(awaited);
    if (awaited >= 0 && std::max(from, to) < hosts.size() && hosts[from] != hosts[to])
      ++ranks[hosts[to]];
  }
  return ranks;
}

std::set<std::string> unstarted_hosts(const LauncherEnd& end, std::span<const std::string> hosts) {
  std::set<std::string> unstarted;
  for (const std::string& agent : end.agents)
    for (const std::string& word : split_list(agent, ' '))
      if (std::ranges::find(hosts, word) != hosts.end()) unstarted.insert(word);
  return unstarted;
}

}  // namespace millrace::cli
