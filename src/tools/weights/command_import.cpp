// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/open_run.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "core/update_rule.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/data/class_names.hpp"
#include "io/tensor_checks.hpp"
#include "models/registry.hpp"
#include "run/published_set.hpp"
#include "tools/weights/commands.hpp"
#include "train/network_facts.hpp"
#include "train/run_name.hpp"
#include "train/summaries.hpp"

namespace millrace::cli {

namespace {

using training::create_run_directory;
using training::missing_directories;
using training::NotedExport;
using training::read_notes;
using training::remove_empty;
using training::values_of;

/// Tensors for a checkpoint that no training wrote: parameters and running statistics as given, and
/// initial optimizer state.
class ImportedTensors {
 public:
  /// `imported` in the order of the graph.
  ImportedTensors(const models::Graph& graph, std::vector<io::ImportedParameter> imported,
                  UpdateRule optimiser) {
    for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
      const models::Parameter& parameter = graph.parameters[i];
      const bool trainable = parameter.trainable();
      add({parameter.name, trainable ? io::TensorRole::Parameter : io::TensorRole::State,
           DType::F32, parameter.shape},
          std::move(imported.at(i).values));
      if (!trainable) continue;
      const auto elements = static_cast<std::size_t>(parameter.elements());
      for (const UpdateSlot& slot : update_slots(optimiser))
        add({fmt::format("{}/{}", parameter.name, slot.name), io::TensorRole::Slot, DType::F32,
             parameter.shape},
            std::vector<float>(elements, slot.initial));
    }
  }
  [[nodiscard]] const std::vector<io::NamedTensor>& tensors() const { return tensors_; }

 private:
  void add(const io::TensorInfo& info, std::vector<float> values) {
    const std::span<const float> kept = values_.emplace_back(std::move(values));
    tensors_.push_back({.info = info, .data = std::as_bytes(kept)});
  }
  std::vector<std::vector<float>> values_;
  std::vector<io::NamedTensor> tensors_;
};

/// Errors: Usage for a folder, as a run is.
void require_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return;
  fail(ErrorKind::Usage, "{}: is a directory, not a file of weights: {}", path.string(),
       io::list_checkpoints(path).empty()
           ? "give a file in it"
           : "it holds checkpoints, which need no import: give it to validate, predict or "
             "--init-path as it is");
}

/// Refuses options that ask for another network than the file's. Without this, they would be
/// refused together with those that follow from the file, as if no network had both. Errors: Usage.
void require_network(const Invocation& invocation, const io::Identified& found) {
  const Patch& given = invocation.options;
  const models::ModelOptions& held = found.model;
  const auto require = [&](std::string_view option, bool agrees, std::string_view whose = "",
                           std::string_view otherwise = "") {
    const Setting* const setting = given.find(option);
    if (setting == nullptr || agrees) return;
    const bool flag = std::holds_alternative<bool>(setting->value);
    fail(ErrorKind::Usage, "{}{} contradicts {}, which holds {}{}: leave it out{}", setting->where,
         flag ? "" : " " + to_string(setting->value), invocation.arguments.at(0),
         io::to_string(found), whose, otherwise);
  };
  const auto is = [&](std::string_view option, std::string_view value) {
    return to_lower(given.text(option).value_or("")) == to_lower(value);
  };
  require("model", is("model", held.model));
  require("model-size", is("model-size", held.size) ||
                            (held.size.starts_with('B') && is("model-size", held.size.substr(1))));
  const std::string dataset = given.text("dataset").value_or("");
  require("dataset", dataset.starts_with("cifar") == (held.task == models::Task::Cifar));
  if (models::find_family(held.model).normed && held.norm == models::NormKind::Batch)
    require("group-norm", !given.flag("group-norm"),
            ", with the means and variances of batch normalization",
            "; a training with group normalization can start from its other weights: import it as "
            "it is, then give train --group-norm --init-path RUN_DIR --init-fresh norm");
  if (held.model != "resnet") return;
  const bool second = held.residual.version == models::ResNetVersion::V2;
  require("resnet-version", is("resnet-version", "2") == second,
          second ? ", whose blocks normalize before each convolution, as version 2 does"
                 : ", whose blocks normalize after each convolution, as versions 1 and 1.5 do",
          second ? ", or give --resnet-version 2" : ", or give --resnet-version 1.5");
  const bool basic = held.block == models::BlockKind::Basic;
  require("block", is("block", "auto") || is("block", basic ? "basic" : "bottleneck"));
}

