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

/// What --available-memory-proportion allows the kernels of the vendor's library, in bytes: nothing
/// was said, one number, or two for every stage. A device's memory is --device-memory, or else the
/// machine's by the ranks on it. Errors: Usage.
[[nodiscard]] std::vector<std::int64_t> scratch_caps(Reader& read, const MachineFacts& machine,
                                                     const train::TrainConfig& config);

/// The devices that --select-ipus names, by replica and device of the pipeline; none for AUTO. They
/// are not recorded, as another start of the same run may be on another machine. Errors: Usage.
[[nodiscard]] std::vector<int> device_numbers(Reader& read, const MachineFacts& machine,
                                              const train::TrainConfig& config,
                                              std::vector<std::string>& notices);

}  // namespace millrace::cli
