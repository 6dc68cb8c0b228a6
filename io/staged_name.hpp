// SPDX-License-Identifier: Apache-2.0
//
// The names of temporary files that become files when they are complete: "train.packed" is written
// as "train.packed.tmp.4711-0123abcd-89ef4567".
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace millrace::io {

/// Identifies this boot of the machine, equally in all its containers; none if unknown.
[[nodiscard]] std::optional<std::uint32_t> this_boot();

/// End of a temporary file's name. Process ids alone are not enough: containers and hosts that
/// share a volume may have equal ones.
struct Mark {
  std::int64_t process = 0;
  std::uint32_t machine = 0;
  std::uint32_t random = 0;
};

/// A temporary file next to `path`, with the mark of this process.
[[nodiscard]] std::filesystem::path temporary_for(const std::filesystem::path& path);

struct StagedName {
  std::string_view target;
  Mark mark;
};
/// The file that a temporary file becomes, and its mark; none for other names.
[[nodiscard]] std::optional<StagedName> parse_staged(std::string_view name);

}  // namespace millrace::io
