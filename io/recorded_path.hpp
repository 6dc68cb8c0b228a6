// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace millrace::io {

/// Requires a directory where a run or a checkpoint is asked for. Every command that takes one asks
/// here, before it looks for more. Errors: Usage for another path, with what to give instead.
void require_recorded_directory(const std::filesystem::path& path);

}  // namespace millrace::io
