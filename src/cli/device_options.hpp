// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/option_reader.hpp"
#include "cli/resolve.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// Ranks of the run on this machine, at least 1.
[[nodiscard]] int ranks_here(const MachineFacts& machine, const train::TrainConfig& config);

/// Scratch limits of the vendor library's kernels in bytes, from --available-memory-proportion:
/// empty when not given, one number, or two per stage. The memory of a device is --device-memory,
/// or else the machine's memory divided by its ranks. Errors: Usage.
[[nodiscard]] std::vector<std::int64_t> scratch_caps(Reader& read, const MachineFacts& machine,
                                                     const train::TrainConfig& config);

/// The devices that --select-ipus names, by replica and device of the pipeline; empty for AUTO.
/// They are not recorded, because the run may be restored on another machine. Errors: Usage.
[[nodiscard]] std::vector<int> device_numbers(Reader& read, const MachineFacts& machine,
                                              const train::TrainConfig& config,
                                              std::vector<std::string>& notices);

}  // namespace millrace::cli
