// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "tests/support/file_bytes.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/test.hpp"

namespace millrace::io {

using test::TemporaryDirectory;

inline void write_bytes(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
  test::write_file(path, std::as_bytes(bytes));
}

inline std::vector<std::uint8_t> read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The real data beside the project, if present.
inline std::optional<std::filesystem::path> real_data(const std::string& name) {
  const char* const variable = std::getenv("MILLRACE_TEST_DATA");
  const std::filesystem::path root =
      variable != nullptr ? std::filesystem::path(variable)
                          : std::filesystem::path(MILLRACE_SOURCE_DIR) / "../shared/data";
  if (!std::filesystem::exists(root / name)) return std::nullopt;
  return root / name;
}

/// A writable copy, whatever the permissions of the original.
inline void copy_writable(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  std::filesystem::permissions(to, std::filesystem::perms::owner_all);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(to))
    if (entry.is_directory())
      std::filesystem::permissions(entry.path(), std::filesystem::perms::owner_all);
}

/// Expects an Error of this kind whose one-line text contains all `parts`.
inline void expect_error(ErrorKind kind, const std::vector<std::string>& parts,
                         const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.kind(), kind) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

}  // namespace millrace::io
