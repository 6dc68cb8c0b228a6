// SPDX-License-Identifier: Apache-2.0
#include "io/data/class_names.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::io {

std::vector<std::string> read_class_names(const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{8} << 20;
  return split_list(read_text(path, kMaxBytes), '\n');
}

ClassNames read_class_names(const std::filesystem::path& path, std::int64_t classes) {
  constexpr std::int64_t kImageNet = 1000;
  ClassNames found{.names = read_class_names(path), .notice = {}};
  for (std::string& name : found.names)
    if (const std::size_t tab = name.find('\t'); tab != std::string::npos)
      name = fmt::format("{} ({})", name.substr(0, tab), name.substr(tab + 1));
  const std::int64_t names = std::ssize(found.names);
  if (names == kImageNet && classes == kImageNet + 1) {
    found.names.insert(found.names.begin(), "background");
    found.notice = fmt::format(
        "{}: {} names for {} classes: class 0 is called background, and the "
        "names are those of classes 1 to {}",
        path.string(), names, classes, names);
  } else if (names != classes) {
    fail(ErrorKind::Data,
         "{}: {} names of classes, but there are {} classes: give a line for each, in the order of "
         "their numbers",
         path.string(), names, classes);
  }
  return found;
}

}  // namespace millrace::io
