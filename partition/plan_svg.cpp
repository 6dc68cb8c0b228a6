// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "partition/plan.hpp"
#include "pipeline/schedule/render.hpp"

namespace millrace::partition {
namespace {

constexpr double kBarWidth = 480.0;  ///< of the longest stage
constexpr double kRow = 30.0;
constexpr double kTop = 64.0;
constexpr double kLetter = 7.8;  ///< maximum width of a letter

/// Colors that are visible on white and on black.
struct Part {
  std::string_view name;
  std::string_view colour;
  double pipeline::StageCost::*seconds;
};
constexpr std::array<Part, 3> kParts = {
    {{"forward", "#4e8fc7", &pipeline::StageCost::forward},
     {"backward, inputs", "#e0862c", &pipeline::StageCost::backward_input},
     {"backward, weights", "#c65a9c", &pipeline::StageCost::backward_weight}}};

constexpr std::string_view kStyle =
    "<style>text{font:13px sans-serif;fill:#1f2328}.title{font-weight:bold}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}</style>\n";

double work(const pipeline::StageCost& cost) {
  return cost.forward + cost.backward_input + cost.backward_weight;
}

std::string label(const Plan& plan, std::size_t stage) {
  const std::string name = stage == 0 ? "images" : plan.splits.at(stage - 1);
  return fmt::format("{} from {}", stage, name);
}

std::string text_at(double x, double y, std::string_view text, std::string_view attribute = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, attribute,
                     pipeline::escaped_xml(text));
}

std::string box(double x, double y, double width, double height, std::string_view colour) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y,
      width, height, colour);
}

std::string legend(double x, double y) {
  std::string svg;
  for (const Part& part : kParts) {
    svg += box(x, y - 10.0, 12.0, 12.0, part.colour) + text_at(x + 18.0, y, part.name);
    x += 42.0 + kLetter * static_cast<double>(part.name.size());
  }
  return svg;
}

/// One stage: its three parts end to end, and their sum.
std::string bar(const pipeline::StageCost& cost, double x, double y, double pixels_per_second) {
  std::string svg;
  for (const Part& part : kParts) {
    const double width = cost.*part.seconds * pixels_per_second;
    svg += box(x, y, width, kRow - 10.0, part.colour);
    x += width;
  }
  return svg + text_at(x + 8.0, y + 15.0, fmt::format("{:.2f} ms", 1e3 * work(cost)));
}

}  // namespace

std::string to_svg(const Plan& plan) {
  double longest = 0.0;
  std::size_t letters = 0;
  for (std::size_t s = 0; s < plan.stages(); ++s) {
    longest = std::max(longest, work(plan.costs.at(s)));
    letters = std::max(letters, label(plan, s).size());
  }
  const std::string title = fmt::format("{}, {}: step {:.2f} ms, bubble {:.1f} %", plan.model,
                                        plan.schedule, 1e3 * plan.seconds, 100.0 * plan.bubble);
  const double left = 24.0 + kLetter * static_cast<double>(letters);
  const double height = kTop + kRow * static_cast<double>(plan.stages()) + 10.0;
  const double width =
      std::max(left + kBarWidth + 110.0, 24.0 + kLetter * static_cast<double>(title.size()));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 "
      "0 "
      "{0:.0f} {1:.0f}\">\n",
      width, height);
  svg += kStyle;
  svg += text_at(12.0, 22.0, title, " class=\"title\"");
  svg += legend(12.0, 46.0);
  for (std::size_t s = 0; s < plan.stages(); ++s) {
    const double y = kTop + kRow * static_cast<double>(s);
    svg += text_at(12.0, y + 15.0, label(plan, s));
    svg += bar(plan.costs[s], left, y, longest > 0.0 ? kBarWidth / longest : 0.0);
  }
  return svg + "</svg>\n";
}

}  // namespace millrace::partition
