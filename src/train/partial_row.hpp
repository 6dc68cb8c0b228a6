// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::training {

/// The iterations since the last row, and the time of the run. The only state of the log that must
/// be kept in a checkpoint.
struct PartialRow {
  std::int64_t iterations = 0;
  double loss_sum = 0.0;
  std::int64_t correct = 0;
  std::int64_t correct_top5 = 0;
  std::int64_t left_out = 0;   ///< iterations whose loss was not finite
  double total_seconds = 0.0;  ///< of the run so far; 0 in early checkpoints
  friend bool operator==(const PartialRow&, const PartialRow&) = default;
};
[[nodiscard]] std::string to_json(const PartialRow& partial);
/// The inverse, of a checkpoint after `iteration` iterations; an empty text is an empty row.
/// Error(Checkpoint) for anything else.
[[nodiscard]] PartialRow parse_partial_row(std::string_view text, std::int64_t iteration);

}  // namespace millrace::training
