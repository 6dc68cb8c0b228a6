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
#include <utility>
#include <variant>
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

/// Cuts the event files in a folder off behind the last event of a step up to `last`. An event that
/// is incomplete or damaged is cut off with what follows it, which TensorBoard would not read.
/// Errors: Io.
void cut_event_files(const std::filesystem::path& folder, std::int64_t last);

/// A number, text or flag by which TensorBoard's HParams tab compares runs.
using HParam = std::variant<double, bool, std::string>;
using HParams = std::vector<std::pair<std::string, HParam>>;

/// Writes what makes a run a row of the HParams tab. Its columns are these values, and the scalars
/// of event files in the same folder and in those below it.
void begin_session(EventFile& file, const HParams& hparams);
/// The run is complete, after this step.
void end_session(EventFile& file, std::int64_t step);

}  // namespace millrace::io
