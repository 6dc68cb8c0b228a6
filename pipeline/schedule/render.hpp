// SPDX-License-Identifier: Apache-2.0
//
// Drawings of schedules and runs, as text and SVG. Simulated and measured time lines are drawn the
// same way; times start at 0. Three stages, four micro-batches, 1F1B, each pass a second:
//
//   device 0  F0 F1 F2             B0--- F3 B1---    B2---    B3---
//   device 1     F0 F1       B0--- F2 B1--- F3 B2---    B3---
//   device 2        F0 B0--- F1 B1--- F2 B2--- F3 B3---
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/svg.hpp"
#include "pipeline/schedule/schedule.hpp"
#include "pipeline/schedule/simulate.hpp"

namespace millrace::pipeline {

/// One row of text per device, at most `columns` wide, without trailing blanks. Each character is
/// an equal interval of time and shows the action that takes most of it: F, B, I, W, R (all-reduce)
/// or U (update), with the micro-batch number where it fits and dashes for the rest; blank where
/// the device waits. If a device has several stages, actions begin with the stage, as in
/// `to_string`. Messages are not shown. Errors: Config if `columns` has no room besides the device
/// names.
[[nodiscard]] std::string staircase(const TimeLine& line, std::int32_t columns);

struct SvgOptions {
  double width = 1200.0;  ///< of the drawing; the height depends on the number of devices
  bool arrows = false;    ///< from every send to its reader, if the time line has messages
};
/// A time line with an optional title.
struct SvgPanel {
  std::string title;
  const TimeLine* line = nullptr;
};

/// One row per device with a box for each forward and backward, and for all-reduces and updates
/// that take time; gaps are waits. A box is labeled with its action, or only with its micro-batch
/// in letters that fit, if it is wide enough; the tooltip always has the action. There is a legend
/// and an axis in milliseconds, but no background: the colors work on dark and light pages.
/// Several time lines stand above each other with one axis, for example measured and simulated.
[[nodiscard]] std::string to_svg(std::span<const SvgPanel> panels, const SvgOptions& options = {});
/// The same as a part of a picture.
[[nodiscard]] svg::Drawing draw(std::span<const SvgPanel> panels, const SvgOptions& options = {});

// What drawings have in common.

/// How an action that is not a message is drawn. Color-blind readers can distinguish the colors
/// (Okabe and Ito), each light enough for black letters.
struct Look {
  char letter;
  std::string_view colour;
  std::string_view meaning;
};
[[nodiscard]] Look look_of(ActionKind kind);

/// Whether a drawing shows the interval: everything except messages.
[[nodiscard]] bool is_shown(const Interval& i);

/// End of the last interval.
[[nodiscard]] double end_of(const TimeLine& line);

/// Names of the actions in one drawing.
class Labels {
 public:
  explicit Labels(const TimeLine& line);
  /// "F3", or "2F3" where the stage is not clear from the device.
  [[nodiscard]] std::string of(const Action& a) const;

 private:
  bool with_stage_ = false;
};

/// Width of the row names in characters, with the gap after them.
[[nodiscard]] std::size_t name_width(std::size_t devices);

}  // namespace millrace::pipeline
