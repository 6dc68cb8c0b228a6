// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "models/graph.hpp"

namespace millrace::models {

/// A graph as JSON, for files that keep a network: its name, the shape of an image, the classes,
/// and its ops by layer, each with the numbers of the values that it reads (0: the image, n: what
/// the n-th op makes) and its attributes. Whether parameters are frozen is not part of it.
[[nodiscard]] Json to_json(const Graph& graph);

/// The graph that equals the one written. The JSON is untrusted. Errors: JsonError, also for ops
/// that do not fit each other.
[[nodiscard]] Graph graph_from_json(const Json& json);

}  // namespace millrace::models
