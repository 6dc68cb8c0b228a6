// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string_view>

namespace millrace {

/// Whether a terminal may be given colors: not with NO_COLOR (https://no-color.org) or TERM=dumb.
[[nodiscard]] inline bool colors_allowed() {
  const char* const none = std::getenv("NO_COLOR");
  const char* const kind = std::getenv("TERM");
  return (none == nullptr || *none == '\0') && kind != nullptr && std::string_view(kind) != "dumb";
}

}  // namespace millrace
