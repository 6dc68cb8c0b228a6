// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "millrace.hpp"

namespace millrace::test {

/// Environment for support/file_shim.cpp. Rank -1 is a process without a launcher.
inline Environment file_shim(int rank, const Environment& rules) {
  const std::string name = rank < 0 ? "alone" : std::to_string(rank);
  return Environment{"LD_PRELOAD=" + std::string(MILLRACE_FILE_SHIM),
                     "MILLRACE_SHIM_RANK=" + name} +
         rules;
}

}  // namespace millrace::test
