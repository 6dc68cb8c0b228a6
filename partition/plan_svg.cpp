// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/svg.hpp"
#include "partition/plan.hpp"
#include "pipeline/schedule/render.hpp"

namespace millrace::partition {
namespace {

using pipeline::ActionKind;
using pipeline::StageCost;

constexpr double kMargin = 10.0;
constexpr double kBarWidth = 480.0;  ///< of the longest stage
constexpr double kLongestText = 110.0;
constexpr double kRow = 30.0;
constexpr double kTop = 50.0;
constexpr double kScheduleWidth = 1000.0;

/// Whether the step runs the two halves of the backward pass by themselves, as ZB-H1 does.
bool splits_backward(const pipeline::TimeLine& step) {
  for (const auto& device : step.devices)
    for (const pipeline::Interval& i : device)
      if (i.action.kind == ActionKind::BackwardInput) return true;
  return false;
}

/// The actions of a stage, in the colors of the schedule.
std::vector<ActionKind> parts_of(const pipeline::TimeLine& step) {
  if (splits_backward(step))
    return {ActionKind::Forward, ActionKind::BackwardInput, ActionKind::BackwardWeight};
  return {ActionKind::Forward, ActionKind::Backward};
}

std::string fill_of(ActionKind kind) {
  return fmt::format(" fill=\"{}\"", pipeline::look_of(kind).colour);
}

std::string text_at(double x, double y, std::string_view text) {
  return svg::text_at(x, y, text, fmt::format(" fill=\"{}\"", svg::kInk));
}

std::string label(const Plan& plan, std::size_t stage) {
  const std::string name = stage == 0 ? "images" : plan.splits.at(stage - 1);
  return fmt::format("{} from {}", stage, name);
}

std::string legend(const std::vector<ActionKind>& parts, double y) {
  std::string text;
  double x = kMargin;
  for (const ActionKind part : parts) {
    const std::string_view name = pipeline::look_of(part).meaning;
    text += svg::box(x, y - 11.0, 14.0, 14.0, fill_of(part)) + text_at(x + 19.0, y, name);
    x += 31.0 + svg::kLetter * static_cast<double>(name.size());
  }
  return text;
}

/// One stage: its parts end to end, and their sum.
std::string bar(const StageCost& cost, const std::vector<ActionKind>& parts, double x, double y,
                double pixels_per_second) {
  std::string text;
  for (const ActionKind part : parts) {
    const double width = cost.seconds(part) * pixels_per_second;
    text += svg::box(x, y, width, kRow - 10.0, fill_of(part));
    x += width;
  }
  return text + text_at(x + 8.0, y + 15.0, fmt::format("{:.2f} ms", 1e3 * cost.work()));
}

}  // namespace

svg::Drawing draw_stages(const Plan& plan, const pipeline::TimeLine& step) {
  const std::vector<ActionKind> parts = parts_of(step);
  double longest = 0.0;
  std::size_t letters = 0;
  for (std::size_t s = 0; s < plan.stages(); ++s) {
    longest = std::max(longest, plan.costs.at(s).work());
    letters = std::max(letters, label(plan, s).size());
  }
  const double left = 2.0 * kMargin + svg::kLetter * static_cast<double>(letters);
  svg::Drawing drawing;
  drawing.width = left + kBarWidth + kLongestText;
  drawing.height = kTop + kRow * static_cast<double>(plan.stages()) + kMargin;
  drawing.body = text_at(kMargin, 18.0, "time of a micro-batch, by stage") + legend(parts, 38.0);
  for (std::size_t s = 0; s < plan.stages(); ++s) {
    const double y = kTop + kRow * static_cast<double>(s);
    drawing.body += text_at(kMargin, y + 15.0, label(plan, s)) +
                    bar(plan.costs[s], parts, left, y, longest > 0.0 ? kBarWidth / longest : 0.0);
  }
  return drawing;
}

std::string to_svg(const Plan& plan, const pipeline::TimeLine& step) {
  const std::string title = fmt::format("{}, {}: step {:.2f} ms, bubble {:.1f} %", plan.model,
                                        plan.schedule, 1e3 * plan.seconds, 100.0 * plan.bubble);
  svg::Drawing drawing;
  drawing.width = 2.0 * kMargin + svg::kLetter * static_cast<double>(title.size());
  drawing.height = 30.0;
  drawing.body = svg::text_at(kMargin, 22.0, title,
                              fmt::format(" font-weight=\"bold\" fill=\"{}\"", svg::kInk));
  drawing = stacked(std::move(drawing), draw_stages(plan, step));
  if (step.devices.empty()) return svg::document(drawing);
  const std::array<pipeline::SvgPanel, 1> panels = {pipeline::SvgPanel{"", &step}};
  const svg::Drawing schedule =
      pipeline::draw(panels, {.width = std::max(drawing.width, kScheduleWidth)});
  return svg::document(stacked(std::move(drawing), schedule));
}

}  // namespace millrace::partition
