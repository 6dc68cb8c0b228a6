// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.hpp"
#include "models/model_options.hpp"

namespace millrace::models {

/// The IPU trainer's defaults for a model and task: size, classes, image size, normalization and
/// its groups, shortcut. Errors: Config for an unknown model, with the known ones.
[[nodiscard]] ModelOptions default_options(std::string_view model, Task task);

/// The families, and the published sizes of one. Errors: Config for an unknown model.
[[nodiscard]] std::vector<std::string_view> model_names();
[[nodiscard]] std::vector<std::string> model_sizes(std::string_view model, Task task);

/// The options of a network that is given: its name is their size, and what it reads and says is as
/// in the graph.
[[nodiscard]] ModelOptions given_options(std::shared_ptr<const Graph> graph, Task task);

/// Builds the network. Of one that is given only the replicas that share statistics can be chosen.
/// Errors: Config for an unknown model or size, with the known ones.
[[nodiscard]] Graph build_model(const ModelOptions& options);
/// The same; nothing if the options do not go together.
[[nodiscard]] std::optional<Graph> try_to_build(const ModelOptions& options);

}  // namespace millrace::models
