// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/auto_schedule.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "pipeline/schedule/list_schedule.hpp"

namespace millrace::pipeline {
namespace {

void check_numbers(const AutoRequest& r) {
  const std::size_t stages = r.costs.stages.size();
  const auto sized = [](std::size_t size, std::size_t wanted, std::string_view what) {
    if (size != 0 && size != wanted)
      fail(ErrorKind::Config, "schedule Auto: {} {}, expected {}", size, what, wanted);
  };
  if (stages == 0)
    fail(ErrorKind::Config, "schedule Auto: no stages; costs of at least 1 stage are required");
  if (r.micro_batches < 1)
    fail(ErrorKind::Config, "schedule Auto: {} micro-batches; at least 1 is required",
         r.micro_batches);
  sized(r.device_of.size(), stages, "entries in the device mapping");
  sized(r.stash_limit.size(), stages, "limits of micro-batches");
  sized(r.costs.message_bytes.size(), r.links.empty() ? stages - 1 : r.links.size(),
        "message sizes");
  for (const std::int32_t device : r.device_of)
    if (device < 0) fail(ErrorKind::Config, "schedule Auto: invalid device {} of a stage", device);
  for (const Link& l : r.links)
    if (l.from < 0 || l.from >= l.to || l.to >= static_cast<std::int32_t>(stages))
      fail(ErrorKind::Config, "schedule Auto: invalid link from stage {} to {} of {} stages",
           l.from, l.to, stages);
}

void check_limits(const ScheduleProblem& p) {
  if (!p.byte_limit.empty() && std::ssize(p.byte_limit) != p.devices())
    fail(ErrorKind::Config, "schedule Auto: {} byte limits, expected {}", p.byte_limit.size(),
         p.devices());
  for (std::int32_t s = 0; s < p.stages; ++s)
    if (p.stash_limit[static_cast<std::size_t>(s)] < 1)
      fail(ErrorKind::Config,
           "schedule Auto: stage {} may hold {} micro-batches; at least 1 is required", s,
           p.stash_limit[static_cast<std::size_t>(s)]);
  for (std::size_t d = 0; d < p.byte_limit.size(); ++d)
    if (p.byte_limit[d] < p.bytes_of_micro_batch(d))
      fail(ErrorKind::Config,
           "schedule Auto: device {} may hold {:.0f} bytes, but one micro-batch needs {:.0f}", d,
           p.byte_limit[d], p.bytes_of_micro_batch(d));
}

}  // namespace

ScheduleProblem::ScheduleProblem(AutoRequest request)
    : AutoRequest(std::move(request)), stages(static_cast<std::int32_t>(costs.stages.size())) {
  check_numbers(*this);
  if (device_of.empty()) {
    device_of.resize(costs.stages.size());
    std::iota(device_of.begin(), device_of.end(), 0);
  }
  const std::int32_t last = *std::max_element(device_of.begin(), device_of.end());
  stages_on.resize(static_cast<std::size_t>(last) + 1);
  for (std::int32_t s = 0; s < stages; ++s)
    stages_on[static_cast<std::size_t>(device(s))].push_back(s);
  if (links.empty()) links = chain(stages);
  costs.message_bytes.resize(links.size());
  if (stash_limit.empty()) stash_limit.assign(costs.stages.size(), micro_batches);
  for (std::int32_t& limit : stash_limit) limit = std::min(limit, micro_batches);
  check_limits(*this);
}

Paths::Paths(const ScheduleProblem& p)
    : forward_(p.costs.stages.size()), backward_(forward_.size()) {
  for (std::int32_t s = 0; s < p.stages; ++s) {
    double after = p.split_backward ? p.cost(s).backward_weight : 0.0;
    for (const Link& l : p.links)
      if (l.gradients && l.to == s)
        after = std::max(after, p.latency(l) + backward_[static_cast<std::size_t>(l.from)]);
    backward_[static_cast<std::size_t>(s)] = p.cost(s).seconds(p.backward()) + after;
  }
  for (std::int32_t s = p.stages - 1; s >= 0; --s) {
    double after = backward_[static_cast<std::size_t>(s)];
    for (const Link& l : p.links)
      if (l.activations && l.from == s)
        after = std::max(after, p.latency(l) + forward_[static_cast<std::size_t>(l.to)]);
    forward_[static_cast<std::size_t>(s)] = p.cost(s).forward + after;
  }
}

namespace {

/// Keeps the shortest schedule within the limits; among equals the one with the smaller stash, then
/// the one offered first.
class Contest {
 public:
  explicit Contest(const ScheduleProblem& problem) : problem_(problem) {}

  void offer(Schedule compute) {
    const std::vector<std::int32_t> peaks = stash_peaks(compute);
    for (std::size_t s = 0; s < peaks.size(); ++s)
      if (peaks[s] > problem_.stash_limit[s]) return;
    const TimeLine line =
        simulate(with_communication(compute, problem_.links), problem_.links, problem_.costs);
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
    if (problem.split_backward) split_backwards(schedule);
    contest.offer(std::move(schedule));
  };
  offer("Sequential", 0);
  for (std::int32_t extra = 0; extra < problem.stages; ++extra) offer("1F1B", extra);
  offer("Grouped", 0);
  offer("GPipe", 0);
  if (problem.split_backward) offer("ZB-H1", 0);
}

/// Limits that the list scheduler tries: those of the request, and those of 1F1B with several
/// warm-ups, which keep forwards from delaying backwards.
std::vector<Caps> all_caps(const ScheduleProblem& problem) {
  std::vector<Caps> all = {problem.stash_limit};
  for (const double depth : {1.0, 1.5, 2.0, 3.0}) {
    Caps caps = problem.stash_limit;
    for (std::int32_t s = 0; s < problem.stages; ++s) {
      // With deferred weight gradients every stage holds its micro-batches as long as the first.
      const std::int32_t fill = problem.split_backward ? problem.stages : problem.stages - s;
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
    if (!problem.split_backward) continue;
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
  Contest contest(problem);
  offer_generated(contest, problem);
  offer_listed(contest, problem);
  return std::move(contest).best();
}

}  // namespace millrace::pipeline
