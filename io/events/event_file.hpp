// SPDX-License-Identifier: Apache-2.0
//
// Event files, which TensorBoard displays: TFRecord files of tensorflow.Event messages, one message
// for the numbers of a step. A process writes one file in a folder. A run that was restored has
// several, which TensorBoard reads in the order of their names. What a killed process wrote after
// the checkpoint is cut off, and the next file begins with a mark for TensorBoards that have
// already displayed it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/data/wire.hpp"

namespace millrace::io {

/// A number under the name that TensorBoard displays.
struct Scalar {
  std::string tag;
  double value = 0.0;
};

/// A new event file. Every event goes to the system at once, so that a kill loses none. Errors: Io,
/// naming the file.
class EventFile {
 public:
  /// Creates the folder and a file in it whose name follows those of all others. `restored`: the
  /// last step that the run keeps of its earlier files.
  explicit EventFile(const std::filesystem::path& folder,
                     std::optional<std::int64_t> restored = std::nullopt);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  void add(std::int64_t step, std::span<const Scalar> scalars);
  /// A tensorflow.Summary.
  void add(std::int64_t step, const WireMessage& summary);
  /// Returns when everything written has reached the disk.
  void sync() const;

 private:
  void write(std::int64_t step, int field, std::string_view content);

  std::filesystem::path path_;
  UniqueFd file_;
  std::uint64_t written_ = 0;
};

/// Seconds since 1970, which events carry as their wall time.
[[nodiscard]] double seconds_now();

/// Cuts the event files in a folder off behind the last event of a step up to `last`. An event that
/// is incomplete or damaged is cut off with what follows it, which TensorBoard would not read.
/// Errors: Io.
void cut_event_files(const std::filesystem::path& folder, std::int64_t last);

}  // namespace millrace::io
