// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/error.hpp"
#include "pipeline/schedule/replay.hpp"
#include "pipeline/schedule/schedule.hpp"

namespace millrace::pipeline {
namespace {

/// Position of an action. Errors number entries from 1.
struct Spot {
  std::size_t device;
  std::size_t entry;
};

template <class... Args>
[[noreturn]] void reject(const Spot& spot, const Action& action, fmt::format_string<Args...> why,
                         Args&&... args) {
  fail(ErrorKind::Config, "schedule: device {}, entry {}, {}: {}", spot.device, spot.entry + 1,
       to_string(action), fmt::format(why, std::forward<Args>(args)...));
}

template <class Visit>
void for_each_entry(const Schedule& schedule, Visit&& visit) {
  for (std::size_t d = 0; d < schedule.lists.size(); ++d)
    for (std::size_t i = 0; i < schedule.lists[d].size(); ++i)
      visit(Spot{d, i}, schedule.lists[d][i]);
}

void check_frame(const Schedule& s) {
  if (s.stages < 1 || s.micro_batches < 1 || std::ssize(s.device_of) != s.stages)
    fail(ErrorKind::Config, "schedule: {} stages, {} micro-batches and a mapping of {} stages",
         s.stages, s.micro_batches, s.device_of.size());
  for (const std::int32_t device : s.device_of)
    if (device < 0 || device >= s.devices())
      fail(ErrorKind::Config, "schedule: invalid device {} of a stage; there are {} devices",
           device, s.devices());
}

void check_entry(const Schedule& s, const Spot& spot, const Action& a) {
  if (a.stage < 0 || a.stage >= s.stages) reject(spot, a, "stages are 0 to {}", s.stages - 1);
  if (s.device(a.stage) != static_cast<std::int32_t>(spot.device))
    reject(spot, a, "stage {} is on device {}", a.stage, s.device(a.stage));
  const bool of_step = a.kind == ActionKind::Reduce || a.kind == ActionKind::Update;
  if (!of_step && (a.micro_batch < 0 || a.micro_batch >= s.micro_batches))
    reject(spot, a, "micro-batches are 0 to {}", s.micro_batches - 1);
}

/// The actions of a complete schedule of this kind.
class Contents {
 public:
  Contents(const Schedule& schedule, std::span<const Link> links) {
    const bool backward = has_backward(schedule);
    const bool split = splits_backward(schedule);
    bool communication = false;
    for_each_entry(schedule,
                   [&](const Spot&, const Action& a) { communication |= !is_compute(a.kind); });
    for (std::int32_t s = 0; s < schedule.stages; ++s) {
      for (std::int32_t m = 0; m < schedule.micro_batches; ++m) {
        expect({ActionKind::Forward, s, m});
        if (split) expect({ActionKind::BackwardInput, s, m});
        if (split) expect({ActionKind::BackwardWeight, s, m});
        if (backward && !split) expect({ActionKind::Backward, s, m});
      }
      if (communication && backward) expect({ActionKind::Reduce, s});
      if (communication && backward) expect({ActionKind::Update, s});
    }
    for (const Link& link : links) {
      if (!communication || schedule.device(link.from) == schedule.device(link.to)) continue;
      for (std::int32_t m = 0; m < schedule.micro_batches; ++m) {
        if (link.activations) expect_message({ActionKind::SendActivation, link.from, m, link.to});
        if (link.gradients && backward)
          expect_message({ActionKind::SendGradient, link.to, m, link.from});
      }
    }
    std::ranges::sort(expected_);
    seen_.resize(expected_.size());
  }

  void take(const Spot& spot, const Action& action) {
    const auto at =
        static_cast<std::size_t>(std::ranges::lower_bound(expected_, action) - expected_.begin());
    if (at == expected_.size() || expected_[at] != action)
      reject(spot, action, "does not belong here");
    if (seen_[at]) reject(spot, action, "appears twice");
    seen_[at] = true;
  }

  void require_all() const {
    const auto missing = std::ranges::count(seen_, false);
    if (missing == 0) return;
    const auto first = static_cast<std::size_t>(std::ranges::find(seen_, false) - seen_.begin());
    fail(ErrorKind::Config, "schedule: {} is missing{}", to_string(expected_[first]),
         missing > 1 ? fmt::format(", and {} more", missing - 1) : "");
  }

