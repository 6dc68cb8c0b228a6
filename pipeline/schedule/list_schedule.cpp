// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/list_schedule.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

namespace millrace::pipeline {
namespace {

// ---- memory

/// Which forwards a device has memory for. With a byte limit, a forward must leave enough memory
/// for all earlier micro-batches to finish on the device, oldest first. A limit by stage needs no
/// such check. So the oldest micro-batch can always continue.
class MemoryBudget {
 public:
  MemoryBudget(const ScheduleProblem& problem, const Caps& caps)
      : problem_(problem),
        caps_(caps),
        held_(caps.size()),
        bytes_held_(problem.stages_on.size()),
        ahead_(problem.stages_on.size()) {
    const auto m = static_cast<std::size_t>(problem.micro_batches);
    for (std::size_t d = 0; d < bytes_held_.size(); ++d) {
      bytes_held_[d].assign(m, 0.0);
      ahead_[d].assign(m, {problem.stages_on[d].size(), problem.bytes_of_micro_batch(d)});
    }
  }

  [[nodiscard]] bool fits(std::int32_t stage, std::int32_t micro_batch) const {
    const auto s = static_cast<std::size_t>(stage);
    if (held_[s] >= caps_[s]) return false;
    if (problem_.byte_limit.empty()) return true;
    const auto d = static_cast<std::size_t>(problem_.device(stage));
    const double own = problem_.cost(stage).stash_bytes;
    double later = std::accumulate(bytes_held_[d].begin(), bytes_held_[d].end(), own);
    for (std::size_t k = 0; k < static_cast<std::size_t>(micro_batch); ++k) {
      later -= bytes_held_[d][k];
      if (ahead_[d][k].stages > 0 && later + ahead_[d][k].bytes > problem_.byte_limit[d])
        return false;
    }
    return true;
  }

  void take(const Action& a) {
    const auto s = static_cast<std::size_t>(a.stage);
    const auto d = static_cast<std::size_t>(problem_.device(a.stage));
    const auto k = static_cast<std::size_t>(a.micro_batch);
    const double own = problem_.cost(a.stage).stash_bytes;
    if (a.kind == ActionKind::Forward) {
      ++held_[s];
      bytes_held_[d][k] += own;
    } else if (ends_micro_batch(a.kind)) {
      --held_[s];
      bytes_held_[d][k] -= own;
      --ahead_[d][k].stages;
      ahead_[d][k].bytes -= own;
    }
  }

 private:
  /// The stages of a device that a micro-batch has not finished, and its bytes on them.
  struct Ahead {
    std::size_t stages = 0;
    double bytes = 0.0;
  };
  const ScheduleProblem& problem_;
  const Caps& caps_;
  Caps held_;                                    ///< micro-batches, by stage
  std::vector<std::vector<double>> bytes_held_;  ///< by device and micro-batch
  std::vector<std::vector<Ahead>> ahead_;        ///< likewise
};

// ---- the list scheduler

constexpr double kUnknown = -1.0;

/// The time at which the inputs of an action have arrived; kUnknown while an input is not
/// scheduled.
class Arrivals {
 public:
  explicit Arrivals(const ScheduleProblem& p)
      : problem_(p),
        missing_f_(cells(p)),
        missing_b_(cells(p), 1),
        forward_(cells(p)),
        backward_(cells(p)),
        weight_(cells(p), kUnknown),
        wire_free_(p.stages_on.size() * p.stages_on.size()),
        links_of_(p.costs.stages.size()) {
    for (std::size_t l = 0; l < p.links.size(); ++l) {
      links_of_[static_cast<std::size_t>(p.links[l].from)].push_back(l);
      links_of_[static_cast<std::size_t>(p.links[l].to)].push_back(l);
    }
    for (std::int32_t m = 0; m < p.micro_batches; ++m) {
      for (const Link& l : p.links) {
        if (l.activations) ++missing_f_[at(l.to, m)];
        ++missing_b_[at(l.from, m)];  // see Readiness::behind
      }
    }
  }

  [[nodiscard]] double ready(const Action& a) const {
    const std::size_t i = at(a.stage, a.micro_batch);
    if (a.kind == ActionKind::BackwardWeight) return weight_[i];
    const bool forward = a.kind == ActionKind::Forward;
    if ((forward ? missing_f_ : missing_b_)[i] > 0) return kUnknown;
    return (forward ? forward_ : backward_)[i];
  }

