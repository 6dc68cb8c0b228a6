// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "comm/world.hpp"
#include "core/dtype.hpp"

namespace millrace::cli {

/// How much of the measured time of a network the rates of a device give.
struct ExplainedNetwork {
  std::string name;
  double share = 1.0;
};
/// A line about the networks whose times the rates miss by more than a quarter; "" if there is
/// none.
[[nodiscard]] std::string rates_notice(DType type, std::span<const ExplainedNetwork> networks);

/// `bench --machine-file FILE`: measures the devices of this machine, all at the same time, and the
/// link between the first and the last of them, and writes what plans need. Starts the ranks if a
/// launcher has not. Collective. Errors: Usage for options that would have no effect.
int bench_machine(const Invocation& invocation, const comm::World& world, StartupWatch& watch);

/// "AMD EPYC" from the first entry of /proc/cpuinfo; empty where there is none.
[[nodiscard]] std::string processor_name();

}  // namespace millrace::cli
