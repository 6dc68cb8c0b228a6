// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/simulate.hpp"

#include <algorithm>
#include <limits>
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
        wires_(costs.link),
        ends_(static_cast<std::size_t>(schedule.stages)),
        head_(schedule.lists.size()),
        now_(schedule.lists.size()),
        reduced_(schedule.lists.size()) {
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
    if (shares())
      share_processors();
    else
      replay();
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

  /// A device that computes, or is about to.
  struct Running {
    Action action;
    double begin = 0.0;
    double work = 0.0;  ///< seconds of a whole processor that are left
  };

  [[nodiscard]] bool shares() const {
    return costs_.processors > 0 && costs_.processors < schedule_.devices();
  }
  /// How much longer work takes that all devices do at the same time.
  [[nodiscard]] double stretch() const {
    return shares() ? schedule_.devices() / costs_.processors : 1.0;
  }

  /// Each device has a processor: an action ends a fixed time after it begins.
  void replay() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t d = 0; d < head_.size(); ++d)
        while (step(d)) moved = true;
    }
  }

  /// Devices that compute at the same time slow each other down.
  void share_processors() {
    std::vector<std::optional<Running>> running(head_.size());
    for (double now = 0.0;;) {
      double next = std::numeric_limits<double>::infinity();
      for (std::size_t d = 0; d < running.size(); ++d)
        if (!process_runs(running, d)) next = std::min(next, take_up(d, now, running[d]));
      const auto busy = static_cast<double>(std::count_if(
          running.begin(), running.end(), [](const auto& r) { return r.has_value(); }));
      const double rate = std::min(1.0, costs_.processors / std::max(1.0, busy));
      for (const auto& r : running)
        if (r) next = std::min(next, now + r->work / rate);
      if (next == std::numeric_limits<double>::infinity()) return;
      for (std::size_t d = 0; d < running.size(); ++d) {
        if (!running[d]) continue;
        const bool ends = now + running[d]->work / rate <= next;
        running[d]->work -= (next - now) * rate;
        if (!ends) continue;
        finish(d, running[d]->action, running[d]->begin, next);
        running[d].reset();
      }
      now = next;
    }
  }

  [[nodiscard]] bool process_runs(const std::vector<std::optional<Running>>& running,
                                  std::size_t device) const {
    const auto each = static_cast<std::size_t>(costs_.devices_per_process);
    const std::size_t first = device / each * each;
    return std::any_of(
        running.begin() + static_cast<std::ptrdiff_t>(first),
        running.begin() + static_cast<std::ptrdiff_t>(std::min(first + each, running.size())),
        [](const auto& r) { return r.has_value(); });
  }

  /// Begins the next action of an idle device if its inputs are there. Otherwise returns when they
  /// will be; infinity if that is not known yet.
  double take_up(std::size_t device, double now, std::optional<Running>& running) {
    const std::vector<Action>& list = schedule_.lists[device];
    for (; head_[device] < list.size(); ++head_[device]) {
      const Action& action = list[head_[device]];
      if (pass(device, action)) continue;
      const std::optional<double> inputs = ready(action);
      if (!inputs) break;
      const double begin = std::max(*inputs, now_[device]);
      if (begin > now) return begin;
      running = Running{action, now, work(action)};
      break;
    }
    return std::numeric_limits<double>::infinity();
  }

  /// Notes an entry that takes a device no time; false if it is one that does.
  bool pass(std::size_t device, const Action& action) {
    if (is_compute(action.kind)) return false;
    if (action.kind == ActionKind::Update) return true;
    line_.devices[device].push_back({action, now_[device], now_[device]});
    if (action.kind == ActionKind::Reduce) reduce(device, action);
    return true;
  }

  void reduce(std::size_t device, const Action& action) {
    if (costs_.replicas < 2 || costs_.gradient_bytes.empty()) return;
    const auto stage = static_cast<std::size_t>(action.stage);
    const GradientSum all{costs_.gradient_bytes[stage]};
    double& reduced = reduced_[device];
    if (costs_.link.receiver_copies) {
      reduced = now_[device] +=
          stretch() *
          all_reduce_seconds(costs_.link, costs_.replicas, all.bytes, costs_.sum_bytes_per_second);
      return;
    }
    const std::vector<Interval>& line = line_.devices[device];
    const auto last = std::find_if(line.rbegin(), line.rend(), [&](const Interval& i) {
      return i.action.stage == action.stage && ends_micro_batch(i.action.kind);
    });
    const std::span<const GradientSum> sums =
        costs_.gradient_sums.empty() ? std::span(&all, 1)
                                     : std::span<const GradientSum>(costs_.gradient_sums[stage]);
    reduced = std::max(reduced, wires_.reduced(static_cast<std::int32_t>(device), sums, last->begin,
                                               last->end, costs_));
  }

  /// Seconds of an action, with those of the messages that its processor must copy.
  [[nodiscard]] double work(const Action& action) const {
    const auto stage = static_cast<std::size_t>(action.stage);
    double seconds = costs_.stages[stage].seconds(action.kind);
    if (!costs_.link.receiver_copies || costs_.message_bytes.empty()) return seconds;
    for (const std::size_t link : inputs_of(action)) {
      const bool sent = schedule_.device(links_[link].from) != schedule_.device(links_[link].to);
      if (sent) seconds += costs_.message_bytes[link] / costs_.link.bytes_per_second;
    }
    return seconds;
  }

  /// The links whose messages an action reads.
  [[nodiscard]] std::span<const std::size_t> inputs_of(const Action& a) const {
    const Ends& ends = ends_[static_cast<std::size_t>(a.stage)];
    if (a.kind == ActionKind::Forward) return ends.reads_activations;
    if (makes_input_gradient(a.kind)) return ends.reads_gradients;
    return {};
  }

  [[nodiscard]] std::size_t message(std::size_t link, const Action& a) const {
    return link * static_cast<std::size_t>(schedule_.micro_batches) +
           static_cast<std::size_t>(a.micro_batch);
  }

  /// When all inputs of the action have arrived; nothing while an input is not sent yet.
  [[nodiscard]] std::optional<double> ready(const Action& a) const {
    const Arrivals& arrivals = a.kind == ActionKind::Forward ? activation_ : gradient_;
    double time = 0.0;
    for (const std::size_t link : inputs_of(a)) {
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
    if (pass(device, action)) {
      ++head_[device];
      return true;
    }
    const std::optional<double> inputs = ready(action);
    if (!inputs) return false;
    const double begin = std::max(now_[device], *inputs);
    finish(device, action, begin, begin + work(action));
    return true;
  }

  void finish(std::size_t device, const Action& action, double begin, double end) {
    now_[device] = end;
    // What it takes to copy messages is waiting, not computing.
    const double copied =
        work(action) - costs_.stages[static_cast<std::size_t>(action.stage)].seconds(action.kind);
    line_.devices[device].push_back({action, std::min(end, begin + copied), end});
    ++head_[device];
    send(action, end);
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
    if (costs_.link.receiver_copies) return when + costs_.link.latency;
    const double bytes = costs_.message_bytes.empty() ? 0.0 : costs_.message_bytes[link];
    return wires_.arrival(devices.first, bytes, when);
  }

  /// Seconds until all processes of all replicas have answered each other.
  [[nodiscard]] double agreement() const {
    const std::int32_t devices = schedule_.devices() * costs_.replicas;
    return agreement_seconds(costs_.link, devices / costs_.devices_per_process);
  }

  /// All weights are updated together, when the last device has its gradients.
  void update_weights() {
    const double together = std::max(*std::max_element(now_.begin(), now_.end()),
                                     *std::max_element(reduced_.begin(), reduced_.end())) +
                            (costs_.agreements > 0 ? agreement() : 0.0);
    for (std::size_t d = 0; d < now_.size(); ++d) {
      double now = together;
      for (const Action& action : schedule_.lists[d]) {
        if (action.kind != ActionKind::Update) continue;
        const double begin = now;
        now += stretch() * costs_.stages[static_cast<std::size_t>(action.stage)].update;
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
        const double taken =
            costs_.devices_per_process > 1
                ? costs_.stages[static_cast<std::size_t>(i.action.stage)].seconds(i.action.kind)
                : i.end - i.begin;
        if (i.action.kind == ActionKind::Update) updates += taken;
        if (!is_compute(i.action.kind)) continue;
        if (!any) first = i.begin;
        any = true;
        last = i.end;
        busy += taken;
      }
      line_.busy.push_back(busy + updates);
      line_.idle.push_back(last - first - busy);
      line_.stash_bytes.push_back(most);
    }
    if (costs_.agreements > 1) line_.makespan += (costs_.agreements - 1) * agreement();
  }

  const Schedule& schedule_;
  std::span<const Link> links_;
  const Costs& costs_;
  Wires wires_;
  std::vector<Ends> ends_;  ///< by stage
  std::vector<std::size_t> head_;
  std::vector<double> now_;
  std::vector<double> reduced_;  ///< by device: the end of its last all-reduce
  Arrivals activation_;
  Arrivals gradient_;
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
    bound = std::max(bound, before + micro_batches * stage.work());
    before += split_backward ? stage.forward : stage.work();
  }
  return bound;
}

double lower_bound_seconds(const Schedule& schedule, std::span<const StageCost> stages) {
  std::vector<double> device(schedule.lists.size());
  for (std::size_t s = 0; s < stages.size(); ++s)
    device[static_cast<std::size_t>(schedule.device_of[s])] +=
        schedule.micro_batches * stages[s].work();
  return std::max(lower_bound_seconds(stages, schedule.micro_batches, true),
                  *std::max_element(device.begin(), device.end()));
}

}  // namespace millrace::pipeline
