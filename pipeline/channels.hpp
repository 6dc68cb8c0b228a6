// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/program.hpp"
#include "pipeline/schedule.hpp"

namespace millrace::pipeline {

/// One value, or its gradient, that is sent between two stages for every micro-batch.
struct Channel {
  ValueId value;
  std::int32_t from = 0;  ///< stages
  std::int32_t to = 0;
  bool gradient = false;
  friend auto operator<=>(const Channel&,
                          const Channel&) = default;  // NOLINT(modernize-use-nullptr)
};

/// All channels of a network cut into `ranges` (which cover it, in order). A value goes from the
/// stage that makes it to every stage that reads it. Its gradient, if it is needed, comes back from
/// reader to reader, last reader first. Sorted, so that a channel's index can be the tag of its
/// messages.
[[nodiscard]] std::vector<Channel> channels(const Graph& graph, std::span<const OpRange> ranges);

/// The same as links between stages, sorted.
[[nodiscard]] std::vector<Link> links(std::span<const Channel> channels);

}  // namespace millrace::pipeline
