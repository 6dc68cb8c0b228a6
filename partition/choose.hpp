// SPDX-License-Identifier: Apache-2.0
//
// Deciding the layout of a run: this is the one place that does. What the run's LayoutRequest fixes
// stays; what it leaves open (cuts, schedule, stages of a device, recomputation) is chosen, within
// the memory of a device where there is a limit. Trainings, plans, measurements and the advice of a
// refusal all call it, and differ only in the Sizer that tells how much memory a layout takes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "partition/layout.hpp"
#include "partition/plan.hpp"
#include "run/complete.hpp"
#include "run/run.hpp"

namespace millrace::partition {

using run::Notices;
using run::Run;

/// Tells what a layout needs. Called for runs whose ranks and threads are known, and only where
/// there is a limit.
struct Sizer {
  std::function<StageSizer(const Run&)> search;  ///< for thousands of stages: never too little
  std::function<StageSizer(const Run&)> exact;   ///< for those that are chosen
  std::function<std::int64_t(const Run&)> rest;  ///< of a device besides its stages, assumed
  /// Measures what the devices of a whole layout need; empty: what is assumed holds.
  std::function<DeviceUse(const Run&)> measure = {};
  std::int64_t varies = 0;  ///< by how much that differs from one measurement to the next
};

/// What another process decided that fields of a run do not say.
struct Decided {
  pipeline::Schedule actions;                      ///< compute alone
  std::vector<pipeline::ChosenSegments> segments;  ///< what each stage repeats; empty: not chosen
  bool cut_by_memory = false;
  std::vector<std::string> splits = {};  ///< of a Spread, whose order the actions are; and its
  std::vector<std::int32_t> shares = {};
};

/// What is known besides the run.
struct LayoutFacts {
  run::MachineFacts machine;
  std::optional<Plan> plan = {};                   ///< the one in the file of `plan`
  std::optional<pipeline::Schedule> actions = {};  ///< compute of the `pipeline-schedule-file`
  std::optional<Decided> decided = {};             ///< nothing is chosen then
  /// Device, link, processors and costs other than those of the estimates for this machine.
  std::function<void(PlanRequest&)> rates = {};
};

/// From what the stages and the schedule of a run were made.
struct Layout {
  pipeline::ScheduleRequest request;
  Room room;        ///< for the stages of a device
  Notices notices;  ///< what was chosen; empty: nothing was open
};

struct Choice {
  Run run;  ///< with a layout; what it left open is kept in `asked_layout`
  Layout layout;
  Notices notices = {};  ///< one line each, to print before those of the layout
};

/// The run with the fastest layout of those that its `layout` admits and that fit; if none fits,
/// the one that needs the least. `run` has its model, batch and precision. Where memory is
/// measured, what a device needs besides its stages is measured again for the stages that were
/// found, until it stays the same. Errors: Config and Usage, with the possible values; for missing
/// splits with a list of all cuts and their costs.
[[nodiscard]] Choice choose(const Graph& graph, Run run, const LayoutFacts& facts,
                            const Sizer& sizer);

/// Whether the batch of a run may change, and with it what it computes.
enum class Batch { Open, Fixed };
/// The change of a run that fits into its `device_memory` and costs the least, in words: other
/// cuts, fewer micro-batches in flight, repeated forwards, stages that wait for each other, or a
/// smaller batch, which comes last because it changes the result, and not where that is Fixed. If
/// nothing fits, what that says. `sizer` measures.
[[nodiscard]] std::string nearest_fit(const Graph& graph, const Run& run, const Sizer& sizer,
                                      Batch batch = Batch::Open);

/// How a training compiles its stages. The direction of the backward pass follows from the
/// schedule.
[[nodiscard]] pipeline::ProgramOptions training_program(const Run& run);
/// The request from which plans of a run are made.
[[nodiscard]] PlanRequest plan_request(const Run& run, const pipeline::ScheduleRequest& schedule);

/// How the notices of what was chosen begin.
inline constexpr std::string_view kAutomaticSplits = "Automatic splits: ";
inline constexpr std::string_view kAutomaticSchedule = "Automatic schedule: ";
/// Tells which cuts, or which schedule, were chosen.
[[nodiscard]] std::string splits_notice(std::span<const std::string> splits);
[[nodiscard]] std::string schedule_notice(std::string_view schedule,
                                          std::span<const std::string> splits);

}  // namespace millrace::partition
