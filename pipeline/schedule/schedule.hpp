// SPDX-License-Identifier: Apache-2.0
//
// The schedule half of pipeline: the order of all actions of a step, as plain data.
//
// A Schedule has one list of actions per device. Generators write only compute actions. A second
// pass adds messages, the all-reduce of gradients and the update. A validator proves that the lists
// finish. A simulator replays them with given costs. Three stages, four micro-batches, 1F1B:
//
//   device 0  F0 F1 F2             B0    F3    B1       B2    B3
//   device 1     F0 F1       B0    F2    B1    F3    B2    B3
//   device 2        F0 B0 F1 B1 F2 B2 F3 B3
//
// Every schedule here has two properties:
// - per stage, forwards, input gradients and weight gradients each run in ascending micro-batch
//   order, so that gradients are added in the same order under every schedule;
// - there is one order of all events of all devices in which the two ends of each message are
//   adjacent, and each device's list is a subsequence of it. So the lists finish even if every send
//   waits for its receive.
//
// generators/           the schedules and their table
// generate              a table's row becomes a Schedule; adds messages, all-reduces, updates
// validate              the proof, the order of events, and how many micro-batches are in flight
// text                  actions as text; CSV files, ours and PyTorch's
// simulate, wires       time, bubble and waiting, from the costs of all actions
// list_schedule         builds lists by cost; auto_schedule chooses the best for a memory limit
// replay                which actions are ready; shared by the above
// render, render_svg    drawings
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/layout.hpp"

namespace millrace::pipeline {

[[nodiscard]] constexpr bool is_compute(ActionKind kind) {
  return kind <= ActionKind::BackwardWeight;
}
[[nodiscard]] constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::SendActivation || kind == ActionKind::SendGradient;
}
[[nodiscard]] constexpr bool is_receive(ActionKind kind) {
  return kind == ActionKind::ReceiveActivation || kind == ActionKind::ReceiveGradient;
}
/// Whether the action computes the gradient that the previous stage waits for.
[[nodiscard]] constexpr bool makes_input_gradient(ActionKind kind) {
  return kind == ActionKind::Backward || kind == ActionKind::BackwardInput;
}
/// Whether the stage needs nothing of the micro-batch after the action.
[[nodiscard]] constexpr bool ends_micro_batch(ActionKind kind) {
  return kind == ActionKind::Backward || kind == ActionKind::BackwardWeight;
}
/// The same message seen from its other end.
[[nodiscard]] Action counterpart(const Action& message);

/// Stage, kind, micro-batch: "2F0", "2B0", "2I0", "2W0"; for messages with the stage at the other
/// end "2SEND_F0>3", "3RECV_F0<2", "3SEND_B0>2", "2RECV_B0<3"; "2REDUCE", "2UPDATE".
[[nodiscard]] std::string to_string(const Action& action);
/// The inverse. A message without its other end means the neighboring stage. Errors: Config, with
/// `where` and the text.
[[nodiscard]] Action parse_action(std::string_view text, std::string_view where);

/// Whether a schedule trains (false: it only evaluates).
[[nodiscard]] bool has_backward(const Schedule& schedule);
/// Whether its backward pass is two actions.
[[nodiscard]] bool splits_backward(const Schedule& schedule);

/// One of the generated schedules and its size.
struct ScheduleRequest {
  std::string name = "1F1B";  ///< in the table of generators/rules.hpp; upper or lower case
  std::int32_t devices = 1;
  std::int32_t chunks = 1;  ///< stages a device, where the schedule places them itself
  std::int32_t micro_batches = 1;
  /// 1F1B: additional micro-batches in a stage's warm-up, which cost memory and hide the latency of
  /// links. Limited to twice the normal warm-up in total, which is Grouped.
  std::int32_t extra_warmup = 0;
  /// Device of each stage, for schedules that do not fix it; empty: stage s on device s.
  std::vector<std::int32_t> device_of;

