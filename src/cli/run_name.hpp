// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "cli/resolve.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// Name of a run's directory as the IPU trainer gives it, e.g. "RN20_bs32x4a_BN_16.32_v0.1.0_3S9":
/// model, batch size, accumulation, norm, precision, image size where unusual, suffix, version,
/// tag.
[[nodiscard]] std::string run_name(const train::TrainConfig& config, std::string_view suffix,
                                   std::string_view version, std::string_view tag);

/// Three random characters of A-Z0-9. The only number of a run that its seed does not decide: two
/// runs with the same options must not meet in one directory.
[[nodiscard]] std::string random_tag();

/// Makes the directory, which nobody had before, and what it lies in. A run that ended before its
/// first checkpoint is nobody: its remains are removed. Errors: Io with the path; Usage when that
/// run is still at work.
void create_run_directory(const std::filesystem::path& directory);

/// Makes the directory for a run and returns it: the one given by name, or a new one in the log
/// directory. Empty when the run keeps nothing.
[[nodiscard]] std::filesystem::path create_run_directory(const RunPlace& place,
                                                         const train::TrainConfig& config,
                                                         std::string_view version);

}  // namespace millrace::cli
