// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

namespace millrace::train {

/// A text file that grows line by line; every line is handed to the system at once, so that a kill
/// loses none. Errors: Io, naming the file and what the system said.
class LineFile {
 public:
  enum class Open { Fresh, Append };
  LineFile(std::filesystem::path path, Open open);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  void write(std::string_view line);
  /// Returns once everything written has reached the disk.
  void sync();

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// Shortens the file at `path` to the lines before the first one that `keep` turns down; a last
/// line without its end (from a killed writer) goes too. No file: nothing happens.
void cut_lines(const std::filesystem::path& path,
               const std::function<bool(std::string_view)>& keep);

}  // namespace millrace::train
