// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "pipeline/schedule/replay.hpp"

namespace millrace::pipeline {
namespace {

/// Where stages lie if no mapping is given.
std::vector<std::int32_t> usual_devices(const ScheduleRequest& r, StagePlacement placement) {
  std::vector<std::int32_t> device_of;
  for (std::int32_t s = 0; s < r.devices * r.chunks; ++s) {
    const bool up = placement == StagePlacement::V && s >= r.devices;
    device_of.push_back(up ? 2 * r.devices - 1 - s : s % r.devices);
  }
  return device_of;
}

void check(const ScheduleRequest& r, const ScheduleRule& rule) {
  const auto at_least = [](std::int32_t value, std::int32_t least, std::string_view what) {
    if (value < least)
      fail(ErrorKind::Config, "schedule: {} {}; at least {} {} required", value, what, least,
           least == 1 ? "is" : "are");
  };
  at_least(r.devices, 1, "devices");
  at_least(r.chunks, 1, "chunks");
  at_least(r.micro_batches, 1, "micro-batches");
  at_least(r.extra_warmup, 0, "extra micro-batches of warm-up");
  // Plans name the mapping, and so do the runs that were made with them.
  if (rule.placement != StagePlacement::Free && !r.device_of.empty() &&
      r.device_of != usual_devices(r, rule.placement))
    fail(ErrorKind::Config, "schedule {} maps its stages to devices itself; remove the mapping",
         rule.name);
  if (rule.placement == StagePlacement::V && r.chunks != 2)
    fail(ErrorKind::Config, "schedule {} has 2 chunks per device, not {}", rule.name, r.chunks);
  if (rule.placement == StagePlacement::Free && r.chunks > 1)
    fail(ErrorKind::Config,
         "schedule {} has 1 stage per device, not {}; use Looped or ZB-V, or a device mapping",
         rule.name, r.chunks);
  if (r.extra_warmup > 0 && !rule.takes_warmup)
    fail(ErrorKind::Config, "schedule {} has a fixed warm-up; only 1F1B and Interleaved take more",
         rule.name);
  for (const std::int32_t device : r.device_of)
    if (device < 0 || device >= r.devices)
      fail(ErrorKind::Config, "the device mapping has device {}; devices are 0 to {}", device,
           r.devices - 1);
}

/// Merges the lists of all stages of a device. Their orders cannot deadlock, so any action that is
/// ready may come next.
void merge(Schedule& schedule, const std::vector<ActionList>& by_stage) {
  const std::vector<Link> links = chain(schedule.stages);
  const bool done = walk(by_stage, schedule.device_of, schedule.stages, schedule.micro_batches,
                         links, [&](std::size_t stage, const Action& action) {
                           const auto device = static_cast<std::size_t>(schedule.device_of[stage]);
                           schedule.lists[device].push_back(action);
                         });
  MILLRACE_ASSERT(done);
}

Schedule empty_schedule(std::string_view name, std::vector<std::int32_t> device_of,
                        std::int32_t devices, std::int32_t micro_batches) {
  Schedule schedule;
  schedule.name = name;
  schedule.stages = static_cast<std::int32_t>(device_of.size());
  schedule.micro_batches = micro_batches;
  schedule.device_of = std::move(device_of);
  schedule.lists.resize(static_cast<std::size_t>(devices));
  return schedule;
}

/// Appends the two ends of every message that `action` sends. Both are appended at once, so they
/// are adjacent in the order of all events.
void append_messages(Schedule& schedule, std::span<const Link> links, const Action& action) {
  const auto send = [&](ActionKind kind, std::int32_t to) {
    if (schedule.device(to) == schedule.device(action.stage)) return;
    const Action message{kind, action.stage, action.micro_batch, to};
    schedule.lists[static_cast<std::size_t>(schedule.device(action.stage))].push_back(message);
    schedule.lists[static_cast<std::size_t>(schedule.device(to))].push_back(counterpart(message));
  };
  for (const Link& link : links) {
    if (link.activations && action.kind == ActionKind::Forward && link.from == action.stage)
      send(ActionKind::SendActivation, link.to);
    if (link.gradients && makes_input_gradient(action.kind) && link.to == action.stage)
      send(ActionKind::SendGradient, link.from);
  }
}

bool contains(const Schedule& schedule, ActionKind kind) {
  return std::any_of(schedule.lists.begin(), schedule.lists.end(), [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), [&](const Action& a) { return a.kind == kind; });
  });
}

