// SPDX-License-Identifier: Apache-2.0
//
// What decides the bits of a run besides its options: devices, libraries, and which of a vendor's
// kernels are allowed.
#pragma once

#include <string>
#include <vector>

#include "comm/world.hpp"
#include "run/run.hpp"

namespace millrace::training {

/// Everything that must match for bit-identical results: device::describe_environment(), then the
/// vendor's device and whether sums may vary. Recorded in checkpoints. Needs a device::Environment.
[[nodiscard]] std::string environment_of(const run::Run& config);

/// Lines for people about kernels that the options allow; none without such options.
[[nodiscard]] std::vector<std::string> describe_kernel_rules(const run::Run& config);

/// Requires that all ranks have the same device and libraries, where these decide bits, unless sums
/// may vary anyway. Collective. Errors: Usage, naming the rank.
void require_same_kernels(const run::Run& config, const comm::World& world);

}  // namespace millrace::training
