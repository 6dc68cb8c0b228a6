// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "comm/world.hpp"
#include "ops/kernel_tuner.hpp"
#include "train/config.hpp"
#include "train/setup.hpp"

namespace millrace::cli {

/// Errors: Usage if --tune is given where no library offers several kernels.
void require_tunable(const Options& options);

/// `bench --tune FILE`: measures the kernels of a network on the GPU of this process and writes the
/// fastest. Errors: Usage for options that have no effect with it, and for more than one process.
int bench_tune(const Invocation& invocation, const comm::World& world, StartupWatch& watch);

/// Its part behind the options. Rows of other shapes that the file has stay in it. Prints a line
/// for each pass. Errors: Usage if the file is a table of another device or library; Config if it
/// is no table; Io.
void tune_into(const std::filesystem::path& file, const train::TrainConfig& config, train::Use use,
               ops::KernelTuner& tuner);

}  // namespace millrace::cli
