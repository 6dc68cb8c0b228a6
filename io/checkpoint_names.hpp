// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "io/checkpoint.hpp"

namespace millrace::io {

inline constexpr std::string_view kReplacedSuffix = ".replaced";

/// "ckpt-1200".
[[nodiscard]] std::string checkpoint_name(std::int64_t iteration);
/// ".ckpt-1200.tmp.4711": name of "ckpt-1200" while process 4711 writes or removes it.
[[nodiscard]] std::string temporary_name(std::string_view name, std::int64_t process);
/// "part-000.h5".
[[nodiscard]] std::string part_name(int number);
/// "/parameters/b0/conv/kernel": path of a tensor in its part.
[[nodiscard]] std::string dataset_path(const TensorInfo& info);

/// The iteration in "ckpt-1200" or "ckpt-1200.replaced"; nothing for other names.
[[nodiscard]] std::optional<std::int64_t> iteration_in(std::string_view name);
/// The process in a temporary_name; nothing for other names.
[[nodiscard]] std::optional<std::int64_t> process_in(std::string_view name);

/// Removes a checkpoint if it exists. A kill never leaves a partial checkpoint under its name.
/// Errors: Io.
void remove_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace millrace::io