 private:
  void expect(const Action& action) { expected_.push_back(action); }
  void expect_message(const Action& send) {
    expect(send);
    expect(counterpart(send));
  }
  std::vector<Action> expected_;  ///< in order
  std::vector<bool> seen_;
};

/// Per stage, each kind is in ascending micro-batch order, with all-reduce and update at the end.
class Order {
 public:
  void take(const Spot& spot, const Action& a) {
    if (ended_.contains(a.stage) && a.kind != ActionKind::Update && !is_send(a.kind))
      reject(spot, a, "comes after the stage's gradients were reduced");
    if (a.kind == ActionKind::Reduce) ended_.insert(a.stage);
    if (a.kind == ActionKind::Update && !ended_.contains(a.stage))
      reject(spot, a, "comes before the stage's gradients are reduced");
    if (!is_compute(a.kind)) return;
    const auto [last, first_of_kind] = last_.try_emplace({a.stage, a.kind}, a.micro_batch);
    if (!first_of_kind && a.micro_batch < last->second)
      reject(spot, a, "comes after micro-batch {}: each kind must run in ascending order",
             last->second);
    last->second = a.micro_batch;
  }

 private:
  std::map<std::pair<std::int32_t, ActionKind>, std::int32_t> last_;
  std::set<std::int32_t> ended_;
};

/// Runs the lists. A send waits until its receive is at the head of its list.
class Rendezvous {
 public:
  Rendezvous(const Schedule& schedule, std::span<const Link> links)
      : schedule_(schedule),
        readiness_(schedule.stages, schedule.micro_batches, links),
        linked_(static_cast<std::size_t>(schedule.stages)),
        head_(schedule.lists.size()),
        now_(schedule.lists.size()) {
    for_each_entry(schedule, [&](const Spot&, const Action& a) { messages_ |= is_send(a.kind); });
    for (const Link& link : links) {
      linked_[static_cast<std::size_t>(link.from)].push_back(schedule.device(link.to));
      linked_[static_cast<std::size_t>(link.to)].push_back(schedule.device(link.from));
    }
  }

  std::vector<Entry> run() {
    for (std::size_t d = 0; d < head_.size(); ++d) wake(d);
    while (!awake_.empty()) step(awake_.extract(awake_.begin()).value().second);
    for (std::size_t d = 0; d < head_.size(); ++d)
      if (head_[d] < schedule_.lists[d].size())
        reject({d, head_[d]}, schedule_.lists[d][head_[d]], "can never run: {}", heads());
    return std::move(order_);
  }

 private:
  [[nodiscard]] const Action* at_head(std::size_t device) const {
    const std::vector<Action>& list = schedule_.lists[device];
    return head_[device] < list.size() ? &list[head_[device]] : nullptr;
  }

  /// The device may have become able to run an action. The earliest of these devices is next.
  void wake(std::size_t device) { awake_.emplace(now_[device], device); }

  void advance(std::size_t device) {
    order_.push_back({static_cast<std::int32_t>(device), static_cast<std::int32_t>(head_[device])});
    ++head_[device];
    wake(device);
    if (const Action* next = at_head(device); next != nullptr && is_receive(next->kind))
      wake(static_cast<std::size_t>(schedule_.device(next->peer)));
  }

  /// Runs an action of the device if it can. Otherwise whatever makes it able to wakes it.
  void step(std::size_t device) {
    const Action* action = at_head(device);
    if (action == nullptr || is_receive(action->kind)) return;  // a send moves both
    if (is_send(action->kind)) return deliver(device, *action);
    if (is_compute(action->kind)) {
      const std::optional<std::int32_t> arrived = last_arrival(*action);
      if (!arrived || !readiness_.is_ready(*action)) return;
      readiness_.finish(*action);
      now_[device] =
          std::max(now_[device], *arrived) + (action->kind == ActionKind::Backward ? 2 : 1);
      for (const std::int32_t other : linked_[static_cast<std::size_t>(action->stage)])
        wake(static_cast<std::size_t>(other));
    }
    advance(device);
  }

  void deliver(std::size_t device, const Action& send) {
    const bool activation = send.kind == ActionKind::SendActivation;
    const ActionKind made = activation ? ActionKind::Forward : ActionKind::BackwardInput;
    if (!readiness_.is_done(made, send.stage, send.micro_batch)) return;
    const auto other = static_cast<std::size_t>(schedule_.device(send.peer));
    const Action* receive = at_head(other);
    if (receive == nullptr || *receive != counterpart(send)) return;
    received_.emplace(*receive, now_[device]);
    advance(device);
    advance(other);
  }

  /// When the last message arrived that a compute action reads. Nothing while one is missing.
  [[nodiscard]] std::optional<std::int32_t> last_arrival(const Action& a) const {
    std::int32_t time = 0;
    if (!messages_ || a.kind == ActionKind::BackwardWeight) return time;
    const bool forward = a.kind == ActionKind::Forward;
    const ActionKind kind = forward ? ActionKind::ReceiveActivation : ActionKind::ReceiveGradient;
    for (const std::int32_t peer :
         forward ? readiness_.before(a.stage) : readiness_.after(a.stage)) {
      if (schedule_.device(peer) == schedule_.device(a.stage)) continue;
      const auto found = received_.find({kind, a.stage, a.micro_batch, peer});
      if (found == received_.end()) return std::nullopt;
      time = std::max(time, found->second);
    }
    return time;
  }

