// SPDX-License-Identifier: Apache-2.0
//
// Files that describe a machine for plans. `bench --machine-file` measures and writes one; `plan
// --device` and `plan --link` read one that was measured, or written by hand from a data sheet.
#pragma once

#include <filesystem>
#include <string>

#include "partition/machine.hpp"

namespace millrace::cli {

[[nodiscard]] std::string to_toml(const partition::Machine& machine);

/// The inverse of to_toml; all keys but the rates of one type may be missing. Errors: Config with
/// file, line and key; Io.
[[nodiscard]] partition::Machine parse_machine(const std::string& text,
                                               const std::string& file_name);
[[nodiscard]] partition::Machine read_machine(const std::filesystem::path& file);

}  // namespace millrace::cli
