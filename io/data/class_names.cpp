// SPDX-License-Identifier: Apache-2.0
#include "io/data/class_names.hpp"

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::io {

std::vector<std::string> read_class_names(const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{8} << 20;
  return split_list(read_text(path, kMaxBytes), '\n');
}

std::vector<std::string> read_class_names(const std::filesystem::path& path, std::int64_t classes) {
  std::vector<std::string> names = read_class_names(path);
  if (std::ssize(names) != classes)
    fail(ErrorKind::Data,
         "{}: {} names of classes, but there are {} classes: give a line for each, in the order of "
         "their numbers",
         path.string(), names.size(), classes);
  return names;
}

}  // namespace millrace::io
