// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace::cli {

inline constexpr std::size_t kHelpColumn = 30;  ///< where texts begin
inline constexpr std::size_t kHelpWidth = 100;

/// `left`, followed by the text on the same or the next line, broken into lines of kHelpWidth.
[[nodiscard]] std::string help_entry(const std::string& left, std::string_view text);

}  // namespace millrace::cli
