// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/prepare.hpp"
#include "cli/run_name.hpp"
#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/safetensors.hpp"
#include "io/torch_names.hpp"
#include "models/registry.hpp"

namespace millrace::cli {
namespace {

/// Tensors of the checkpoint: parameters and running statistics from the file, the
/// update's slots at rest.
class ImportedTensors {
 public:
  ImportedTensors(const models::Graph& graph, std::vector<io::ImportedParameter> imported,
                  train::OptimiserKind optimiser) {
    for (io::ImportedParameter& parameter : imported)
      values_.emplace(parameter.name, std::move(parameter.values));
    for (const models::Parameter& parameter : graph.parameters) {
      const bool trainable = parameter.trainable();
      add(parameter.name, trainable ? io::TensorRole::Parameter : io::TensorRole::State,
          parameter.shape);
      if (!trainable) continue;
      const auto elements = static_cast<std::size_t>(parameter.elements());
      for (const UpdateSlot& slot : update_slots(optimiser)) {
        const std::string name = fmt::format("{}/{}", parameter.name, slot.name);
        values_.emplace(name, std::vector<float>(elements, slot.initial));
        add(name, io::TensorRole::Slot, parameter.shape);
      }
    }
  }
  [[nodiscard]] const std::vector<io::NamedTensor>& tensors() const { return tensors_; }

 private:
  void add(const std::string& name, io::TensorRole role, const std::vector<std::int64_t>& shape) {
    const std::vector<float>& values = values_.at(name);
    tensors_.push_back({.info = {.name = name, .role = role, .type = DType::F32, .shape = shape},
                        .data = std::as_bytes(std::span(values))});
  }
  std::map<std::string, std::vector<float>> values_;
  std::vector<io::NamedTensor> tensors_;
};

}  // namespace

int command_import(const Invocation& invocation) {
  const Options& options = invocation.options;
  const std::filesystem::path file = options.arguments.at(0);
  const std::filesystem::path run_directory = options.arguments.at(1);
  const DatasetFacts facts = published_facts(data_request(options, DataNeed::Name));
  const Resolution resolution = resolve(options, facts, this_machine());
  for (const std::string& notice : resolution.notices) fmt::print(stderr, "{}\n", notice);
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
