// SPDX-License-Identifier: Apache-2.0
#include "report/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

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

/// Distance of at most `most` ticks: 1, 2 or 5 times a power of ten.
double tick_of(double range, double most) {
  const double least = range / most;
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1.0 - 1e-9)) return factor * power;
  return 10.0 * power;
}

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
    return ticks;
  }
  const double step = tick_of(axis.high - axis.low, most);
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
  const double step = tick_of(axis.high - axis.low, 5.0);
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

std::string draw_line(const Line& line, const Axis& x, const Axis& y) {
  std::string path;
  std::string dots;
  bool open = false;
  for (const Point& p : line.style == LineStyle::Dotted ? line.points : thinned(line.points)) {
    if (!y.shows(p.y)) {
      open = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", x.at(p.x), y.at(p.y));
    open = true;
    if (line.style == LineStyle::Dotted)
      dots += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>epoch {:.4g}: "
          "{:.6g}</title></circle>",
          x.at(p.x), y.at(p.y), p.x, p.y);
  }
  if (path.empty()) return "";
  return fmt::format("<g class=\"{}\"><path d=\"{}\"/>{}</g>\n", classes_of(line), path, dots);
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

std::string draw(const Chart& chart, const Axis& x, const Axis& y) {
  svg::Drawing drawing{.width = kWidth, .height = kHeight, .body = draw_axes(x, y)};
  for (const double mark : chart.marks)
    drawing.body += fmt::format("<path class=\"mark\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", x.at(mark),
                                y.first, y.last);
  for (const LineStyle style : {LineStyle::Thin, LineStyle::Solid, LineStyle::Dotted})
    for (const Line& line : chart.lines)
      if (line.style == style) drawing.body += draw_line(line, x, y);
  return svg::document(drawing, svg::Place::Page);
}

std::string legend(const Chart& chart) {
  std::string text;
  for (const Line& line : chart.lines)
    if (!line.name.empty())
      text +=
          fmt::format("<span class=\"{}\">{}</span>", classes_of(line), svg::escaped(line.name));
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
  return head + draw(chart, x, y) + legend(chart) + "</figure>\n";
}

}  // namespace millrace::report