  [[nodiscard]] std::int32_t stages() const {
    return device_of.empty() ? devices * chunks : static_cast<std::int32_t>(device_of.size());
  }
};

struct ScheduleRule;
/// The row of a schedule, by millrace's or PyTorch's name. Errors: Config, with all names.
[[nodiscard]] const ScheduleRule& schedule_rule(std::string_view name);
/// The compute actions in order. Errors: Config if values of the request do not go together.
[[nodiscard]] Schedule generate(const ScheduleRequest& request);
/// Forward passes only, for validation.
[[nodiscard]] Schedule generate_forward(std::span<const std::int32_t> device_of,
                                        std::int32_t micro_batches);

/// A pair of stages, from < to, with activations going forward and gradients coming back. A value
/// goes directly from its producer to each stage that reads it. Its gradient comes back from reader
/// to reader, last reader first, and is summed on the way. So some links have one direction only.
struct Link {
  std::int32_t from = 0;
  std::int32_t to = 0;
  bool activations = true;
  bool gradients = true;
  friend auto operator<=>(const Link&, const Link&) = default;  // NOLINT(modernize-use-nullptr)
  friend bool operator==(const Link&, const Link&) = default;   // nvcc does not imply it
};
/// Each stage feeds the next.
[[nodiscard]] std::vector<Link> chain(std::int32_t stages);

/// Adds messages between stages on different devices, an all-reduce after the last weight gradient
/// of each stage, and the updates at the end. A receive stands where its device is when the other
/// one sends: early, so that it can be posted ahead.
[[nodiscard]] Schedule with_communication(const Schedule& compute, std::span<const Link> links);

/// The compute actions alone: what with_communication added is removed.
[[nodiscard]] Schedule without_communication(Schedule schedule);

/// Proves that a schedule is complete and ordered, that messages match, and that it finishes even
/// if sends wait for their receives. Accepts schedules with or without communication. Errors:
/// Config, with device, entry and action.
void validate(const Schedule& schedule, std::span<const Link> links);

/// All entries in one order that a single process can execute, with the two ends of a message
/// adjacent. Sorted by time if forward, input gradient and weight gradient take equally long.
/// Errors: as validate.
[[nodiscard]] std::vector<Entry> event_order(const Schedule& schedule, std::span<const Link> links);

/// Maximum number of micro-batches between their forward and the end of their backward, by stage.
[[nodiscard]] std::vector<std::int32_t> stash_peaks(const Schedule& schedule);
/// The same, counted from the receive of the stage's inputs: the slots that the executor needs.
[[nodiscard]] std::vector<std::int32_t> slot_peaks(const Schedule& schedule);
/// The same for forward-only schedules, where a micro-batch is held until the stages of the same
/// device that read from it have run.
[[nodiscard]] std::vector<std::int32_t> forward_slot_peaks(const Schedule& schedule,
                                                           std::span<const Link> links);
/// Maximum number of micro-batches between BackwardInput and BackwardWeight, by stage; 0 if
/// backward is one action.
[[nodiscard]] std::vector<std::int32_t> weight_slot_peaks(const Schedule& schedule);

/// Each whole backward becomes its input gradient and its weight gradient.
void split_backwards(Schedule& schedule);
/// Of a schedule that only computes: lets the k-th pass of each kind and stage be that of
/// micro-batch k, the order in which all schedules here take them; true if that changed anything.
/// PyTorch's LoopedBFS has backwards in descending order, its 1F1B counts from 1 on the last rank.
bool number_in_order(Schedule& schedule);

/// A row a device: comma-separated actions.
[[nodiscard]] std::string to_csv(const Schedule& schedule);
/// Takes compute actions alone, too, and the files that PyTorch's schedules write (`_dump_csv`):
/// their waiting and sharding is passed over, and where some backwards are split, all are.
/// Errors: Config, with `where`, row and column.
[[nodiscard]] Schedule parse_schedule(std::string_view csv, std::string_view where);

}  // namespace millrace::pipeline
