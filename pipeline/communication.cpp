// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "pipeline/replay.hpp"
#include "pipeline/schedule.hpp"

namespace millrace::pipeline {
namespace {

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

bool has_backward(const Schedule& schedule) {
  return contains(schedule, ActionKind::Backward) || splits_backward(schedule);
}

bool splits_backward(const Schedule& schedule) {
  return contains(schedule, ActionKind::BackwardInput);
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
