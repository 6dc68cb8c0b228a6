// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "cli/commands.hpp"
#include "cli/imported_tensors.hpp"
#include "cli/like.hpp"
#include "cli/prepare.hpp"
#include "cli/run_name.hpp"
#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/data/class_names.hpp"
#include "io/weights/import.hpp"
#include "models/registry.hpp"
#include "train/network_facts.hpp"

namespace millrace::cli {

namespace {

/// The options, and those that follow from the file.
Options completed(const Options& options, const io::Identified& found) {
  Options all = options;
  const std::string where = options.arguments.at(0);
  add_implied(all, options_shown(found), where);
  add_implied(all, options_assumed(found), where);
  return all;
}

/// What the file was taken for.
void tell(const io::Identified& found, const Options& options) {
  fmt::print("{}: {}\nAs in {}: {}\n", options.arguments.at(0),
             text_of(options_shown(found), options), io::name_of(found.style),
             text_of(options_assumed(found), options));
}

}  // namespace

int command_import(const Invocation& invocation) {
  const io::TensorFile file = io::read_tensor_file(invocation.options.arguments.at(0));
  const io::Identified found = io::identify(file, wanted_styles(invocation.options));
  const Options options = completed(invocation.options, found);
  const std::filesystem::path run_directory = options.arguments.at(1);
  DatasetFacts facts = published_facts(options);
  facts.classes = std::min(facts.classes, found.model.classes);
  if (const auto names = options.text("class-names"))
    facts.class_names = io::read_class_names(*names, facts.classes);
  const Resolution resolution = resolve(options, facts, this_machine());
  print_lines(stderr, resolution.notices);
  const train::TrainConfig& config = resolution.config;

  const models::Graph graph = models::build_model(config.model);
  const ImportedTensors imported(graph, io::import_weights(file, graph, found.style),
                                 config.optimiser.kind);
  tell(found, options);
  create_run_directory(run_directory);
  io::write_file_atomically(run_directory / "config.toml", config.resolved_toml);
  io::CheckpointHeader header;
  header.model = graph.name;
  header.config_toml = config.resolved_toml;
  header.network = to_json(train::facts_of(config));
  header.environment = fmt::format("imported from {}", file.path().filename().string());
  const std::filesystem::path checkpoint =
      io::write_checkpoint(run_directory / "checkpoints", header, imported.tensors());
  fmt::print("Total Parameters: {}\nSaved checkpoint to {}\n", graph.trainable_elements(),
             checkpoint.string());
  return 0;
}

}  // namespace millrace::cli
