// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/graph.hpp"
#include "onnx.pb.h"

namespace millrace::io {

/// The key of the metadata in which a file that was written here keeps its graph as JSON: ONNX
/// knows neither layers nor drop-connect nor initializers.
inline constexpr const char* kGraphNote = "millrace.graph";

/// What to_onnx() writes for a graph, with tensors that have no elements.
[[nodiscard]] onnx::ModelProto structure_of(const models::Graph& graph);

}  // namespace millrace::io
