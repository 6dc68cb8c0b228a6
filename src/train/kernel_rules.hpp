// SPDX-License-Identifier: Apache-2.0
//
// What the options about a vendor's kernels mean for a run: which lines it prints, and what must be
// equal for equal bits.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.hpp"
#include "core/kernel_table.hpp"
#include "train/agreement.hpp"
#include "train/config.hpp"

namespace millrace::train {

/// Everything that must match for bit-identical results: device::describe_environment(), then the
/// kernel table in use and whether sums may vary. Recorded in checkpoints. Needs a
/// device::Environment.
[[nodiscard]] std::string environment_of(const TrainConfig& config);

/// Lines for people about the table and the rules of a run; none without such options. Needs a
/// device::Environment.
[[nodiscard]] std::vector<std::string> describe_kernel_rules(const TrainConfig& config);

/// Requires that all ranks have the same device and libraries, where these decide bits, unless sums
/// may vary anyway; and that all use the table, or none: those with another device cannot.
/// Collective. Errors: Usage, naming the rank.
void require_same_kernels(const TrainConfig& config, const comm::World& world);

/// The table in `file` and the rules, where the table is `unfit` for the device for that reason
/// ("": it is not). `here`: describe_device_here(). The functions above are these for the device at
/// hand.
[[nodiscard]] std::string rules_in_environment(const KernelRules& rules, std::string_view unfit);
[[nodiscard]] std::vector<std::string> describe_kernel_rules(const KernelRules& rules,
                                                             const std::filesystem::path& file,
                                                             std::string_view unfit);
[[nodiscard]] std::vector<Fact> facts_of_kernels(const KernelRules& rules, const std::string& here,
                                                 const std::string& unfit);

}  // namespace millrace::train
