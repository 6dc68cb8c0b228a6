// SPDX-License-Identifier: Apache-2.0
//
// Pictures of schedules and of runs. A TimeLine is drawn the same way whether `simulate` made it or
// a run was measured; times count from 0. Three stages, four micro-batches, 1F1B, in unit time:
//
//   device 0  F0 F1 F2             B0--- F3 B1---    B2---    B3---
//   device 1     F0 F1       B0--- F2 B1--- F3 B2---    B3---
//   device 2        F0 B0--- F1 B1--- F2 B2--- F3 B3---
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "pipeline/schedule.hpp"
#include "pipeline/simulate.hpp"

namespace millrace::pipeline {

/// A schedule's time line when forward, input gradient and weight gradient take one second each,
/// and nothing else takes time. Errors: Config when it cannot finish.
[[nodiscard]] TimeLine unit_time(const Schedule& schedule, std::span<const Link> links);

/// A row of text a device, each at most `columns` wide and without blanks at its end. A character
/// is a quantum of time and shows what takes up most of it: F, B, I, W, R (reduction) or U (update)
/// with micro-batch numbers where they fit, dashes as far as it lasts, blank where the device
/// waits. Where devices hold several stages an action begins with its stage, as in `to_string`.
/// Messages are not shown. Errors: Config when `columns` leave no room beside the names of devices.
[[nodiscard]] std::string staircase(const TimeLine& line, std::int32_t columns);
/// The schedule of a chain of stages in unit time, which takes the same number of characters for
/// each second: as many as a number needs, or as fit into 100 columns.
[[nodiscard]] std::string staircase(const Schedule& schedule);

struct SvgOptions {
  double width = 1200.0;  ///< of the picture; its height follows from the number of devices
  bool arrows = false;    ///< from every send to what reads it, where the time line has messages
};
/// A time line with its title, which may be empty.
struct SvgPanel {
  std::string title;
  const TimeLine* line = nullptr;
};

/// A row a device with a box for each forward and backward, and for reductions and updates that
/// take time; gaps are waits. Boxes say what they are, or their micro-batch alone, where they are
/// wide enough, and always in their tooltip. Has a legend and an axis in seconds, and no
/// background: its colours are legible on a dark page and on a light one.
[[nodiscard]] std::string to_svg(const TimeLine& line, const SvgOptions& options = {});
/// Time lines one above the other on one axis, such as a measured and a simulated one.
[[nodiscard]] std::string to_svg(std::span<const SvgPanel> panels, const SvgOptions& options = {});

}  // namespace millrace::pipeline
