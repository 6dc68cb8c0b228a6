// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/complete_parts.hpp"

namespace millrace::run {
namespace {

using namespace models;  // NOLINT(google-build-using-namespace): the choices of a network

/// The outputs that `classes` asks for, or else as many as the data set has classes. More are
/// allowed; fewer are not.
std::int64_t outputs_of(const Patch& given, const Run& config, const DatasetFacts& data) {
  const std::int64_t outputs = config.outputs.value_or(data.classes);
  if (outputs >= data.classes) return outputs;
  const Setting& told = *given.find("classes");
  const bool follows = told.origin == Origin::Dialect && given.find("init-path") != nullptr;
  fail(ErrorKind::Config, "{}: {} outputs are fewer than the {} classes of the data set{}",
       told.where, outputs, data.classes,
       follows ? ": `init-fresh` with the name of the last layer gives it as many" : "");
}

}  // namespace

bool is_given_network(const Patch& options) {
  return to_lower(options.text("model").value_or("")).ends_with(find_field("model")->or_file);
}

const models::Graph& given_network(const Patch& options) {
  if (options.network) return *options.network;
  fail(ErrorKind::Config, "`model` {}: this run does not hold the network: give the file to train",
       options.text("model").value_or(""));
}

std::optional<std::int64_t> told_classes(const Patch& options) {
  const std::optional<std::int64_t> told = options.integer("classes");
  const bool meant = !is_given_network(options) || options.typed("classes") != nullptr;
  return told && (meant || *told <= given_network(options).classes) ? told : std::nullopt;
}

std::string model_name(const Patch& options) {
  if (is_given_network(options)) return kGivenModel;
  return to_lower(options.value<std::string>("model"));
}

std::string model_size(const Patch& options, models::Task task) {
  const std::string model = model_name(options);
  const std::string size = options.text("model-size").value_or(default_options(model, task).size);
  const models::Family& family = models::find_family(model);
  return family.spelled == nullptr ? size : family.spelled(size);
}

void check_families(const Patch& options, Notices& notices) {
  const std::string model = model_name(options);
  const FamilySet family = family_named(model);
  for (const auto& [name, setting] : options.settings()) {
    const Field& spec = *find_field(name);
    const bool* flag = std::get_if<bool>(&setting.value);
    if (spec.families == 0 || (spec.families & family) != 0 || (flag != nullptr && !*flag) ||
        setting.origin == Origin::Dialect)
      continue;
    const std::string message =
        fmt::format("{} is an option of other networks: it needs `model` {}, but the model is {}",
                    setting.where, describe_families(spec.families), model);
    if (setting.origin == Origin::CommandLine) fail(ErrorKind::Usage, "{}", message);
    notices.push_back(message);
  }
}

namespace {

void note_spare_outputs(std::string_view network, std::int64_t outputs, std::int64_t classes,
                        Notices& notices) {
  if (outputs > classes)
    notices.push_back(
        fmt::format("{} has {} outputs for the {} of the data set", network, outputs,
                    classes == 1 ? "only class" : fmt::format("{} classes", classes)));
}

/// A network in a file: its images and its outputs must be those of the data set.
void check_given(const Patch& given, const Run& config, const DatasetFacts& data,
                 Notices& notices) {
  const Graph& graph = *config.model.given.graph;
  if (graph.input_shape != data.image)
    fail(ErrorKind::Config,
         "`model` {}: the network reads images of {}, but those of the data set are {}: export it "
         "for this size{}",
         config.network, graph.input_shape, data.image,
         config.model.task == Task::ImageNet
             ? fmt::format(", or give `image-size` {}", graph.input_shape.h)
             : "");
  const bool told = told_classes(given).has_value();
  const std::int64_t classes = told ? outputs_of(given, config, data) : data.classes;
  if (graph.classes < classes)
    fail(ErrorKind::Config,
         "`model` {}: the network has {} outputs, but {} {} classes: export it with at least one "
         "output per class",
         config.network, graph.classes,
         told ? given.find("classes")->where + " asks for" : "the data set has", classes);
  note_spare_outputs(config.network, graph.classes, data.classes, notices);
}

}  // namespace

void complete_model(const Patch& given, const DatasetFacts& data, Run& config, Notices& notices) {
  if (config.model.given.graph) return check_given(given, config, data, notices);
  ModelOptions& model = config.model;
  model.classes = outputs_of(given, config, data);
  model.image = data.image;
  note_spare_outputs(fmt::format("{}-{}", model.model, model.size), model.classes, data.classes,
                     notices);
}

}  // namespace millrace::run
