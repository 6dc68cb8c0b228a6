// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/simulate.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "core/error.hpp"

namespace millrace::pipeline {
namespace {

/// Tracks when outputs of forwards and input gradients of backwards arrive at their readers.
class Simulation {
 public:
  Simulation(const Schedule& schedule, std::span<const Link> links, const Costs& costs)
      : schedule_(schedule),
        links_(links),
        costs_(costs),
        ends_(static_cast<std::size_t>(schedule.stages)),
        head_(schedule.lists.size()),
        now_(schedule.lists.size()) {
    MILLRACE_ASSERT(std::ssize(costs.stages) == schedule.stages);
    const std::size_t messages =
        links.size() * static_cast<std::size_t>(std::max(schedule.micro_batches, 0));
    activation_.resize(messages);
    gradient_.resize(messages);
    for (std::size_t l = 0; l < links.size(); ++l) {
      Ends& from = ends_[static_cast<std::size_t>(links[l].from)];
      Ends& to = ends_[static_cast<std::size_t>(links[l].to)];
      if (links[l].activations) {
        from.sends_activations.push_back(l);
        to.reads_activations.push_back(l);
      }
      if (links[l].gradients) {
        to.sends_gradients.push_back(l);
        from.reads_gradients.push_back(l);
      }
    }
    line_.devices.resize(schedule.lists.size());
  }

  TimeLine run() && {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t d = 0; d < head_.size(); ++d)
        while (step(d)) moved = true;
    }
    for (std::size_t d = 0; d < head_.size(); ++d)
      if (head_[d] < schedule_.lists[d].size())
        fail(ErrorKind::Config, "schedule {}: deadlock: device {} can never run {}", schedule_.name,
             d, to_string(schedule_.lists[d][head_[d]]));
    update_weights();
    summarise();
    return std::move(line_);
  }

 private:
  using Arrivals = std::vector<std::optional<double>>;
  /// The links that end at a stage.
  struct Ends {
    std::vector<std::size_t> reads_activations;
    std::vector<std::size_t> sends_activations;
    std::vector<std::size_t> reads_gradients;
    std::vector<std::size_t> sends_gradients;
  };

  [[nodiscard]] std::size_t message(std::size_t link, const Action& a) const {
    return link * static_cast<std::size_t>(schedule_.micro_batches) +
           static_cast<std::size_t>(a.micro_batch);
  }

  /// When all inputs of the action have arrived; nothing while an input is not sent yet.
  [[nodiscard]] std::optional<double> ready(const Action& a) const {
    const bool forward = a.kind == ActionKind::Forward;
    if (!forward && !makes_input_gradient(a.kind)) return 0.0;
    const auto stage = static_cast<std::size_t>(a.stage);
    const Arrivals& arrivals = forward ? activation_ : gradient_;
    double time = 0.0;
    const Ends& ends = ends_[stage];
    for (const std::size_t link : forward ? ends.reads_activations : ends.reads_gradients) {
      const std::optional<double>& arrival = arrivals[message(link, a)];
      if (!arrival) return std::nullopt;
      time = std::max(time, *arrival);
    }
    return time;
  }

  bool step(std::size_t device) {
    const std::vector<Action>& list = schedule_.lists[device];
    if (head_[device] == list.size()) return false;
    const Action& action = list[head_[device]];
    if (action.kind == ActionKind::Update) {
      ++head_[device];
      return true;
    }
    const std::optional<double> inputs = ready(action);
    if (!inputs) return false;
    const double begin = std::max(now_[device], *inputs);
    const double end =
        begin + costs_.stages[static_cast<std::size_t>(action.stage)].seconds(action.kind);
    now_[device] = end;
    line_.devices[device].push_back({action, begin, end});
    ++head_[device];
    send(action, end);
    return true;
  }

  void send(const Action& a, double when) {
    const auto stage = static_cast<std::size_t>(a.stage);
    if (a.kind == ActionKind::Forward)
      for (const std::size_t link : ends_[stage].sends_activations)
        activation_[message(link, a)] = arrival(link, a.stage, links_[link].to, when);
    if (makes_input_gradient(a.kind))
      for (const std::size_t link : ends_[stage].sends_gradients)
        gradient_[message(link, a)] = arrival(link, a.stage, links_[link].from, when);
  }

