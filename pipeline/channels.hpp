// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/program.hpp"
#include "pipeline/schedule.hpp"

namespace millrace::pipeline {

/// What is sent between two stages for every micro-batch: one value, or its gradient.
struct Channel {
  ValueId value;
  std::int32_t from = 0;  ///< stages
  std::int32_t to = 0;
  bool gradient = false;
  friend auto operator<=>(const Channel&,
                          const Channel&) = default;  // NOLINT(modernize-use-nullptr)
};

/// All channels of a network cut into `ranges` (which cover it, in order): a value goes from the
/// stage that makes it to every stage that reads it, its gradient from reader to reader, the last
/// one first, and only where it is wanted. Sorted, so that a channel's index may serve as the tag
/// of its messages.
[[nodiscard]] std::vector<Channel> channels(const Graph& graph, std::span<const OpRange> ranges);

/// The same as links between stages, sorted.
[[nodiscard]] std::vector<Link> links(std::span<const Channel> channels);

}  // namespace millrace::pipeline
