// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/text.hpp"

namespace millrace {

/// "1 image", "1,234 images". `many` is the plural of a word that takes more than an s.
[[nodiscard]] inline std::string counted(std::int64_t number, std::string_view one,
                                         std::string_view many = {}) {
  std::string text = with_commas(number) + ' ';
  text += number == 1 || many.empty() ? one : many;
  if (number != 1 && many.empty()) text += 's';
  return text;
}

/// The verb behind a number of things.
[[nodiscard]] inline std::string_view is_or_are(std::int64_t number) {
  return number == 1 ? "is" : "are";
}

}  // namespace millrace