  [[nodiscard]] std::string heads() const {
    std::string text = "the devices wait at";
    for (std::size_t d = 0; d < head_.size(); ++d) {
      const Action* action = at_head(d);
      text += fmt::format(" {}", action != nullptr ? to_string(*action) : "the end");
    }
    return text;
  }

  const Schedule& schedule_;
  Readiness readiness_;
  std::vector<std::vector<std::int32_t>> linked_;  ///< by stage, the devices at its links
  std::vector<std::size_t> head_;
  std::vector<std::int32_t> now_;  ///< by device, in thirds of a stage's work on a micro-batch
  std::set<std::pair<std::int32_t, std::size_t>> awake_;
  std::map<Action, std::int32_t> received_;  ///< with the time
  std::vector<Entry> order_;
  bool messages_ = false;
};

/// Maximum number of entries between `begins` and `ends` of the same stage, by stage.
template <class Begins, class Ends>
std::vector<std::int32_t> peaks(const Schedule& schedule, Begins&& begins, Ends&& ends) {
  std::vector<std::int32_t> held(static_cast<std::size_t>(schedule.stages));
  std::vector<std::int32_t> most = held;
  for_each_entry(schedule, [&](const Spot&, const Action& a) {
    const auto stage = static_cast<std::size_t>(a.stage);
    if (begins(a)) most[stage] = std::max(most[stage], ++held[stage]);
    if (ends(a)) --held[stage];
  });
  return most;
}

}  // namespace

void validate(const Schedule& schedule, std::span<const Link> links) {
  check_frame(schedule);
  Contents contents(schedule, links);
  Order order;
  for_each_entry(schedule, [&](const Spot& spot, const Action& action) {
    check_entry(schedule, spot, action);
    contents.take(spot, action);
    order.take(spot, action);
  });
  contents.require_all();
  (void)Rendezvous(schedule, links).run();
}

std::vector<Entry> event_order(const Schedule& schedule, std::span<const Link> links) {
  return Rendezvous(schedule, links).run();
}

std::vector<std::int32_t> stash_peaks(const Schedule& schedule) {
  return peaks(
      schedule, [](const Action& a) { return a.kind == ActionKind::Forward; },
      [](const Action& a) { return ends_micro_batch(a.kind); });
}

std::vector<std::int32_t> weight_slot_peaks(const Schedule& schedule) {
  return peaks(
      schedule, [](const Action& a) { return a.kind == ActionKind::BackwardInput; },
      [](const Action& a) { return a.kind == ActionKind::BackwardWeight; });
}

std::vector<std::int32_t> forward_slot_peaks(const Schedule& schedule,
                                             std::span<const Link> links) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  std::vector<std::int32_t> readers(stages, 1);  // itself
  std::vector<std::vector<std::size_t>> makers(stages);
  for (const Link& link : links) {
    if (!link.activations || schedule.device(link.from) != schedule.device(link.to)) continue;
    ++readers[static_cast<std::size_t>(link.from)];
    makers[static_cast<std::size_t>(link.to)].push_back(static_cast<std::size_t>(link.from));
  }
  std::map<std::pair<std::size_t, std::int32_t>, std::int32_t> missing;  // stage, micro-batch
  std::vector<std::int32_t> held(stages);
  std::vector<std::int32_t> most(stages);
  const auto enter = [&](std::size_t stage, std::int32_t m) {
    if (missing.try_emplace({stage, m}, readers[stage]).second)
      most[stage] = std::max(most[stage], ++held[stage]);
  };
  const auto read = [&](std::size_t stage, std::int32_t m) {
    if (--missing.at({stage, m}) == 0) --held[stage];
  };
  for_each_entry(schedule, [&](const Spot&, const Action& a) {
    const auto stage = static_cast<std::size_t>(a.stage);
    if (a.kind == ActionKind::ReceiveActivation) enter(stage, a.micro_batch);
    if (a.kind != ActionKind::Forward) return;
    enter(stage, a.micro_batch);
    read(stage, a.micro_batch);
    for (const std::size_t maker : makers[stage]) read(maker, a.micro_batch);
  });
  return most;
}

std::vector<std::int32_t> slot_peaks(const Schedule& schedule) {
  std::set<std::pair<std::int32_t, std::int32_t>> taken;  // stage, micro-batch
  return peaks(
      schedule,
      [&](const Action& a) {
        const bool enters =
            a.kind == ActionKind::Forward || a.kind == ActionKind::ReceiveActivation;
        return enters && taken.insert({a.stage, a.micro_batch}).second;
      },
      [](const Action& a) { return ends_micro_batch(a.kind); });
}

}  // namespace millrace::pipeline
