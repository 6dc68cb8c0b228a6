// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command_line.hpp"

namespace millrace::cli {

/// The runs directly below a folder that is none itself, the last one to write first: those with
/// checkpoints, or all.
enum class RunsWith { Checkpoints, Anything };
[[nodiscard]] std::vector<std::filesystem::path> runs_below(const std::filesystem::path& folder,
                                                            RunsWith with);

/// Where a command is given a folder of runs in place of a run, puts the run in its place: the only
/// one, or for the directory that the training of a dialect was given, the newest one. Returns
/// lines that name what was found. Errors: Usage if --restore-path or an argument could mean
/// several runs, listing them.
[[nodiscard]] std::vector<std::string> find_recorded_runs(CommandLine& line);

}  // namespace millrace::cli
