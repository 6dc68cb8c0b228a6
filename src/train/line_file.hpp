// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
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
  /// Returns once everything written has reached the disk. May be called beside write().
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
  std::unique_ptr<std::mutex> reopening_ = std::make_unique<std::mutex>();
  int replaced_ = 0;
};

/// What becomes of a line that is there when a run is restored: it stays; it goes, as it is newer
/// than what is restored; or it goes, as it is not what a run writes.
enum class Row { Keep, Later, Damaged };

/// Keeps of the file at `path` the lines that `judge` wants kept, told their numbers from 1. A
/// first line that is damaged makes room for `head`, if there is one. A last line without its end
/// (from a killed writer) is cut off. Where something else was damaged, the file as it was stays
/// beside it as "<path>.damaged". Returns what is to be said about damage, or "". No file: nothing
/// happens. Errors: Io.
[[nodiscard]] std::string keep_lines(
    const std::filesystem::path& path, std::string_view head,
    const std::function<Row(std::string_view, std::int64_t)>& judge);

}  // namespace millrace::train
