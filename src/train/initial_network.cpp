// SPDX-License-Identifier: Apache-2.0
#include "train/initial_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/foreign_files.hpp"
#include "models/registry.hpp"
#include "train/agreement.hpp"
#include "train/open_run.hpp"
#include "train/progress.hpp"
#include "train/recorded_classes.hpp"

namespace millrace::training {
namespace {

constexpr std::string_view kClasses = "classes";

/// How images become what the network sees.
constexpr auto kPreparation = std::to_array<std::string_view>(
    {"image-size", "image-preset", "image-normalisation", "image-mean", "image-deviation",
     "normalise-input", "normalise"});

bool is_of_network(const Field& spec) {
  // How many replicas share statistics is a matter of the run.
  return spec.section == Section::Model && spec.name != "BN-span";
}

bool is_of_preparation(std::string_view name) {
  return std::ranges::find(kPreparation, name) != kPreparation.end();
}

/// The option, unless it is a default of a dialect, or a flag that is off.
const Setting* asked(const Patch& options, std::string_view name) {
  const Setting* const setting = options.find(name);
  if (setting == nullptr || setting->origin == Origin::Dialect) return nullptr;
  const bool* const flag = std::get_if<bool>(&setting->value);
  return flag != nullptr && !*flag ? nullptr : setting;
}

/// Whether the option says something new: a file may be the config.toml of the checkpoint's run.
bool says_otherwise(const Setting& setting, const Setting* recorded) {
  const bool repeats = recorded != nullptr && recorded->value == setting.value;
  return !(repeats && setting.origin == Origin::File);
}

/// Whether another option that was asked for decides what `name` would.
bool is_decided(const Patch& given, std::string_view name, const Patch& recorded) {
  const auto names = [&](std::string_view other) { return asked(given, other) != nullptr; };
  if (name == "block")  // sizes have their own
    return names("model-size") && given.text("model-size") != recorded.text("model-size");
  if (name == "norm-epsilon")  // each kind of norm has its own
    return (names("group-norm") && recorded.flag("batch-norm")) ||
           (names("batch-norm") && recorded.flag("group-norm"));
  const bool normalises = name == "image-normalisation" || name == "normalise-input" ||
                          name == "image-mean" || name == "image-deviation";
  if (!normalises) return false;
  return names("image-preset") || names("image-normalisation") || names("normalise-input");
}

/// The data set that the options name, or that is in their folder.
std::string dataset_of(const Patch& options) {
  const std::string found = find_dataset(options);
  return found.empty() ? dataset_name(options) : found;
}

bool of_other_family(const Patch& given, const Patch& recorded) {
  return asked(given, "model") != nullptr && model_name(given) != model_name(recorded);
}

bool of_other_task(const Patch& recorded, std::string_view dataset) {
  return task_of(recorded.text("dataset").value_or("")) != task_of(dataset);
}

/// Refuses a network of a size that its family does not have for other images. Errors: Config, with
/// the way to train it all the same.
void require_form(const Patch& given, const Patch& recorded, std::string_view dataset) {
  if (recorded.network || asked(given, "model-size") != nullptr) return;
  const std::string own = recorded.text("dataset").value_or("");
  const std::string size = model_size(recorded, task_of(own));
  const std::vector<std::string> sizes =
      models::find_family(model_name(recorded)).sizes(task_of(dataset));
  if (std::ranges::find(sizes, size) != sizes.end()) return;
  const std::string path = given.text("init-path").value_or("");
  fail(ErrorKind::Config, "`init-path` {}: {}-{} is a network for {} and has no form for {}: {}",
       path, model_name(recorded), size, own, dataset,
       holds_photos(dataset)
           ? fmt::format("to train it on photos scaled to the size of its images, run millrace "
                         "export {} `to` onnx, and give that file with `model` in place of "
                         "`init-path`",
                         shell_word(path))
           : "train it on these images in class folders, or begin with another network");
}

bool has_fresh_last_layer(const Patch& given, const InitialNetwork& initial) {
  const std::vector<std::string> fresh = split_list(given.text("init-fresh").value_or(""), ' ');
  return contains_any(initial.last_layer + "/", fresh);
}

/// The number of outputs, which config.toml leaves to the data set.
void set_classes(Patch& options, const Patch& given, const InitialNetwork& initial,
                 std::string_view where) {
  const Setting own{
      .value = initial.outputs, .origin = Origin::Dialect, .where = std::string(where)};
  const Setting* const wanted = asked(given, kClasses);
  if (!has_fresh_last_layer(given, initial)) {
    if (wanted == nullptr) options.set(*find_field(kClasses), own);
  } else if (wanted != nullptr && !says_otherwise(*wanted, &own)) {
    options.erase(kClasses);
  }
}

}  // namespace

std::optional<InitialNetwork> initial_network(const Patch& options, const comm::World& world) {
  const std::optional<std::string> path = options.text("init-path");
  if (!path || io::holds_foreign_weights(*path)) return std::nullopt;
  std::vector<std::string> complaints;  // the trainer repeats them
  const io::CheckpointReader checkpoint = agreed_newest(world, *path, complaints);
  const RecordedNetwork network = network_of(checkpoint);
  std::string last = network.graph.parameters.back().name;
  last.resize(last.rfind('/'));
  return InitialNetwork{.recorded = recorded_in(checkpoint),
                        .outputs = network.config.model.classes,
                        .last_layer = std::move(last),
                        .class_names = network.config.data.class_names};
}

Patch with_initial_network(const Patch& given, const InitialNetwork& initial) {
  const Patch& recorded = initial.recorded;
  if (of_other_family(given, recorded)) return given;
  const std::string where = fmt::format("`init-path` {}", given.text("init-path").value_or(""));
  const std::string dataset = dataset_of(given);
  const bool prepares = !of_other_task(recorded, dataset);
  if (!prepares) require_form(given, recorded, dataset);
  Patch network;
  network.network = recorded.network;
  for (const auto& [name, setting] : recorded.settings()) {
    const Field& spec = *find_field(name);
    const bool wanted = is_of_network(spec) || (prepares && is_of_preparation(name));
    if (!wanted || name == kClasses || is_decided(given, name, recorded)) continue;
    network.set(spec, {.value = setting.value, .origin = Origin::Dialect, .where = where});
  }
  Patch options = given;  // without what the network of a dialect would have by default
  for (const auto& [name, setting] : network.settings())
    if (const Setting* const own = given.find(name);
        own != nullptr && own->origin == Origin::Dialect)
      options.erase(name);
  options = merge(std::move(options), network);
  if (!options.network) set_classes(options, given, initial, where);
  return options;
}

std::string asking_for_another(const Patch& given, const InitialNetwork& initial,
                               std::string_view dataset) {
  std::vector<std::string> names;
  for (const auto& [name, setting] : given.settings()) {
    if (!is_of_network(*find_field(name)) || asked(given, name) == nullptr) continue;
    const Setting* const recorded = initial.recorded.find(name);
    const bool same = name == kClasses ? setting.value == Value(initial.outputs)
                                       : recorded != nullptr && recorded->value == setting.value;
    if (same || (name == kClasses && has_fresh_last_layer(given, initial))) continue;
    const bool flag = std::holds_alternative<bool>(setting.value);
    names.push_back(flag ? setting.where
                         : fmt::format("{} {}", setting.where, to_string(setting.value)));
  }
  if (of_other_task(initial.recorded, dataset))
    names.push_back(fmt::format("the data set {}", dataset));
  return join(names, ", ");
}

std::string other_classes(const Patch& given, const InitialNetwork& initial,
                          const std::vector<std::string>& class_names) {
  if (of_other_family(given, initial.recorded) || has_fresh_last_layer(given, initial)) return "";
  const std::vector<std::string> here = class_keys(class_names);
  const std::vector<std::string> learned = class_keys(initial.class_names);
  const auto [mine, theirs] = std::ranges::mismatch(here, learned);
  if (mine == here.end() || theirs == learned.end()) return "";
  return fmt::format(
      "class {} is {} here, but {} for the weights of `init-path`: `init-fresh` {} begins with a "
      "last layer of its own",
      mine - here.begin(), *mine, *theirs, initial.last_layer);
}

std::string rates_to_propose(const Patch& given, const Patch& recorded, const run::Run& config) {
  if (config.initial_weights().empty()) return "";
  for (const char* name :
       {"base-learning-rate", "abs-learning-rate", "lr-schedule", "poly-lr-initial-lr"})
    if (const Setting* const setting = given.find(name);
        setting != nullptr && says_otherwise(*setting, recorded.find(name)))
      return "";
  const run::LearningRateConfig& rate = config.learning_rate;
  return fmt::format(
      "no option sets the learning rate: {:.4g}, {}, is for random weights; for {} try a tenth, "
      "`abs-learning-rate` {:.2g} `lr-schedule` cosine",
      rate.base_rate, curve_name(rate.kind),
      given.text("init-path") ? "those of `init-path`" : "trained ones, as `model` may have them,",
      rate.base_rate / 10.0);
}

}  // namespace millrace::training
