// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace millrace::cli {

/// The project's version, from the build.
inline constexpr std::string_view kVersion = MILLRACE_VERSION;

}  // namespace millrace::cli
