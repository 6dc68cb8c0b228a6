// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cctype>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/onnx/onnx_file.hpp"

namespace millrace::cli {
namespace {

using namespace models;  // NOLINT(google-build-using-namespace): the choices of a network

void resolve_norm(Reader& read, ModelOptions& model) {
  const bool batch = read.options().flag("batch-norm");
  const bool group = read.options().flag("group-norm");
  model.norm = batch ? NormKind::Batch : group ? NormKind::Group : model.norm;
  read.note("batch-norm", model.norm == NormKind::Batch);
  read.note("group-norm", model.norm == NormKind::Group);
  double* epsilon = model.model == "efficientnet"   ? &model.efficientnet.norm_epsilon
                    : model.norm == NormKind::Group ? &model.group_norm_epsilon
                                                    : &model.norm_epsilon;
  *epsilon = read.real("norm-epsilon", *epsilon);
}

/// The outputs that --classes asks for, or else as many as the data set has classes. More are
/// allowed; fewer are not.
std::int64_t resolve_classes(Reader& read, const DatasetFacts& data) {
  if (!read.given("classes")) return data.classes;
  const std::int64_t classes = read.integer("classes", data.classes);
  if (classes < data.classes)
    fail(ErrorKind::Config, "{}: {} outputs are fewer than the {} classes of the data set{}",
         read.where("classes"), classes, data.classes,
         read.where("classes").starts_with("--init-path")
             ? ": --init-fresh with the name of the last layer gives it as many"
             : "");
  return classes;
}

}  // namespace

models::Task task_of(std::string_view dataset) {
  return dataset == kImageNet ? Task::ImageNet : Task::Cifar;
}

bool is_given_network(const Options& options) {
  return io::is_onnx(options.text("model").value_or(""));
}

const models::Graph& given_network(const Options& options) {
  if (options.network) return *options.network;
  fail(ErrorKind::Config, "--model {}: this run does not hold the network: give the file to train",
       options.text("model").value_or(""));
}

std::optional<std::int64_t> told_classes(const Options& options) {
  const std::optional<std::int64_t> told = options.integer("classes");
  const bool meant = !is_given_network(options) || options.typed("classes") != nullptr;
  return told && (meant || *told <= given_network(options).classes) ? told : std::nullopt;
}

std::string model_name(const Options& options) {
  if (is_given_network(options)) return kGivenModel;
  return to_lower(options.text("model").value_or("resnet"));
}

std::string model_size(const Options& options, models::Task task) {
  const std::string model = model_name(options);
  std::string size = options.text("model-size").value_or(default_options(model, task).size);
  if (model != "efficientnet") return size;
  size = to_lower(size);
  if (size.size() == 1 && std::isdigit(static_cast<unsigned char>(size[0])) != 0) size = "b" + size;
  if (size.starts_with('b')) size[0] = 'B';
  return size;
}

void check_families(const Options& options, Notices& notices) {
  const std::string model = model_name(options);
  const FamilySet family = family_named(model);
  for (const auto& [name, setting] : options.settings()) {
    const OptionSpec& spec = *find_option(name);
    const bool* flag = std::get_if<bool>(&setting.value);
    if (spec.families == 0 || (spec.families & family) != 0 || (flag != nullptr && !*flag) ||
        setting.origin == Origin::Dialect)
      continue;
    const std::string message =
        fmt::format("{} is an option of other networks: it needs --model {}, but the model is {}",
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
void resolve_given(Reader& read, const DatasetFacts& data, models::Task task,
                   train::TrainConfig& config, Notices& notices) {
  const Graph& graph = given_network(read.options());
  const std::string file = read.note("model", *read.options().text("model"));
  config.model = given_options(read.options().network, task);
  if (graph.input_shape != data.image)
    fail(ErrorKind::Config,
         "--model {}: the network reads images of {}, but those of the data set are {}: export it "
         "for this size{}",
         file, graph.input_shape, data.image,
         task == Task::ImageNet ? ", or give --image-size" : "");
  const bool told = told_classes(read.options()).has_value();
  const std::int64_t classes = told ? resolve_classes(read, data) : data.classes;
  if (graph.classes < classes)
    fail(ErrorKind::Config,
         "--model {}: the network has {} outputs, but {} {} classes: export it with at least one "
         "output per class",
         file, graph.classes, told ? read.where("classes") + " asks for" : "the data set has",
         classes);
  note_spare_outputs(file, graph.classes, data.classes, notices);
  read.apply("BN-span", config);
  if (!read.given("init-path") && read.text("init-weights") == "file") config.init_path = file;
}

}  // namespace

void resolve_model(Reader& read, const DatasetFacts& data, models::Task task,
                   train::TrainConfig& config, Notices& notices) {
  if (is_given_network(read.options())) return resolve_given(read, data, task, config, notices);
  ModelOptions& model = config.model;
  model = default_options(model_name(read.options()), task);
  read.note("model", model.model);
  model.size = read.note("model-size", model_size(read.options(), task));
  model.classes = resolve_classes(read, data);
  model.image = data.image;
  if (model.model != "squeezenet") resolve_norm(read, model);
  for (const Section section : {Section::Model, Section::Residual, Section::ResNeXt,
                                Section::SqueezeNet, Section::EfficientNet})
    read.apply(section, config);
  std::int64_t* const group_dim = model.model == "resnext"        ? &model.resnext.group_dim
                                  : model.model == "efficientnet" ? &model.efficientnet.group_dim
                                                                  : nullptr;
  if (group_dim != nullptr) *group_dim = read.integer("group-dim", *group_dim);
  note_spare_outputs(fmt::format("{}-{}", model.model, model.size), model.classes, data.classes,
                     notices);
}

}  // namespace millrace::cli
