// SPDX-License-Identifier: Apache-2.0
#include "train/network.hpp"

#include "models/registry.hpp"

namespace millrace::train {

models::Graph network_of(const TrainConfig& config) {
  models::Graph graph = models::build_model(config.model);
  models::train_only(graph, config.trained_filters);
  return graph;
}

}  // namespace millrace::train
