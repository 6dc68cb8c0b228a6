// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <span>
#include <string>

#include "io/checkpoint.hpp"
#include "models/graph.hpp"

namespace millrace::train {

/// Parameters and running statistics that a run takes from the checkpoint `tensors` which it begins
/// with: all of the network but those whose names contain one of the texts `fresh`, which begin
/// with their initial values (the last layer, for another number of classes). Slots are never
/// taken. Errors: Config for a text that is in no name, with the nearest; Checkpoint, in one line
/// with all tensors that differ in shape or are on one side only and that no text covers.
[[nodiscard]] std::set<std::string> tensors_to_take(const models::Graph& graph,
                                                    std::span<const io::TensorInfo> tensors,
                                                    std::span<const std::string> fresh,
                                                    const std::string& path);

}  // namespace millrace::train
