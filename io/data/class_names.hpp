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

/// Names of classes, and what is to be said about them, or "".
struct ClassNames {
  std::vector<std::string> names;
  std::string notice;
};
/// The names of `classes` classes; what people call one may follow behind a tab: "n01443537
/// (goldfish)". ImageNet's 1000 names are those of classes 1 to 1000 of 1001, whose first one is
/// the background; the notice says so. Errors: Io; Data, with both numbers, if there are not as
/// many as `classes`.
[[nodiscard]] ClassNames read_class_names(const std::filesystem::path& path, std::int64_t classes);

}  // namespace millrace::io
