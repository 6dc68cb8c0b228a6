// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/imported_tensors.hpp"
#include "cli/like.hpp"
#include "cli/prepare.hpp"
#include "cli/run_name.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/data/class_names.hpp"
#include "io/onnx/onnx_file.hpp"
#include "io/tensor_checks.hpp"
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

/// Refuses options that ask for another network than the file's. Without this, they would be
/// refused together with those that follow from the file, as if no network had both. Errors: Usage.
void require_network(const Options& given, const io::Identified& found) {
  const models::ModelOptions& held = found.model;
  const auto require = [&](std::string_view option, bool agrees, std::string_view whose = "",
                           std::string_view otherwise = "") {
    const Setting* const setting = given.find(option);
    if (setting == nullptr || agrees) return;
    const bool flag = std::holds_alternative<bool>(setting->value);
    fail(ErrorKind::Usage, "{}{} contradicts {}, which holds {}{}: leave it out{}", setting->where,
         flag ? "" : " " + to_string(setting->value), given.arguments.at(0), io::to_string(found),
         whose, otherwise);
  };
  const auto is = [&](std::string_view option, std::string_view value) {
    return to_lower(given.text(option).value_or("")) == to_lower(value);
  };
  require("model", is("model", held.model));
  require("model-size", is("model-size", held.size) ||
                            (held.size.starts_with('B') && is("model-size", held.size.substr(1))));
  const std::string dataset = given.text("dataset").value_or("");
  require("dataset", dataset.starts_with("cifar") == (held.task == models::Task::Cifar));
  if (held.model != "squeezenet")
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

/// Refuses another number of classes than the file's, which a training may change. Errors: Usage.
void require_classes(const Options& given, const io::Identified& found) {
  const std::optional<std::int64_t> classes = given.integer("classes");
  if (!classes || *classes == found.model.classes) return;
  const std::string last = models::build_model(found.model).parameters.back().name;
  fail(ErrorKind::Usage,
       "{} {}: {} has {} classes: leave the option out; a training of another number of classes "
       "starts from the imported run with --init-path {} --init-fresh {}",
       given.find("classes")->where, *classes, given.arguments.at(0), found.model.classes,
       given.arguments.at(1), last.substr(0, last.rfind('/')));
}

/// What the file was taken for.
void tell(const io::Identified& found, const Options& options) {
  fmt::print("{}: {}\nAs in {}: {}\n", options.arguments.at(0),
             text_of(options_shown(found), options), io::name_of(found.style),
             text_of(options_assumed(found), options));
}

/// What is known of the data set for a network with so many outputs. Image folders may have fewer
/// classes than ImageNet; those of CIFAR are fixed. Errors: Data, if --dataset names one that has
/// more.
DatasetFacts facts_for(std::int64_t outputs, const Options& given, const Options& completed) {
  DatasetFacts facts = published_facts(completed);
  const std::string dataset = given.text("dataset").value_or("");
  if (dataset.starts_with("cifar") && outputs < facts.classes)
    fail(ErrorKind::Data, "{}: its network has {} classes, but {} has {}: leave --dataset out",
         given.arguments.at(0), outputs, dataset, facts.classes);
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

/// Makes a run of a network and its values; nothing is left of one that cannot be written.
void write_run(const std::filesystem::path& run_directory, const models::Graph& graph,
               const train::TrainConfig& config, const ImportedTensors& imported,
               const std::filesystem::path& file) {
  const std::vector<std::filesystem::path> missing = missing_directories(run_directory);
  create_run_directory(run_directory, "RUN_DIR");
  io::CheckpointHeader header;
  header.model = graph.name;
  header.config_toml = config.resolved_toml;
  header.network = to_json(train::facts_of(config));
  header.environment = fmt::format("imported from {}", file.filename().string());
  std::filesystem::path checkpoint;
  try {
    io::write_file_atomically(run_directory / "config.toml", config.resolved_toml);
    checkpoint = io::write_checkpoint(run_directory / "checkpoints", header, imported.tensors());
  } catch (const Error&) {
    remove_begun(run_directory, missing);
    throw;
  }
  fmt::print("Total Parameters: {}\nSaved checkpoint to {}\n", graph.trainable_elements(),
             checkpoint.string());
}

/// The options of a run of the network in an ONNX file, which says what it reads and how many
/// classes there are.
Options options_of(const io::OnnxFile& onnx, const Options& given) {
  Options options = given;
  const std::string file = options.arguments.at(0);
  if (const Setting* const model = options.find("model"))
    fail(ErrorKind::Usage, "{} {} has no effect here: {} holds the network", model->where,
         to_string(model->value), file);
  const models::Graph& graph = onnx.graph();
  const bool small = graph.input_shape == Shape{32, 32, 3};
  const std::vector<ImpliedOption> implied = {{"model", file},
                                              {"dataset", !small                 ? "imagenet"
                                                          : graph.classes == 100 ? "cifar-100"
                                                                                 : "cifar-10"}};
  add_implied(options, implied, file);
  options.network = std::make_shared<const models::Graph>(graph);
  fmt::print("{}: {}\n", file, text_of(implied, options));
  return options;
}

int import_network(const Invocation& invocation) {
  const std::filesystem::path file = invocation.options.arguments.at(0);
  const io::OnnxFile onnx(file);
  print_lines(stderr, onnx.notices());
  const Options options = options_of(onnx, invocation.options);
  const DatasetFacts facts = facts_for(onnx.graph().classes, invocation.options, options);
  const Resolution resolution = resolve(options, facts, this_machine());
  print_lines(stderr, resolution.notices);
  const train::TrainConfig& config = resolution.config;
  std::vector<io::ImportedParameter> values;
  for (std::size_t i = 0; i < onnx.graph().parameters.size(); ++i) {
    const models::Parameter& parameter = onnx.graph().parameters[i];
    values.push_back({parameter.name, onnx.values({static_cast<std::int32_t>(i)})});
    if (const std::string bad =
            io::bad_value(values.back().values, parameter.shape, io::value_rule(parameter.name));
        !bad.empty())
      fail(ErrorKind::Data, "{}: {}{}: the network cannot use this value: export it again",
           file.string(), parameter.name, bad);
  }
  write_run(options.arguments.at(1), models::build_model(config.model), config,
            ImportedTensors(onnx.graph(), std::move(values), config.optimiser.kind), file);
  return 0;
}

}  // namespace

int command_import(const Invocation& invocation) {
  if (io::is_onnx(invocation.options.arguments.at(0))) return import_network(invocation);
  const io::TensorFile file = io::read_tensor_file(invocation.options.arguments.at(0));
  print_lines(stderr, file.notices());
  const io::Identified found = io::identify(file, wanted_styles(invocation.options));
  require_network(invocation.options, found);
  require_classes(invocation.options, found);
  const Options options = completed(invocation.options, found);
  const DatasetFacts facts = facts_for(found.model.classes, invocation.options, options);
  const Resolution resolution = resolve(options, facts, this_machine());
  print_lines(stderr, resolution.notices);
  const train::TrainConfig& config = resolution.config;

  const models::Graph graph = models::build_model(config.model);
  const ImportedTensors imported(graph, io::import_weights(file, graph, found.style),
                                 config.optimiser.kind);
  tell(found, options);
  print_lines(stderr, doubts_about(found, invocation.options));
  write_run(options.arguments.at(1), graph, config, imported, file.path());
  return 0;
}

}  // namespace millrace::cli