  /// Calls `reached` with every device that gets a result of the action.
  template <class Reached>
  void finish(const Action& a, double end, Reached&& reached) {
    const std::int32_t m = a.micro_batch;
    reached(problem_.device(a.stage));
    if (a.kind == ActionKind::BackwardInput) weight_[at(a.stage, m)] = end;
    if (a.kind == ActionKind::Forward) arrive(missing_b_, backward_, at(a.stage, m), end);
    for (const std::size_t l : links_of_[static_cast<std::size_t>(a.stage)]) {
      const Link& link = problem_.links[l];
      if (link.activations && a.kind == ActionKind::Forward && link.from == a.stage) {
        arrive(missing_f_, forward_, at(link.to, m), sent(l, link.from, link.to, end));
        reached(problem_.device(link.to));
      }
      if (makes_input_gradient(a.kind) && link.to == a.stage) {
        const double when = link.gradients ? sent(l, link.to, link.from, end) : end;
        arrive(missing_b_, backward_, at(link.from, m), when);
        reached(problem_.device(link.from));
      }
    }
  }

 private:
  static std::size_t cells(const ScheduleProblem& p) {
    return p.costs.stages.size() * static_cast<std::size_t>(p.micro_batches);
  }
  [[nodiscard]] std::size_t at(std::int32_t stage, std::int32_t micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(problem_.micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }
  static void arrive(std::vector<int>& missing, std::vector<double>& times, std::size_t cell,
                     double time) {
    --missing[cell];
    times[cell] = std::max(times[cell], time);
  }
  double sent(std::size_t link, std::int32_t from, std::int32_t to, double when) {
    const auto source = static_cast<std::size_t>(problem_.device(from));
    const auto target = static_cast<std::size_t>(problem_.device(to));
    if (source == target) return when;
    double& free = wire_free_[source * problem_.stages_on.size() + target];
    free = std::max(free, when) +
           problem_.costs.message_bytes[link] / problem_.costs.link.bytes_per_second;
    return free + problem_.costs.link.latency;
  }

  const ScheduleProblem& problem_;
  std::vector<int> missing_f_;  ///< by stage and micro-batch: inputs that are not scheduled yet
  std::vector<int> missing_b_;
  std::vector<double> forward_;
  std::vector<double> backward_;
  std::vector<double> weight_;
  std::vector<double> wire_free_;                   ///< by pair of devices
  std::vector<std::vector<std::size_t>> links_of_;  ///< by stage
};

/// Continues with the device that can begin an action first, so that no later decision can make an
/// input arrive earlier.
class ListScheduler {
 public:
  ListScheduler(const ScheduleProblem& problem, const Paths& paths, const Rule& rule,
                const Caps& caps)
      : problem_(problem),
        paths_(paths),
        rule_(rule),
        arrivals_(problem),
        memory_(problem, caps),
        next_(problem.costs.stages.size()),
        free_(problem.stages_on.size()),
        did_forward_(free_.size()),
        earliest_(free_.size(), kNever),
        choices_(free_.size()) {
    for (const auto& stages : problem.stages_on) {
      double sum = 0.0;
      for (const std::int32_t s : stages) sum += problem.cost(s).work();
      pace_ = std::max(pace_, sum);
    }
  }

  std::vector<std::vector<Action>> run() && {
    std::vector<std::vector<Action>> lists(free_.size());
    for (std::int32_t d = 0; d < problem_.devices(); ++d) choose(d);
    while (true) {
      const auto first = std::ranges::min_element(earliest_);
      if (*first == kNever) break;
      const auto device = static_cast<std::size_t>(first - earliest_.begin());
      const Option taken = choices_[device];
      lists[device].push_back(taken.action);
      take(taken);
    }
    return lists;
  }

 private:
  struct Option {
    double begin = 0.0;
    Action action;
  };
  /// The next micro-batch of each kind.
  struct Next {
    std::int32_t forward = 0;
    std::int32_t backward = 0;
    std::int32_t weight = 0;
  };
  /// The smallest key comes first.
  using Key = std::tuple<double, std::int32_t, std::int32_t>;

