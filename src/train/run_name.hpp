// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "run/run.hpp"
#include "train/resolve.hpp"

namespace millrace::training {

/// Files of a supervisor in the directory of its run, which a new start of the run keeps.
inline constexpr std::string_view kSupervisorLock = ".supervisor";
inline constexpr std::string_view kSupervisorLog = "supervisor.jsonl";

/// Name of a run's directory as the IPU trainer gives it, e.g. "RN20_bs32x4a_BN_16.32_v0.2.0_3S9":
/// model, batch size, accumulation, norm, precision, image size if unusual, suffix, version, tag.
[[nodiscard]] std::string run_name(const run::Run& config, std::string_view version,
                                   std::string_view tag);

/// Three random characters of A-Z0-9. They do not depend on the seed, because two runs with the
/// same options need different directories.
[[nodiscard]] std::string random_tag();

/// The directories on a path that are not there yet, the innermost first.
[[nodiscard]] std::vector<std::filesystem::path> missing_directories(std::filesystem::path path);
/// Removes those of the directories that are there and hold nothing. Never fails.
void remove_empty(const std::vector<std::filesystem::path>& directories);

/// Creates a new directory and its parents. The remains of a run that ended before its first
/// checkpoint are removed. `place` is how the user gives the directory. Errors: Io with the path;
/// Usage if that run is still running.
void create_run_directory(const std::filesystem::path& directory,
                          std::string_view place = "`run-dir`");

/// Creates the directory of a run and returns it: the given one, or a new one in the log directory.
/// Empty if the run keeps nothing.
[[nodiscard]] std::filesystem::path create_run_directory(const run::Run& config,
                                                         std::string_view version);

/// Finds out whether that directory can be created, and leaves nothing there. Errors: the same.
void require_run_directory(const run::Run& config, std::string_view version);

}  // namespace millrace::training
