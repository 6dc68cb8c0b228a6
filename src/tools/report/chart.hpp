// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace millrace::report {

struct Point {
  double x = 0.0;
  double y = 0.0;  ///< not finite: a gap
};

/// Thin lines lie behind the others. Dotted ones have a dot with a tooltip at each point.
enum class LineStyle { Thin, Solid, Dotted };

struct Line {
  std::string name;        ///< in the legend; "": not there
  std::size_t colour = 0;  ///< index of a color of the page
  LineStyle style = LineStyle::Thin;
  std::vector<Point> points;
};

enum class Scale { FromZero, Tight, Logarithmic };

struct Chart {
  std::string title;
  std::string unit;  ///< of y
  Scale scale = Scale::Tight;
  std::vector<Line> lines;
  std::vector<double> marks;  ///< x of dashed vertical lines: restarts
};

/// Number of colors that the page has; the next line takes the first again, and is dashed.
inline constexpr std::size_t kColours = 6;

/// An HTML figure with an SVG and its legend; a sentence instead of the SVG if no line has a point.
/// Long lines are thinned so that extremes stay. x are epochs.
[[nodiscard]] std::string figure(const Chart& chart);

}  // namespace millrace::report
