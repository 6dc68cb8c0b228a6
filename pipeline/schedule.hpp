// SPDX-License-Identifier: Apache-2.0
//
// The schedule half of pipeline: who does what in which order, as plain data.
//
// A Schedule holds one list of actions a device. Generators write only what is computed; a pass
// adds the messages, the reduction of gradients and the update; a validator proves that the lists
// finish; a simulator replays them with real costs. Three stages, four micro-batches, 1F1B:
//
//   device 0  F0 F1 F2             B0    F3    B1       B2    B3
//   device 1     F0 F1       B0    F2    B1    F3    B2    B3
//   device 2        F0 B0 F1 B1 F2 B2 F3 B3
//
// What every schedule here keeps to:
// - per stage, forwards, input gradients and weight gradients each run in ascending micro-batch
//   order, so that gradients add up in one order whatever the schedule (law 1);
// - a device's list is a subsequence of one order of all events in which a message's two ends stand
//   side by side, so that the lists finish even when every send waits for its receive.
//
// The generators are in schedules/, one file each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/action.hpp"

namespace millrace::pipeline {

struct Schedule {
  std::string name;
  std::int32_t stages = 0;
  std::int32_t micro_batches = 0;
  std::vector<std::int32_t> device_of;     ///< by stage
  std::vector<std::vector<Action>> lists;  ///< by device

  [[nodiscard]] std::int32_t devices() const { return static_cast<std::int32_t>(lists.size()); }
  [[nodiscard]] std::int32_t device(std::int32_t stage) const {
    return device_of.at(static_cast<std::size_t>(stage));
  }
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Whether a schedule trains, and does not only evaluate.
[[nodiscard]] bool has_backward(const Schedule& schedule);
/// Whether its backward passes run as two actions.
[[nodiscard]] bool splits_backward(const Schedule& schedule);

/// One of the generated schedules and its size.
struct ScheduleRequest {
  std::string name = "1F1B";  ///< in the table of schedules/schedules.hpp; upper or lower case
  std::int32_t devices = 1;
  std::int32_t chunks = 1;  ///< stages a device, where the schedule places them itself
  std::int32_t micro_batches = 1;
  /// 1F1B: micro-batches that a stage takes in beyond those that keep the pipeline full, at most
  /// the same number again (which is Grouped): memory against the latency of links.
  std::int32_t extra_warmup = 0;
  /// Device of each stage, for schedules that leave it open; empty: stage s on device s.
  std::vector<std::int32_t> device_of;

  [[nodiscard]] std::int32_t stages() const {
    return device_of.empty() ? devices * chunks : static_cast<std::int32_t>(device_of.size());
  }
};

struct ScheduleRule;
/// The row of a schedule, by millrace's or PyTorch's name. Errors: Config, with all names.
[[nodiscard]] const ScheduleRule& schedule_rule(std::string_view name);
/// What is computed, in order. Errors: Config, with the nearest values that are possible.
[[nodiscard]] Schedule generate(const ScheduleRequest& request);
/// Forward passes only, as for validation: micro-batches flow through ascending stages.
[[nodiscard]] Schedule generate_forward(std::span<const std::int32_t> device_of,
                                        std::int32_t micro_batches);

/// A pair of stages, from < to, between which activations flow forward and gradients back. A value
/// goes from its producer straight to each stage that reads it; its gradient comes back from reader
/// to reader and adds up on the way, the last one first, so that some links have one direction
/// only.
struct Link {
  std::int32_t from = 0;
  std::int32_t to = 0;
  bool activations = true;
  bool gradients = true;
  friend auto operator<=>(const Link&, const Link&) = default;  // NOLINT(modernize-use-nullptr)
};
/// Each stage feeds the next.
[[nodiscard]] std::vector<Link> chain(std::int32_t stages);

/// Adds messages between stages on different devices, then a reduction after the last weight
/// gradient of each stage and the updates at the end. A receive stands where its device is when the
/// other one sends: early, so that it can be posted ahead. Links skip stages where values do.
[[nodiscard]] Schedule with_communication(const Schedule& compute, std::span<const Link> links);

/// Proves that a schedule is complete and ordered, that messages match, and that it finishes with
/// sends that wait for their receives. Errors: Config, naming device, entry and action. Takes
/// schedules with or without communication.
void validate(const Schedule& schedule, std::span<const Link> links);

/// One entry of a device's list.
struct Entry {
  std::int32_t device = 0;
  std::int32_t index = 0;
  friend auto operator<=>(const Entry&, const Entry&) = default;  // NOLINT(modernize-use-nullptr)
};
/// All entries in one order that can be carried out by a single process, the two ends of a message
/// side by side; by time, when a forward and the halves of a backward take equally long. Errors: as
/// validate.
[[nodiscard]] std::vector<Entry> event_order(const Schedule& schedule, std::span<const Link> links);

/// Most micro-batches that a stage holds between their forward and the end of their backward, by
/// stage.
[[nodiscard]] std::vector<std::int32_t> stash_peaks(const Schedule& schedule);
/// The same counted from the receive of the stage's inputs: slots that the executor needs.
[[nodiscard]] std::vector<std::int32_t> slot_peaks(const Schedule& schedule);
/// The same for schedules of forwards alone, where a micro-batch is held until those stages of the
/// same device that read from it have run.
[[nodiscard]] std::vector<std::int32_t> forward_slot_peaks(const Schedule& schedule,
                                                           std::span<const Link> links);
/// Most micro-batches between BackwardInput and BackwardWeight, by stage; 0 where backward is one.
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
