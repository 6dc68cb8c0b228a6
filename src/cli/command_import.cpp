// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "cli/commands.hpp"
#include "cli/imported_tensors.hpp"
#include "cli/prepare.hpp"
#include "cli/run_name.hpp"
#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/safetensors.hpp"
#include "io/torch_names.hpp"
#include "models/registry.hpp"

namespace millrace::cli {

int command_import(const Invocation& invocation) {
  const Options& options = invocation.options;
  const std::filesystem::path file = options.arguments.at(0);
  const std::filesystem::path run_directory = options.arguments.at(1);
  const DatasetFacts facts = published_facts(options);
  const Resolution resolution = resolve(options, facts, this_machine());
  print_lines(stderr, resolution.notices);
  const train::TrainConfig& config = resolution.config;

  const models::Graph graph = models::build_model(config.model);
  const ImportedTensors imported(graph, io::import_torch(io::SafeTensorsFile(file), graph),
                                 config.optimiser.kind);
  create_run_directory(run_directory);
  io::write_file_atomically(run_directory / "config.toml", config.resolved_toml);
  io::CheckpointHeader header;
  header.model = graph.name;
  header.config_toml = config.resolved_toml;
  header.environment = fmt::format("imported from {}", file.filename().string());
  const std::filesystem::path checkpoint =
      io::write_checkpoint(run_directory / "checkpoints", header, imported.tensors());
  fmt::print("Total Parameters: {}\nSaved checkpoint to {}\n", graph.trainable_elements(),
             checkpoint.string());
  return 0;
}

}  // namespace millrace::cli
