// SPDX-License-Identifier: Apache-2.0
#include "train/network.hpp"

#include "models/registry.hpp"

namespace millrace::train {

models::Graph network_of(const TrainConfig& config) {
  models::Graph graph = models::build_model(config.model);
  models::train_only(graph, config.trained_filters);
  return graph;
}

pipeline::ProgramOptions training_program(const TrainConfig& config) {
  return {.batch = config.batch_size,
          .type = config.precision.activations,
          .recompute = config.recompute,
          .recompute_layers = config.recompute_layers,
          .images = config.data.image_type,
          .mixing = config.data.mixing.on()};
}

}  // namespace millrace::train
