// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/program.hpp"
#include "pipeline/schedule/schedule.hpp"

namespace millrace::pipeline {

/// A point-to-point message: one value, or its gradient, that goes from one stage to another for
/// every micro-batch. Stages on one device exchange it as a copy.
struct Message {
  ValueId value;
  std::int32_t from = 0;  ///< stages
  std::int32_t to = 0;
  bool gradient = false;
  friend auto operator<=>(const Message&,
                          const Message&) = default;  // NOLINT(modernize-use-nullptr)
};

/// What a network that is cut into `ranges` (which cover it, in order) sends. A value goes from the
/// stage that makes it to every stage that reads it. Its gradient, if it is needed, comes back from
/// reader to reader, last reader first. Sorted, so that a message's index can be its tag.
[[nodiscard]] std::vector<Message> messages(const Graph& graph, std::span<const OpRange> ranges);

/// The same as links between stages, sorted.
[[nodiscard]] std::vector<Link> links(std::span<const Message> messages);
[[nodiscard]] std::vector<Link> links(const Graph& graph, std::span<const OpRange> ranges);

}  // namespace millrace::pipeline