bool is_last_of_stage(const Schedule& schedule, const Action& action) {
  return ends_micro_batch(action.kind) && action.micro_batch == schedule.micro_batches - 1;
}

}  // namespace

Schedule generate(const ScheduleRequest& r) {
  const ScheduleRule& rule = schedule_rule(r.name);
  check(r, rule);
  Schedule schedule = empty_schedule(
      rule.name, r.device_of.empty() ? usual_devices(r, rule.placement) : r.device_of, r.devices,
      r.micro_batches);
  std::vector<ActionList> lists = rule.lists(r);
  for (ActionList& list : lists)
    std::erase_if(list, [&](const Action& a) { return a.micro_batch >= r.micro_batches; });
  if (rule.placement == StagePlacement::Free)
    merge(schedule, lists);
  else
    schedule.lists = std::move(lists);
  return schedule;
}

Schedule generate_forward(std::span<const std::int32_t> device_of, std::int32_t micro_batches) {
  const std::int32_t devices = 1 + *std::max_element(device_of.begin(), device_of.end());
  Schedule schedule =
      empty_schedule("Forward", std::vector<std::int32_t>(device_of.begin(), device_of.end()),
                     devices, micro_batches);
  std::vector<ActionList> by_stage(device_of.size());
  for (std::int32_t s = 0; s < schedule.stages; ++s)
    for (std::int32_t m = 0; m < micro_batches; ++m)
      Writer{by_stage[static_cast<std::size_t>(s)]}.forward(s, m);
  merge(schedule, by_stage);
  return schedule;
}

std::vector<Link> chain(std::int32_t stages) {
  std::vector<Link> links;
  for (std::int32_t s = 0; s + 1 < stages; ++s) links.push_back({s, s + 1});
  return links;
}

bool has_backward(const Schedule& schedule) {
  return contains(schedule, ActionKind::Backward) || splits_backward(schedule);
}

bool splits_backward(const Schedule& schedule) {
  return contains(schedule, ActionKind::BackwardInput);
}

Schedule without_communication(Schedule schedule) {
  for (std::vector<Action>& list : schedule.lists)
    std::erase_if(list, [](const Action& a) { return !is_compute(a.kind); });
  return schedule;
}

Schedule with_communication(const Schedule& compute, std::span<const Link> links) {
  Schedule result = compute;
  for (std::vector<Action>& list : result.lists) list.clear();
  std::vector<std::int32_t> devices(compute.lists.size());
  std::iota(devices.begin(), devices.end(), 0);
  std::vector<Action> updates;
  const bool done = walk(compute.lists, devices, compute.stages, compute.micro_batches, links,
                         [&](std::size_t device, const Action& action) {
                           result.lists[device].push_back(action);
                           append_messages(result, links, action);
                           if (!is_last_of_stage(compute, action)) return;
                           result.lists[device].push_back({ActionKind::Reduce, action.stage});
                           updates.push_back({ActionKind::Update, action.stage});
                         });
  if (!done)
    fail(ErrorKind::Config, "schedule {}: deadlock: its devices wait for each other", compute.name);
  std::sort(updates.begin(), updates.end());
  for (const Action& update : updates)
    result.lists[static_cast<std::size_t>(result.device(update.stage))].push_back(update);
  return result;
}

}  // namespace millrace::pipeline
