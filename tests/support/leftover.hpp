// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "io/atomic_file.hpp"

namespace millrace::test {

/// The temporary file that will become `path`. Throws std::runtime_error if there is none.
inline std::filesystem::path temporary_of(const std::filesystem::path& path) {
  const std::string begin = path.filename().string() + ".tmp.";
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path()))
    if (entry.path().filename().string().starts_with(begin)) return entry.path();
  throw std::runtime_error("nothing writes " + path.string());
}

/// Creates the file that a killed writer of `path` leaves behind; returns its path.
inline std::filesystem::path leave_temporary(const std::filesystem::path& path) {
  std::filesystem::create_directories(path.parent_path());
  std::filesystem::path temporary;
  {
    const io::StagedFile file(path);
    temporary = temporary_of(path);
  }
  std::ofstream(temporary) << "left over";
  return temporary;
}

}  // namespace millrace::test
