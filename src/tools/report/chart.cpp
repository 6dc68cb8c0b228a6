// SPDX-License-Identifier: Apache-2.0
#include "tools/report/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "core/svg.hpp"

namespace millrace::report {
namespace {

constexpr double kWidth = 480.0;
constexpr double kHeight = 240.0;
constexpr double kLeft = 48.0;
constexpr double kRight = 14.0;
constexpr double kTop = 10.0;
constexpr double kBottom = 38.0;

/// One direction of the chart, from values to pixels.
struct Axis {
  double low = std::numeric_limits<double>::max();
  double high = std::numeric_limits<double>::lowest();
  bool logarithmic = false;
  double first = 0.0;  ///< pixel of low
  double last = 0.0;

  [[nodiscard]] bool shows(double value) const {
    constexpr double kMost = 1e100;  // the differences of two values are finite, too
    return std::abs(value) <= kMost && (!logarithmic || value > 0.0);
  }
  void include(double value) {
    if (!shows(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  [[nodiscard]] double at(double value) const {
    const double share =
        logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return first + share * (last - first);
  }
};

/// The classes of a line: its color, its style, and whether the color is taken again.
std::string classes_of(const Line& line) {
  const std::string_view style = line.style == LineStyle::Thin    ? "thin"
                                 : line.style == LineStyle::Solid ? "solid"
                                                                  : "dotted";
  return fmt::format("c{} {}{}", line.colour % kColours, style,
                     line.colour < kColours ? "" : " again");
}

std::vector<double> ticks_of(const Axis& axis, double most) {
  std::vector<double> ticks;
  if (axis.logarithmic) {
    for (double power = std::pow(10.0, std::floor(std::log10(axis.low))); power <= axis.high;
         power *= 10.0)
      for (const double factor : {1.0, 1.5, 2.0, 3.0, 5.0, 7.0})
        if (factor * power >= axis.low * 0.999 && factor * power <= axis.high * 1.001)
          ticks.push_back(factor * power);
    if (ticks.size() > 1) return ticks;
    ticks.clear();  // a narrow range is nearly linear
  }
  const double step = svg::tick_of(axis.high - axis.low, most);
  for (double k = std::ceil(axis.low / step - 1e-9); k * step <= axis.high + 1e-9 * step; k += 1.0)
    ticks.push_back(k * step + 0.0);  // not -0
  return ticks;
}

/// Makes room around the values, up to the next tick.
void round_out(Axis& axis, Scale scale) {
  if (scale == Scale::FromZero) axis.low = std::min(axis.low, 0.0);
  if (axis.logarithmic) {
    axis.low *= 0.93;
    axis.high *= 1.07;
    return;
  }
  if (!(axis.high > axis.low)) axis.high = axis.low + std::max(1.0, std::abs(axis.low));
  const double step = svg::tick_of(axis.high - axis.low, 5.0);
  axis.low = step * std::floor(axis.low / step + 1e-9);
  axis.high = step * std::ceil(axis.high / step - 1e-9);
}

/// At most some 600 points: the lowest and the highest of each of many neighbors.
std::vector<Point> thinned(const std::vector<Point>& points) {
  constexpr std::size_t kGroups = 300;
  if (points.size() <= 2 * kGroups) return points;
  const std::size_t each = (points.size() + kGroups - 1) / kGroups;
  std::vector<Point> few;
  for (std::size_t i = 0; i < points.size(); i += each) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>(std::min(i + each, points.size()));
    auto low = begin;
    auto high = begin;
    for (auto p = begin; p != end; ++p) {
      if (p->y < low->y) low = p;
      if (p->y > high->y) high = p;
    }
    few.push_back(low < high ? *low : *high);
    if (low != high) few.push_back(low < high ? *high : *low);
  }
  return few;
}

/// A line with the path that draws it, and the lines that it would hide: those that it follows up
/// to its end.
struct DrawnLine {
  const Line* line = nullptr;
  std::string path = {};  ///< "": nothing to draw
  std::vector<const Line*> under = {};
};

std::string path_of(const Line& line, const Axis& x, const Axis& y) {
  std::string path;
  bool open = false;
  for (const Point& p : line.style == LineStyle::Dotted ? line.points : thinned(line.points)) {
    const bool shown = y.shows(p.y);
    if (shown) path += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", x.at(p.x), y.at(p.y));
    open = shown;
  }
  return path;
}

std::vector<DrawnLine> drawn_lines(const Chart& chart, const Axis& x, const Axis& y) {
  std::vector<DrawnLine> drawn;
  for (const Line& line : chart.lines)
    drawn.push_back({.line = &line, .path = path_of(line, x, y)});
  for (DrawnLine& own : drawn)
    for (const DrawnLine& other : drawn)
      if (!own.path.empty() && other.path.starts_with(own.path) &&
          (other.path.size() > own.path.size() || other.line < own.line))
        own.under.push_back(other.line);
  return drawn;
}

/// Over others, a line leaves gaps, and its dots are smaller.
std::string draw_line(const DrawnLine& drawn, const Axis& x, const Axis& y) {
  if (drawn.path.empty()) return "";
  const Line& line = *drawn.line;
  constexpr double kDash = 8.0;
  const auto under = static_cast<double>(drawn.under.size());
  const std::string gaps =
      drawn.under.empty() ? ""
                          : fmt::format(" style=\"stroke-dasharray:{} {}\"", kDash, under * kDash);
  std::string dots;
  if (line.style == LineStyle::Dotted)
    for (const Point& p : line.points)
      if (y.shows(p.y))
        dots += fmt::format(
            "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.2g}\"><title>epoch {:.4g}: "
            "{:.6g}</title></circle>",
            x.at(p.x), y.at(p.y), 3.0 / (1.0 + under), p.x, p.y);
  return fmt::format("<g class=\"{}\"><path d=\"{}\"{}/>{}</g>\n", classes_of(line), drawn.path,
                     gaps, dots);
}

std::string draw_axes(const Axis& x, const Axis& y) {
  std::string text;
  for (const double value : ticks_of(y, 6.0)) {
    text += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", x.first, y.at(value),
                        x.last);
    text += svg::text_at(x.first - 6.0, y.at(value) + 4.0, fmt::format("{:.4g}", value),
                         " text-anchor=\"end\"");
  }
  for (const double value : ticks_of(x, 8.0))
    text += svg::text_at(x.at(value), kHeight - kBottom + 16.0, fmt::format("{:.4g}", value),
                         " text-anchor=\"middle\"");
  text += svg::text_at((x.first + x.last) / 2.0, kHeight - 4.0, "epoch", " text-anchor=\"middle\"");
  return text;
}

std::string draw(const Chart& chart, std::vector<DrawnLine> lines, const Axis& x, const Axis& y) {
  svg::Drawing drawing{.width = kWidth, .height = kHeight, .body = draw_axes(x, y)};
  for (const double mark : chart.marks)
    drawing.body += fmt::format("<path class=\"mark\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", x.at(mark),
                                y.first, y.last);
  // From behind to the front.
  std::ranges::stable_sort(lines, {}, [](const DrawnLine& drawn) {
    return std::pair(drawn.line->style, drawn.under.size());
  });
  for (const DrawnLine& drawn : lines) drawing.body += draw_line(drawn, x, y);
  return svg::document(drawing, svg::Place::Page);
}

std::string legend(const Chart& chart, std::span<const DrawnLine> lines) {
  std::string text;
  for (const DrawnLine& drawn : lines) {
    const Line& line = *drawn.line;
    if (line.name.empty()) continue;
    const bool equal = !drawn.under.empty() && !drawn.under.front()->name.empty();
    text += fmt::format("<span class=\"{}\">{}{}</span>", classes_of(line), svg::escaped(line.name),
                        equal ? ", on the line of " + svg::escaped(drawn.under.front()->name) : "");
  }
  if (!chart.marks.empty()) text += "<span class=\"mark\">restart</span>";
  return text.empty() ? text : "<p class=\"legend\">" + text + "</p>\n";
}

}  // namespace

std::string figure(const Chart& chart) {
  Axis x{.low = 0.0, .first = kLeft, .last = kWidth - kRight};
  Axis y{
      .logarithmic = chart.scale == Scale::Logarithmic, .first = kHeight - kBottom, .last = kTop};
  for (const Line& line : chart.lines)
    for (const Point& point : line.points) {
      x.include(point.x);
      y.include(point.y);
    }
  const std::string head =
      fmt::format("<figure class=\"card\"><figcaption>{} <small>{}</small></figcaption>\n",
                  svg::escaped(chart.title), svg::escaped(chart.unit));
  if (y.high < y.low) return head + "<p class=\"muted\">no values</p></figure>\n";
  if (!(x.high > x.low)) x.high = x.low + 1.0;
  round_out(y, chart.scale);
  const std::vector<DrawnLine> lines = drawn_lines(chart, x, y);
  return head + draw(chart, lines, x, y) + legend(chart, lines) + "</figure>\n";
}

}  // namespace millrace::report
