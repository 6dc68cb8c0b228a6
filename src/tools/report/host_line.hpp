// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/svg.hpp"

namespace millrace::report {

/// What a supervisor (`--elastic`) wrote of its run: "start", "snapshot", "lost", "host back",
/// "waiting", "given up", "end".
struct SupervisorEvent {
  double time = 0.0;  ///< seconds since 1970
  std::string event;
  int ranks = 0;                   ///< of a start
  std::vector<std::string> hosts;  ///< of a start; empty: this machine
  std::string checkpoint;          ///< the newest one; "": none
  std::string what;                ///< in words
};

/// A row for each host, with a bar where it had ranks, and a line where something was lost or came
/// back. Two processes that supervised one after the other follow each other.
[[nodiscard]] svg::Drawing draw_hosts(std::span<const SupervisorEvent> events);

}  // namespace millrace::report