/// Refuses a model beside a file that holds the network itself. Errors: Usage.
void require_no_model(const Invocation& invocation) {
  if (const Setting* const model = invocation.options.find("model"))
    fail(ErrorKind::Usage, "{} {} has no effect here: {} holds the network", model->where,
         to_string(model->value), invocation.arguments.at(0));
}

/// Refuses images of another size than the file's, which a training may change. Errors: Usage.
void require_image_size(const Invocation& invocation, const io::Identified& found) {
  const Patch& given = invocation.options;
  const std::optional<std::int64_t> size = given.integer("image-size");
  const std::optional<std::int64_t> held = found.input.image_side;
  if (!size || !held || *size == *held) return;
  fail(ErrorKind::Usage,
       "{} {} contradicts {}, whose network reads images of {} x {}: leave it out; a training with "
       "images of another size starts from the imported run with --init-path {}",
       given.find("image-size")->where, *size, invocation.arguments.at(0), *held, *held,
       invocation.arguments.at(1));
}

/// Refuses another number of classes than the file's, which a training may change. Errors: Usage.
void require_classes(const Invocation& invocation, const io::Identified& found) {
  const Patch& given = invocation.options;
  const std::optional<std::int64_t> classes = given.integer("classes");
  if (!classes || *classes == found.model.classes) return;
  const std::string last = models::build_model(found.model).parameters.back().name;
  fail(ErrorKind::Usage,
       "{} {}: {} has {} classes: leave the option out; a training of another number of classes "
       "starts from the imported run with --init-path {} --init-fresh {}",
       given.find("classes")->where, *classes, invocation.arguments.at(0), found.model.classes,
       invocation.arguments.at(1), last.substr(0, last.rfind('/')));
}

/// What the file was taken for, and what was assumed as nobody gave it.
void tell(const io::Identified& found, const Invocation& invocation, const Patch& options) {
  fmt::print("{}: {}\n", printable(invocation.arguments.at(0)),
             text_of(options_shown(found), options));
  std::vector<ImpliedOption> assumed = options_assumed(found);
  std::erase_if(assumed, [&](const ImpliedOption& option) {
    return invocation.options.find(option.name) != nullptr;
  });
  if (!assumed.empty())
    fmt::print("As in {}: {}\n", io::name_of(found.style), text_of(assumed, options));
}

/// What is known of the data set for a network with so many outputs, from `facts`. Image folders
/// may have fewer classes than ImageNet; those of CIFAR are fixed. Errors: Data, if --dataset names
/// one that has more.
DatasetFacts facts_for(std::int64_t outputs, const Invocation& invocation, const Patch& completed,
                       DatasetFacts facts) {
  const std::string dataset = invocation.options.text("dataset").value_or("");
  if (dataset.starts_with("cifar") && outputs < facts.classes)
    fail(ErrorKind::Data, "{}: its network has {} classes, but {} has {}: leave --dataset out",
         invocation.arguments.at(0), outputs, dataset, facts.classes);
  facts.classes = std::min(facts.classes, outputs);
  if (const auto file = completed.text("class-names")) {
    io::ClassNames found = io::read_class_names(*file, facts.classes);
    facts.class_names = std::move(found.names);
    if (!found.notice.empty()) print_lines(stderr, {found.notice});
  }
  return facts;
}

/// Removes a run that could not be written, and the directories that were made for it.
void remove_begun(const std::filesystem::path& run_directory,
                  const std::vector<std::filesystem::path>& made) {
  std::error_code ignored;
  for (const char* name : {"config.toml", "checkpoints"})
    std::filesystem::remove_all(run_directory / name, ignored);
  remove_empty(made);
}