  [[nodiscard]] Key key(const Action& a, std::size_t device) const {
    const std::size_t kind = a.kind == ActionKind::Forward          ? 0
                             : a.kind == ActionKind::BackwardWeight ? 2
                                                                    : 1;
    double rank = rule_.ranks[kind];
    if (rule_.order == Rule::Order::InTurn && kind < 2)
      rank = (kind == 0) == (did_forward_[device] != 0) ? 1.0 : 0.0;
    if (rule_.order == Rule::Order::ByPath) {
      const double path = kind == 0   ? paths_.forward(a.stage)
                          : kind == 1 ? paths_.backward(a.stage)
                                      : problem_.cost(a.stage).backward_weight;
      rank = rule_.age * pace_ * a.micro_batch - path;
      // Only the end of the step waits for weight gradients, so they fill gaps.
      if (kind == 2) rank += pace_ * problem_.micro_batches * (1.0 + rule_.age);
    }
    return {rank, a.micro_batch, kind == 0 ? -a.stage : a.stage};
  }

  template <class Visit>
  void for_each_option(std::int32_t device, Visit&& visit) const {
    const double free = free_[static_cast<std::size_t>(device)];
    const auto offer = [&](const Action& action) {
      const double ready = arrivals_.ready(action);
      if (ready != kUnknown) visit(Option{std::max(free, ready), action});
    };
    const std::int32_t m = problem_.micro_batches;
    for (const std::int32_t s : problem_.stages_on[static_cast<std::size_t>(device)]) {
      const Next& next = next_[static_cast<std::size_t>(s)];
      if (next.forward < m && memory_.fits(s, next.forward))
        offer({ActionKind::Forward, s, next.forward});
      if (next.backward < next.forward) offer({problem_.backward(), s, next.backward});
      if (problem_.split_backward && next.weight < next.backward)
        offer({ActionKind::BackwardWeight, s, next.weight});
    }
  }

  void choose(std::int32_t device) {
    const auto d = static_cast<std::size_t>(device);
    std::optional<Option> first;
    for_each_option(device, [&](const Option& o) {
      if (!first || o.begin < first->begin) first = o;
    });
    earliest_[d] = first ? first->begin : kNever;
    if (!first) return;
    choices_[d] = *first;
    const double until =
        first->begin +
        rule_.patience * problem_.cost(first->action.stage).seconds(first->action.kind);
    Key best = key(first->action, d);
    for_each_option(device, [&](const Option& o) {
      if (o.begin > until || !(key(o.action, d) < best)) return;
      best = key(o.action, d);
      choices_[d] = o;
    });
  }

  void take(const Option& taken) {
    const Action& a = taken.action;
    const auto device = static_cast<std::size_t>(problem_.device(a.stage));
    Next& next = next_[static_cast<std::size_t>(a.stage)];
    if (a.kind == ActionKind::Forward) ++next.forward;
    if (makes_input_gradient(a.kind)) ++next.backward;
    if (a.kind == ActionKind::BackwardWeight) ++next.weight;
    if (a.kind != ActionKind::BackwardWeight)
      did_forward_[device] = a.kind == ActionKind::Forward ? 1 : 0;
    memory_.take(a);
    const double end = taken.begin + problem_.cost(a.stage).seconds(a.kind);
    free_[device] = end;
    std::vector<std::int32_t> reached;
    arrivals_.finish(a, end, [&](std::int32_t d) { reached.push_back(d); });
    for (const std::int32_t d : reached) choose(d);
  }

  const ScheduleProblem& problem_;
  const Paths& paths_;
  const Rule& rule_;
  Arrivals arrivals_;
  MemoryBudget memory_;
  std::vector<Next> next_;    ///< by stage
  std::vector<double> free_;  ///< by device: when it becomes idle
  std::vector<std::uint8_t> did_forward_;
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> earliest_;  ///< by device: when it could begin any action
  std::vector<Option> choices_;   ///< likewise: the one that it takes
  double pace_ = 0.0;             ///< longest work of a device per micro-batch
};

}  // namespace

Schedule list_schedule(const ScheduleProblem& problem, const Paths& paths, const Rule& rule,
                       const Caps& caps) {
  Schedule schedule;
  schedule.name = "Auto";
  schedule.stages = problem.stages;
  schedule.micro_batches = problem.micro_batches;
  schedule.device_of = problem.device_of;
  schedule.lists = ListScheduler(problem, paths, rule, caps).run();
  return schedule;
}

}  // namespace millrace::pipeline
