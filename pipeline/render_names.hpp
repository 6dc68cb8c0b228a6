// SPDX-License-Identifier: Apache-2.0
//
// Shared by the text and SVG drawings.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "pipeline/action.hpp"
#include "pipeline/simulate.hpp"

namespace millrace::pipeline {

/// The letter of an action that is not a message.
[[nodiscard]] inline char letter_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::Forward:
      return 'F';
    case ActionKind::Backward:
      return 'B';
    case ActionKind::BackwardInput:
      return 'I';
    case ActionKind::BackwardWeight:
      return 'W';
    case ActionKind::Reduce:
      return 'R';
    default:
      return 'U';
  }
}

/// Whether a drawing shows the interval: everything except messages.
[[nodiscard]] inline bool is_shown(const Interval& i) {
  return is_compute(i.action.kind) ||
         (i.end > i.begin && !is_send(i.action.kind) && !is_receive(i.action.kind));
}

/// End of the last interval.
[[nodiscard]] inline double end_of(const TimeLine& line) {
  double end = line.makespan;
  for (const std::vector<Interval>& device : line.devices)
    for (const Interval& i : device) end = std::max(end, i.end);
  return end;
}

/// Names of the actions in one drawing.
class Labels {
 public:
  explicit Labels(const TimeLine& line) {
    for (const std::vector<Interval>& device : line.devices) {
      std::set<std::int32_t> stages;
      for (const Interval& i : device)
        if (is_shown(i)) stages.insert(i.action.stage);
      with_stage_ = with_stage_ || stages.size() > 1;
    }
  }
  /// "F3", or "2F3" where the stage is not clear from the device.
  [[nodiscard]] std::string of(const Action& a) const {
    std::string text = with_stage_ ? fmt::format("{}", a.stage) : "";
    text += letter_of(a.kind);
    if (a.micro_batch >= 0) text += fmt::format("{}", a.micro_batch);
    return text;
  }

 private:
  bool with_stage_ = false;
};

/// Width of the row names in characters, with the gap after them.
[[nodiscard]] inline std::size_t name_width(std::size_t devices) {
  return fmt::formatted_size("device {}  ", devices == 0 ? 0 : devices - 1);
}

}  // namespace millrace::pipeline