/// Writes a run; nothing is left of one that cannot be written.
void write_run(const Invocation& invocation, const models::Graph& graph, const run::Run& config,
               const ImportedTensors& imported) {
  const std::filesystem::path run_directory = invocation.arguments.at(1);
  const std::filesystem::path file = invocation.arguments.at(0);
  const std::vector<std::filesystem::path> missing = missing_directories(run_directory);
  create_run_directory(run_directory, "RUN_DIR");
  io::CheckpointHeader header;
  header.model = graph.name;
  header.config_toml = to_toml(config);
  header.network = to_json(training::facts_of(config));
  header.environment = fmt::format("imported from {}", file.filename().string());
  std::filesystem::path checkpoint;
  try {
    io::write_file_atomically(run_directory / "config.toml", to_toml(config));
    checkpoint = io::write_checkpoint(run_directory / "checkpoints", header, imported.tensors());
  } catch (const Error&) {
    remove_begun(run_directory, missing);
    throw;
  }
  fmt::print("Total Parameters: {}\nImage Size: {}x{}\nSaved checkpoint to {}\n",
             graph.trainable_elements(), config.model.image.h, config.model.image.w,
             printable(checkpoint.string()));
}

/// The values of a network, after which no error is left but those of writing.
using Values = std::function<std::vector<io::ImportedParameter>(const models::Graph&)>;

/// Makes a run of options and the values of their network, which has so many outputs.
int make_run(const Invocation& invocation, const Patch& options, std::int64_t outputs,
             DatasetFacts known, const Values& values) {
  const DatasetFacts facts = facts_for(outputs, invocation, options, std::move(known));
  const Resolution resolution = resolve(options, facts, this_machine());
  print_lines(stderr, resolution.notices);
  const run::Run& config = resolution.config;
  const models::Graph graph = models::build_model(config.model);
  write_run(invocation, graph, config,
            ImportedTensors(graph, values(graph), config.optimiser.kind));
  return 0;
}

/// The options of a run of the network in an ONNX file, which says what it reads and how many
/// classes there are.
Patch options_of(const io::NetworkFile& onnx, const Invocation& invocation) {
  Patch options = invocation.options;
  const std::string& file = invocation.arguments.at(0);
  require_no_model(invocation);
  const models::Graph& graph = onnx.graph;
  const bool small = graph.input_shape == Shape{32, 32, 3};
  const models::Task task = small ? models::Task::Cifar : models::Task::ImageNet;
  const std::vector<ImpliedOption> implied = {
      {"model", file}, {"dataset", std::string(run::set_of_network(task, graph.classes).name)}};
  add_implied(options, implied, file);
  options.network = std::make_shared<const models::Graph>(graph);
  fmt::print("{}: {}\n", printable(file), text_of(implied, options));
  return options;
}

std::vector<io::ImportedParameter> values_of(const io::NetworkFile& onnx, const std::string& file) {
  std::vector<io::ImportedParameter> values;
  for (std::size_t i = 0; i < onnx.graph.parameters.size(); ++i) {
    const models::Parameter& parameter = onnx.graph.parameters[i];
    values.push_back({parameter.name, onnx.values({static_cast<std::int32_t>(i)})});
    if (const std::string bad =
            io::bad_value(values.back().values, parameter.shape, parameter.name);
        !bad.empty())
      fail(ErrorKind::Data, "{}: {}{}: the network cannot use this value: export it again", file,
           parameter.name, bad);
  }
  return values;
}

/// The network that an exported file notes. Errors: Usage for options that ask for another one.
models::ModelOptions noted_model(const Invocation& invocation, const NotedExport& noted) {
  models::ModelOptions model = network_of(noted, invocation.arguments.at(0));
  const io::Identified held{.style = noted.names.value_or(io::WeightStyle::Torchvision),
                            .model = model};
  if (model.given.graph)
    require_no_model(invocation);
  else
    require_network(invocation, held);
  require_classes(invocation, held);
  return model;
}