  double arrival(std::size_t link, std::int32_t from, std::int32_t to, double when) {
    const std::pair devices{schedule_.device(from), schedule_.device(to)};
    if (devices.first == devices.second) return when;
    const double bytes = costs_.message_bytes.empty() ? 0.0 : costs_.message_bytes[link];
    double& free = wire_free_[devices];
    free = std::max(free, when) + bytes / costs_.link.bytes_per_second;
    return free + costs_.link.latency;
  }

  /// All weights are updated together, when the last device has its gradients.
  void update_weights() {
    const double together = *std::max_element(now_.begin(), now_.end());
    for (std::size_t d = 0; d < now_.size(); ++d) {
      double now = together;
      for (const Action& action : schedule_.lists[d]) {
        if (action.kind != ActionKind::Update) continue;
        const double begin = now;
        now += costs_.stages[static_cast<std::size_t>(action.stage)].update;
        line_.devices[d].push_back({action, begin, now});
      }
    }
  }

  void summarise() {
    for (const std::vector<Interval>& device : line_.devices) {
      double busy = 0.0;
      double updates = 0.0;
      double first = 0.0;
      double last = 0.0;
      double held = 0.0;
      double most = 0.0;
      bool any = false;
      for (const Interval& i : device) {
        const double bytes = costs_.stages[static_cast<std::size_t>(i.action.stage)].stash_bytes;
        if (i.action.kind == ActionKind::Forward) most = std::max(most, held += bytes);
        if (ends_micro_batch(i.action.kind)) held -= bytes;
        line_.makespan = std::max(line_.makespan, i.end);
        if (i.action.kind == ActionKind::Update) updates += i.end - i.begin;
        if (!is_compute(i.action.kind)) continue;
        if (!any) first = i.begin;
        any = true;
        last = i.end;
        busy += i.end - i.begin;
      }
      line_.busy.push_back(busy + updates);
      line_.idle.push_back(last - first - busy);
      line_.stash_bytes.push_back(most);
    }
  }

  const Schedule& schedule_;
  std::span<const Link> links_;
  const Costs& costs_;
  std::vector<Ends> ends_;  ///< by stage
  std::vector<std::size_t> head_;
  std::vector<double> now_;
  Arrivals activation_;
  Arrivals gradient_;
  std::map<std::pair<std::int32_t, std::int32_t>, double> wire_free_;
  TimeLine line_;
};

}  // namespace

double StageCost::seconds(ActionKind kind) const {
  switch (kind) {
    case ActionKind::Forward:
      return forward;
    case ActionKind::BackwardInput:
      return backward_input;
    case ActionKind::BackwardWeight:
      return backward_weight;
    case ActionKind::Backward:
      return backward_input + backward_weight;
    case ActionKind::Update:
      return update;
    default:
      return 0.0;
  }
}

double TimeLine::bubble() const {
  const double all = makespan * static_cast<double>(devices.size());
  return all > 0.0 ? 1.0 - std::accumulate(busy.begin(), busy.end(), 0.0) / all : 0.0;
}

TimeLine simulate(const Schedule& schedule, std::span<const Link> links, const Costs& costs) {
  return Simulation(schedule, links, costs).run();
}

double lower_bound_seconds(std::span<const StageCost> stages, std::int32_t micro_batches,
                           bool split_backward) {
  double bound = 0.0;
  double before = 0.0;
  for (const StageCost& stage : stages) {
    const double work = stage.forward + stage.backward_input + stage.backward_weight;
    bound = std::max(bound, before + micro_batches * work);
    before += split_backward ? stage.forward : work;
  }
  return bound;
}

double lower_bound_seconds(const Schedule& schedule, std::span<const StageCost> stages) {
  std::vector<double> device(schedule.lists.size());
  for (std::size_t s = 0; s < stages.size(); ++s)
    device[static_cast<std::size_t>(schedule.device_of[s])] +=
        schedule.micro_batches *
        (stages[s].forward + stages[s].backward_input + stages[s].backward_weight);
  return std::max(lower_bound_seconds(stages, schedule.micro_batches, splits_backward(schedule)),
                  *std::max_element(device.begin(), device.end()));
}

}  // namespace millrace::pipeline
