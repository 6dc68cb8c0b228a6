// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace millrace::io {

/// The names in a text file: one per line, in the order of the classes, without blanks around them
/// and without empty lines. Errors: Io.
[[nodiscard]] std::vector<std::string> read_class_names(const std::filesystem::path& path);
/// The same. Errors: Data, with both numbers, if there are not as many as `classes`.
[[nodiscard]] std::vector<std::string> read_class_names(const std::filesystem::path& path,
                                                        std::int64_t classes);

}  // namespace millrace::io
