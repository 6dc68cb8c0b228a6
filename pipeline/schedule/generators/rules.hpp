// SPDX-License-Identifier: Apache-2.0
//
// The schedules that millrace generates: one file each, and one row each in rules.cpp.
//
// A row names the schedule, says which stages a device holds, and points to the function that lists
// what is computed. Everything else follows from those lists and is the same for all schedules:
// messages, all-reduces, the proof, the simulation, the memory (../schedule.hpp). To add one, write
// its file, add its row and its golden numbers (tests/pipeline/schedule_test.cpp); the tests of all
// sizes and the fuzzer take every row of the table.
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

/// The order in which interleaved schedules take up micro-batches: rounds of `devices` of them, and
/// in each round through the chunks (arXiv 2104.04473).
struct LoopedOrder {
  std::int32_t devices;
  std::int32_t chunks;
  /// Stage of a device's k-th forward and of its k-th backward.
  [[nodiscard]] std::int32_t forward_stage(std::int32_t device, std::int32_t k) const {
    return k / devices % chunks * devices + device;
  }
  [[nodiscard]] std::int32_t backward_stage(std::int32_t device, std::int32_t k) const {
    return (chunks - 1 - k / devices % chunks) * devices + device;
  }
  [[nodiscard]] std::int32_t micro_batch(std::int32_t k) const {
    return k / (devices * chunks) * devices + k % devices;
  }
  /// Entries of a device, with the last round filled up.
  [[nodiscard]] std::int32_t total(std::int32_t micro_batches) const {
    return (micro_batches + devices - 1) / devices * devices * chunks;
  }
};

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
