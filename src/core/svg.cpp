// SPDX-License-Identifier: Apache-2.0
#include "core/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace millrace::svg {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        // XML cannot represent other control characters.
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

std::string text_at(double x, double y, std::string_view text, std::string_view attributes) {
  return fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\"{}>{}</text>\n", x, y, attributes,
                     escaped(text));
}

std::string box(double x, double y, double width, double height, std::string_view attributes) {
  return fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"{}/>\n", x,
                     y, width, height, attributes);
}

double tick_of(double range, double most) {
  const double least = range / most;
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1.0 - 1e-9)) return factor * power;
  return 10.0 * power;
}

Drawing stacked(Drawing upper, const Drawing& lower) {
  upper.body +=
      fmt::format("<g transform=\"translate(0 {:.2f})\">\n{}</g>\n", upper.height, lower.body);
  upper.height += lower.height;
  upper.width = std::max(upper.width, lower.width);
  return upper;
}

std::string document(const Drawing& drawing, Place place) {
  return fmt::format(
      "<svg{2} width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n{3}</svg>\n",
      drawing.width, drawing.height,
      place == Place::File ? " xmlns=\"http://www.w3.org/2000/svg\"" : "", drawing.body);
}

}  // namespace millrace::svg
