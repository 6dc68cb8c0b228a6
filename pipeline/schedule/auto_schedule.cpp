// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/auto_schedule.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "pipeline/schedule/list_schedule.hpp"

namespace millrace::pipeline {
namespace {

/// Keeps the shortest schedule within the limits; among equals the one with the smaller stash, then
/// the one offered first.
class Contest {
 public:
  Contest(const ScheduleProblem& problem, const Costs& costs) : problem_(problem), costs_(costs) {}

  void offer(Schedule compute) {
    const std::vector<std::int32_t> peaks = stash_peaks(compute);
    for (std::size_t s = 0; s < peaks.size(); ++s)
      if (peaks[s] > problem_.caps[s]) return;
    const TimeLine line =
        simulate(with_communication(compute, problem_.links), problem_.links, costs_);
    for (std::size_t d = 0; d < problem_.byte_limit.size(); ++d)
      if (line.stash_bytes[d] > problem_.byte_limit[d] * kRounding) return;
    const std::int32_t held = std::accumulate(peaks.begin(), peaks.end(), 0);
    const bool equal =
        best_ && line.makespan <= seconds_ * kRounding && line.makespan >= seconds_ / kRounding;
    if (best_ && (equal ? held >= held_ : line.makespan > seconds_)) return;
    best_ = std::move(compute);
    seconds_ = line.makespan;
    held_ = held;
  }
  [[nodiscard]] Schedule best() && {
    MILLRACE_ASSERT(best_.has_value());
    best_->name = "Auto";
    return *std::move(best_);
  }

 private:
  static constexpr double kRounding = 1.0 + 1e-12;
  const ScheduleProblem& problem_;
  const Costs& costs_;
  std::optional<Schedule> best_;
  double seconds_ = 0.0;
  std::int32_t held_ = 0;
};

void offer_generated(Contest& contest, const ScheduleProblem& problem) {
  ScheduleRequest request;
  request.devices = problem.devices();
  request.device_of = problem.device_of;
  request.micro_batches = problem.micro_batches;
  const auto offer = [&](std::string_view name, std::int32_t extra_warmup) {
    request.name = name;
    request.extra_warmup = extra_warmup;
    Schedule schedule = generate(request);
    if (problem.split) split_backwards(schedule);
    contest.offer(std::move(schedule));
  };
  offer("Sequential", 0);
  for (std::int32_t extra = 0; extra < problem.stages; ++extra) offer("1F1B", extra);
  offer("Grouped", 0);
  offer("GPipe", 0);
  if (problem.split) offer("ZB-H1", 0);
}

/// Limits that the list scheduler tries: those of the request, and those of 1F1B with several
/// warm-ups, which keep forwards from delaying backwards.
std::vector<Caps> all_caps(const ScheduleProblem& problem) {
  std::vector<Caps> all = {problem.caps};
  for (const double depth : {1.0, 1.5, 2.0, 3.0}) {
    Caps caps = problem.caps;
    for (std::int32_t s = 0; s < problem.stages; ++s) {
      // With deferred weight gradients every stage holds its micro-batches as long as the first.
      const std::int32_t fill = problem.split ? problem.stages : problem.stages - s;
      auto& cap = caps[static_cast<std::size_t>(s)];
      cap = std::min(cap, static_cast<std::int32_t>(depth * fill));
    }
    if (std::find(all.begin(), all.end(), caps) == all.end()) all.push_back(caps);
  }
  return all;
}

std::vector<Rule> all_rules(const ScheduleProblem& problem) {
  using enum Rule::Order;
  std::vector<Rule> rules;
  for (const double patience : {0.0, 0.3, 0.7}) {
    rules.push_back({ByKind, {1, 0, 2}, 0.0, patience});
    rules.push_back({ByKind, {0, 1, 2}, 0.0, patience});
    rules.push_back({InTurn, {0, 0, 2}, 0.0, patience});
    for (const double age : {0.1, 0.3, 0.6, 1.0})
      rules.push_back({ByPath, {0, 0, 0}, age, patience});
    if (!problem.split) continue;
    rules.push_back({ByKind, {2, 0, 1}, 0.0, patience});
    rules.push_back({ByKind, {1, 2, 0}, 0.0, patience});
  }
  return rules;
}

void offer_listed(Contest& contest, const ScheduleProblem& problem) {
  const Paths paths(problem);
  const std::vector<Rule> rules = all_rules(problem);
  for (const Caps& caps : all_caps(problem))
    for (const Rule& rule : rules) contest.offer(list_schedule(problem, paths, rule, caps));
}

}  // namespace

Schedule generate_auto(const AutoRequest& request) {
  const ScheduleProblem problem(request);
  Contest contest(problem, request.costs);
  offer_generated(contest, problem);
  offer_listed(contest, problem);
  return std::move(contest).best();
}

}  // namespace millrace::pipeline