/// Makes a run of a file that millrace exported, which says what no tensor shows.
int import_noted(const Invocation& invocation, NotedExport noted, const Values& values) {
  const Patch& given = invocation.options;
  const models::ModelOptions held = noted_model(invocation, noted);
  Patch options = merge(given, noted.options);
  options.network = noted.options.network;
  const bool prepares = std::ranges::any_of(given.settings(), [](const auto& setting) {
    return find_field(setting.first)->section == Section::Data;
  });
  if (prepares && noted.facts) noted.facts->preparation.reset();  // follows from the options
  return make_run(invocation, options, held.classes, recorded_facts(options, noted.facts),
                  [&](const models::Graph& graph) {
                    std::vector<io::ImportedParameter> all = values(graph);
                    fmt::print("{}: {} as millrace exported it, with the options of its run\n",
                               printable(invocation.arguments.at(0)), graph.name);
                    return all;
                  });
}

/// What an ONNX file notes, if it is still the network that was exported.
std::optional<NotedExport> notes_in(const io::NetworkFile& onnx, const std::string& file) {
  std::optional<NotedExport> noted = read_notes(onnx.metadata, file);
  if (!noted) return std::nullopt;
  if (is_given_network(noted->options))
    noted->options.network = std::make_shared<const models::Graph>(onnx.graph);
  const models::Graph graph = models::build_model(network_of(*noted, file));
  return graph == onnx.graph ? std::move(noted) : std::nullopt;
}

int import_network(const Invocation& invocation) {
  const std::string file = invocation.arguments.at(0);
  const io::NetworkFile onnx = training::built_guests().files.open_network(file);
  print_lines(stderr, onnx.notices);
  if (const std::optional<NotedExport> noted = notes_in(onnx, file))
    return import_noted(invocation, *noted, [&](const models::Graph& graph) {
      if (graph.parameters != onnx.graph.parameters)
        fail(ErrorKind::Usage,
             "{}: the options ask for a network with other parameters: leave out "
             "those that change it",
             file);
      return values_of(onnx, file);
    });
  const Patch options = options_of(onnx, invocation);
  return make_run(invocation, options, onnx.graph.classes, published_facts(options),
                  [&](const models::Graph&) { return values_of(onnx, file); });
}

/// What safetensors note, unless --like says whose file it is. A network of a file must be noted,
/// too, which older exports did not do.
std::optional<NotedExport> notes_in(const io::TensorFile& file, const Patch& given) {
  if (given.find("like") != nullptr) return std::nullopt;
  std::optional<NotedExport> noted = read_notes(file.metadata(), file.path().string());
  if (noted && is_given_network(noted->options) && !noted->options.network) return std::nullopt;
  return noted;
}

}  // namespace

int command_import(const Invocation& invocation) {
  require_file(invocation.arguments.at(0));
  if (io::is_network_file(invocation.arguments.at(0))) return import_network(invocation);
  const io::TensorFile file = io::read_tensor_file(invocation.arguments.at(0));
  print_lines(stderr, file.notices());
  if (const std::optional<NotedExport> noted = notes_in(file, invocation.options))
    return import_noted(invocation, *noted,
                        [&](const models::Graph& graph) { return values_of(file, graph, *noted); });
  io::Identified found = io::identify(file, wanted_styles(invocation.options));
  require_network(invocation, found);
  require_classes(invocation, found);
  require_image_size(invocation, found);
  for (const char* other : {"image-normalisation", "normalise-input"})
    if (invocation.options.find(other) != nullptr) found.input.statistics.reset();
  Patch options = invocation.options;
  for (const auto& implied : {options_shown(found), options_assumed(found)})
    add_implied(options, implied, invocation.arguments.at(0));
  return make_run(invocation, options, found.model.classes, published_facts(options),
                  [&](const models::Graph& graph) {
                    auto values = io::import_weights(file, graph, found.style);
                    tell(found, invocation, options);
                    return values;
                  });
}

}  // namespace millrace::cli
