// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "comm/world.hpp"

namespace millrace::cli {

/// `bench --machine-file FILE`: measures the devices of this machine, all at the same time, and the
/// link between the first and the last of them, and writes what plans need. Starts the ranks if a
/// launcher has not. Collective. Errors: Usage for options that would have no effect.
int bench_machine(const Invocation& invocation, const comm::World& world, StartupWatch& watch);

/// "AMD EPYC" from the first entry of /proc/cpuinfo; empty where there is none.
[[nodiscard]] std::string processor_name();

}  // namespace millrace::cli
