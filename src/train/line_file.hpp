// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "io/atomic_file.hpp"

namespace millrace::train {

/// A text file that grows line by line; every line is handed to the system at once, so that a kill
/// loses none. Errors: Io, naming the file and what the system said.
class LineFile {
 public:
  enum class Open { Fresh, Append };
  /// An empty file begins with the line `head`, if there is one.
  LineFile(std::filesystem::path path, Open open, std::string head = {});

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Goes to the file that lies at the path now: another one, or a new one, where it was removed or
  /// replaced meanwhile; but to the first one when its folder was.
  void write(std::string_view line);
  /// How often that was another one.
  [[nodiscard]] int replaced() const noexcept { return replaced_; }
  /// Returns once everything written has reached the disk.
  void sync();

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  void begin();
  void reopen();
  void put(std::string_view line);

  std::filesystem::path path_;
  std::string head_;
  std::unique_ptr<std::FILE, Close> file_;
  io::FileIdentity identity_;
  io::FileIdentity folder_;
  int replaced_ = 0;
};

/// What becomes of a line: it stays, or it goes with all that follow it, as they are newer than
/// what is restored or not what a run writes.
enum class Row { Keep, Later, Damaged };

/// Shortens the file at `path` to the lines before the first one that `judge`, told its number from
/// 1, does not keep; a last line without its end (from a killed writer) goes too. Returns what is
/// to be said about damage, or "". No file: nothing happens. Errors: Io.
[[nodiscard]] std::string cut_lines(
    const std::filesystem::path& path,
    const std::function<Row(std::string_view, std::int64_t)>& judge);

}  // namespace millrace::train
