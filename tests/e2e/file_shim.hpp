// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "millrace.hpp"

namespace millrace::test {

/// What stands between one rank and its files (support/file_shim.cpp); -1 is the process that no
/// launcher started.
inline Environment file_shim(int rank, const Environment& rules) {
  const std::string name = rank < 0 ? "alone" : std::to_string(rank);
  return Environment{"LD_PRELOAD=" + std::string(MILLRACE_FILE_SHIM),
                     "MILLRACE_SHIM_RANK=" + name} +
         rules;
}

}  // namespace millrace::test
