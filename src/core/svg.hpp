// SPDX-License-Identifier: Apache-2.0
//
// The few parts of SVG that our pictures are made of.
#pragma once

#include <string>
#include <string_view>

namespace millrace::svg {

/// Of text and lines outside of colored areas; visible on white and on black.
inline constexpr std::string_view kInk = "#767676";
/// Maximum width of a letter of 12 pixels.
inline constexpr double kLetter = 7.0;

/// A picture without its outermost element; sizes in pixels.
struct Drawing {
  double width = 0.0;
  double height = 0.0;
  std::string body;
};

/// Text with the characters escaped that mean something in XML and HTML.
[[nodiscard]] std::string escaped(std::string_view text);

/// `attributes` begin with a blank. The text is escaped, attributes are not.
[[nodiscard]] std::string text_at(double x, double y, std::string_view text,
                                  std::string_view attributes = "");
[[nodiscard]] std::string box(double x, double y, double width, double height,
                              std::string_view attributes);

/// Distance of at most `most` ticks in a range: 1, 2 or 5 times a power of ten.
[[nodiscard]] double tick_of(double range, double most);

/// One picture above the other.
[[nodiscard]] Drawing stacked(Drawing upper, const Drawing& lower);

/// Where a picture stands: in a file of its own, or in an HTML page, which needs no namespace.
enum class Place { File, Page };
[[nodiscard]] std::string document(const Drawing& drawing, Place place = Place::File);

}  // namespace millrace::svg
