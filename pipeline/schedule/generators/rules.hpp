// SPDX-License-Identifier: Apache-2.0
//
// The schedules that millrace generates: a function each, and a row each in rules.cpp.
//
// A row names the schedule, says which stages a device holds, and points to the function that lists
// what is computed. Everything else follows from those lists and is the same for all schedules:
// messages, all-reduces, the proof, the simulation, the memory (../schedule.hpp). To add one, write
// its function, add its row and its golden numbers (tests/pipeline/schedule_test.cpp); the tests of
// all sizes and the fuzzer take every row of the table.
//
//   one_f_one_b     a stage on each device: Sequential, GPipe, 1F1B, Grouped, ZB-H1; or several
//                   chunks on each device, in rounds: Looped, Looped-ZB
//   zb_v            a V of stages: ZB-V, DualPipeV
//   building_block  a V of stages with controllable memory: V-Min, V-Half, V-ZB
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "pipeline/schedule/schedule.hpp"

namespace millrace::pipeline {

using ActionList = std::vector<Action>;

/// Which stages a device holds, and so what a schedule lists.
enum class StagePlacement {
  Free,  ///< stage s on device s, or as the request maps them; a list per stage, merged by time
  Loop,  ///< stage s on device s mod devices, any number of chunks; a list per device
  V,     ///< stages d and 2 * devices - 1 - d on device d; a list per device
};

struct ScheduleRule {
  std::string_view name;
  std::string_view torch_name = {};  ///< of PyTorch's class for the same schedule, or empty
  StagePlacement placement = StagePlacement::Free;
  bool splits_backward = false;  ///< into input gradients and weight gradients
  bool takes_warmup = false;     ///< ScheduleRequest::extra_warmup
  /// The lists; micro-batches beyond those of the request are dropped from them, so that a schedule
  /// may count in whole rounds.
  std::vector<ActionList> (*lists)(const ScheduleRequest& request) = nullptr;
};

/// All schedules, in the order in which messages list them.
[[nodiscard]] std::span<const ScheduleRule> schedule_rules();

/// The rule by which the stages of a schedule are placed: that of its name, and for `auto`, whose
/// actions are ordered once its stages are known, that of 1F1B. Errors: as schedule_rule().
[[nodiscard]] const ScheduleRule& placing_rule(std::string_view name);

/// Appends actions to a list, short to read.
struct Writer {
  ActionList& list;
  void forward(std::int32_t stage, std::int32_t m) {
    list.push_back({ActionKind::Forward, stage, m});
  }
  void backward(std::int32_t stage, std::int32_t m) {
    list.push_back({ActionKind::Backward, stage, m});
  }
  void input(std::int32_t stage, std::int32_t m) {
    list.push_back({ActionKind::BackwardInput, stage, m});
  }
  void weight(std::int32_t stage, std::int32_t m) {
    list.push_back({ActionKind::BackwardWeight, stage, m});
  }
};

/// `count` lists, the i-th of which is what `write(writer, i)` writes.
template <class Write>
[[nodiscard]] std::vector<ActionList> written(std::int32_t count, const Write& write) {
  std::vector<ActionList> lists(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) write(Writer{lists[static_cast<std::size_t>(i)]}, i);
  return lists;
}

std::vector<ActionList> sequential(const ScheduleRequest& request);
std::vector<ActionList> one_f_one_b(const ScheduleRequest& request);
std::vector<ActionList> grouped(const ScheduleRequest& request);
std::vector<ActionList> gpipe(const ScheduleRequest& request);
std::vector<ActionList> looped(const ScheduleRequest& request);
std::vector<ActionList> looped_zb(const ScheduleRequest& request);
std::vector<ActionList> zb_h1(const ScheduleRequest& request);
std::vector<ActionList> zb_v(const ScheduleRequest& request);
std::vector<ActionList> v_min(const ScheduleRequest& request);
std::vector<ActionList> v_half(const ScheduleRequest& request);
std::vector<ActionList> v_zb(const ScheduleRequest& request);
std::vector<ActionList> dual_pipe_v(const ScheduleRequest& request);

}  // namespace millrace::pipeline
