// SPDX-License-Identifier: Apache-2.0
//
// TOML files. The code uses only calls that toml11 3.x and 4.x share and handles both versions
// where they differ (the location of a value).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <toml.hpp>

namespace millrace::run {

template <class Location>
std::size_t line_of(const Location& location) {
  if constexpr (requires { location.first_line_number(); })
    return location.first_line_number();
  else
    return location.line();
}

/// The values of a file. Errors: Config with file, line, what is wrong and what the file should be
/// (`expected`); also for one that is too large or nested too deeply to be meant.
[[nodiscard]] toml::value parse_toml(const std::string& text, const std::string& file_name,
                                     std::string_view expected);

}  // namespace millrace::run
