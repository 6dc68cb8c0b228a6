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
#include <string_view>
#include <vector>

#include "pipeline/schedule/action.hpp"
#include "pipeline/schedule/simulate.hpp"

namespace millrace::pipeline {

/// How an action that is not a message is drawn. Color-blind readers can distinguish the colors
/// (Okabe and Ito), each light enough for black letters.
struct Look {
  char letter;
  std::string_view colour;
  std::string_view meaning;
};
[[nodiscard]] inline Look look_of(ActionKind kind) {
  if (kind == ActionKind::Forward) return {'F', "#56B4E9", "forward"};
  if (kind == ActionKind::Backward) return {'B', "#E2702B", "backward"};
  if (kind == ActionKind::BackwardInput) return {'I', "#E69F00", "backward input"};
  if (kind == ActionKind::BackwardWeight) return {'W', "#1FB286", "backward weight"};
  if (kind == ActionKind::Reduce) return {'R', "#B8B8B8", "reduction"};
  return {'U', "#CC79A7", "update"};
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
    text += look_of(a.kind).letter;
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
