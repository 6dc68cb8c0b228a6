// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

using namespace models;  // NOLINT(google-build-using-namespace): the choices of a network

Family family_of(std::string_view model) {
  return model == "resnext"        ? Family::ResNeXt
         : model == "squeezenet"   ? Family::SqueezeNet
         : model == "efficientnet" ? Family::EfficientNet
                                   : Family::ResNet;
}

/// The enumerator at the position of the option's word in `words`.
template <class Enum, std::size_t N>
Enum choice(Reader& read, std::string_view name, const std::array<std::string_view, N>& words,
            Enum otherwise) {
  const std::string word = read.text(name, words.at(static_cast<std::size_t>(otherwise)));
  const auto found = std::find(words.begin(), words.end(), word);
  MILLRACE_ASSERT(found != words.end());
  return static_cast<Enum>(found - words.begin());
}

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
  if (model.norm == NormKind::Group) {
    model.groups = read.integer("groups", model.groups);
    model.group_order =
        choice<GroupOrder, 2>(read, "groups-order", {"contiguous", "strided"}, model.group_order);
    return;
  }
  model.batch_norm_decay = read.real("BN-decay", model.batch_norm_decay);
  if (read.given("BN-span")) model.batch_norm_span = read.integer("BN-span", 1);
}

void resolve_residual(Reader& read, ModelOptions& model) {
  ResidualOptions& residual = model.residual;
  model.block = choice<BlockKind, 3>(read, "block", {"auto", "basic", "bottleneck"}, model.block);
  const std::string shortcut(1, model.shortcut);
  model.shortcut = read.text("shortcut", shortcut).front();
  if (model.shortcut == 'A')
    model.shortcut_pad =
        choice<ShortcutPadSide, 2>(read, "shortcut-pad", {"end", "both"}, model.shortcut_pad);
  else
    residual.stage_one = choice<StageOneShortcut, 2>(read, "stage-one-shortcut",
                                                     {"project", "identity"}, residual.stage_one);
  residual.padding =
      choice<PaddingRule, 4>(read, "padding", {"ipu", "torch", "same", "keras"}, residual.padding);
  residual.initialisers =
      choice<InitialiserSet, 7>(read, "initialisers",
                                {"ipu", "nvidia", "nvidia-fan-in", "habana", "habana-keras",
                                 "surfsara", "keras-applications"},
                                residual.initialisers);
  if (model.model == "resnet")
    residual.version =
        choice<ResNetVersion, 2>(read, "resnet-version", {"1.5", "2"}, residual.version);
}

void resolve_resnext(Reader& read, ResNeXtOptions& options) {
  options.groups = read.integer("convolution-groups", options.groups);
  options.group_dim = read.integer("group-dim", options.group_dim);
  options.widening = read.flag("widenet") ? Widening::Widenet : Widening::None;
  options.squeeze_excitation =
      read.flag("squeeze-excitation") ? SqueezeExcitation::On : SqueezeExcitation::Off;
}

void resolve_efficientnet(Reader& read, EfficientNetOptions& options) {
  const auto optional = [&read](const char* name, std::optional<double>& value) {
    if (read.given(name)) value = read.real(name, 0.0);
  };
  optional("dropout-rate", options.dropout_rate);
  optional("width-coefficient", options.width);
  optional("depth-coefficient", options.depth);
  options.block_survival = read.real("block-survival-prob", options.block_survival);
  options.squeeze_excitation = read.flag("no-se") ? SqueezeExcitation::Off : SqueezeExcitation::On;
  options.activation = read.flag("use-relu") ? Activation::Relu : Activation::Swish;
  options.expand_ratio = read.integer("expand-ratio", options.expand_ratio);
  options.group_dim = read.integer("group-dim", options.group_dim);
  options.depth_divisor = read.integer("depth-divisor", options.depth_divisor);
  options.top_width = read.integer("top-width", options.top_width);
}

/// More outputs than the data set has classes are allowed; fewer are not.
std::int64_t resolve_classes(Reader& read, const DatasetFacts& data) {
  if (!read.given("classes")) return data.classes;
  const std::int64_t classes = read.integer("classes", data.classes);
  if (classes < data.classes)
    fail(ErrorKind::Config, "{}: {} outputs are fewer than the {} classes of the data set",
         read.options().find("classes")->where, classes, data.classes);
  return classes;
}

}  // namespace

models::Task task_of(std::string_view dataset) {
  return dataset == kImageNet ? Task::ImageNet : Task::Cifar;
}

std::string model_name(const Options& options) {
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
  const auto family = static_cast<FamilySet>(family_of(model));
  for (const auto& [name, setting] : options.settings()) {
    const OptionSpec& spec = *find_option(name);
    const bool* flag = std::get_if<bool>(&setting.value);
    if (spec.families == 0 || (spec.families & family) != 0 || (flag != nullptr && !*flag) ||
        setting.origin == Origin::Habit)
      continue;
    const std::string message =
        fmt::format("{} is an option of other networks: it needs --model {}, but the model is {}",
                    setting.where, describe_families(spec.families), model);
    if (setting.origin == Origin::CommandLine) fail(ErrorKind::Usage, "{}", message);
    notices.push_back(message);
  }
}

void resolve_model(Reader& read, const DatasetFacts& data, models::Task task,
                   models::ModelOptions& model) {
  model = default_options(model_name(read.options()), task);
  read.note("model", model.model);
  model.size = read.note("model-size", model_size(read.options(), task));
  model.classes = resolve_classes(read, data);
  model.image = data.image;
  if (model.model != "squeezenet") resolve_norm(read, model);
  if (model.model == "resnet" || model.model == "resnext") resolve_residual(read, model);
  if (model.model == "resnext") resolve_resnext(read, model.resnext);
  if (model.model == "squeezenet")
    model.squeezenet.bypass = read.flag("use-bypass") ? Bypass::Simple : Bypass::None;
  if (model.model == "efficientnet") resolve_efficientnet(read, model.efficientnet);
}

}  // namespace millrace::cli
