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

namespace millrace::training {

/// A text file that is written line by line. Every line goes to the system at once, so that a kill
/// loses none. Errors: Io, naming the file and the system's message.
class LineFile {
 public:
  enum class Open { Fresh, Append };
  /// An empty file starts with the line `head`, if that is not empty.
  LineFile(std::filesystem::path path, Open open, std::string head = {});

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Writes to the file that is at the path now: if the file was removed or replaced meanwhile, to
  /// the new one. If its folder was removed or replaced, it writes to the original file.
  void write(std::string_view line);
  /// How often the file at the path had been removed or replaced.
  [[nodiscard]] int replaced() const noexcept { return replaced_; }
  /// Returns when everything written has reached the disk. May run concurrently with write().
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

/// What happens to an existing line when a run is restored. Keep: it stays. Later: it is removed
/// because it is newer than the restored checkpoint. Damaged: it is removed because a run does not
/// write such lines.
enum class Row { Keep, Later, Damaged };

/// Keeps those lines of the file at `path` for which `judge`, called with line and line number
/// (from 1), returns Keep. A damaged first line is replaced by `head`, if that is not empty, and so
/// is one that `head` continues: later versions add columns. An incomplete last line (from a killed
/// writer) is cut off. If anything else was damaged, the original file is kept as
/// "<path>.damaged". Returns a message about damage, or "". Does nothing if there is no file.
/// Errors: Io.
[[nodiscard]] std::string keep_lines(
    const std::filesystem::path& path, std::string_view head,
    const std::function<Row(std::string_view, std::int64_t)>& judge);

}  // namespace millrace::training
