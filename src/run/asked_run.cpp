// SPDX-License-Identifier: Apache-2.0
//
// What the options ask for: the recipe of the network's family with every option that was given.
// The numbers that follow from it, the data and the machine are the business of complete().
#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/complete_parts.hpp"
#include "run/published_set.hpp"

namespace millrace::run {
namespace {

bool is_of_another_family(const Field& spec, const Run& config) {
  return spec.families != 0 && (spec.families & family_named(config.model.model)) == 0;
}

/// The network and the recipe of its family.
void start_with_recipe(const Patch& given, Run& config) {
  config.data.dataset = dataset_name(given);
  const models::Task task = task_of(config.data.dataset);
  config.network = is_given_network(given) ? *given.text("model") : model_name(given);
  if (is_given_network(given)) {
    (void)given_network(given);
    config.model = models::given_options(given.network, task);
  } else {
    config.model = models::default_options(config.network, task);
    config.model.size = model_size(given, task);
  }
  const models::FamilyRecipe& recipe = models::default_recipe(config.model.model, task);
  config.batch_size = recipe.batch_size;
  config.label_smoothing = recipe.label_smoothing;
  config.update.weight_decay = recipe.weight_decay;
  config.optimiser.decay_excludes = recipe.decay_excludes;
  config.learning_rate.boundaries = recipe.boundaries;
  config.data.normalisation =
      task == models::Task::ImageNet ? Normalisation::MeanOnly : Normalisation::Standardise;
}

enum class Pass { Unconditional, Conditional };

/// Sets the members of the options that were given, and those whose default is in their row.
void apply(const Patch& given, Pass pass, Run& config) {
  for (const Field& spec : field_table()) {
    const bool conditional = spec.applies != nullptr && !spec.set_first;
    if (!spec.set || conditional != (pass == Pass::Conditional)) continue;
    if (is_of_another_family(spec, config) || (conditional && !spec.applies(config))) continue;
    if (const Setting* const setting = given.find(spec.name))
      spec.set(spec, *setting, config);
    else if (spec.takes_default && spec.by_default)
      spec.set(spec, {.value = *spec.by_default, .origin = Origin::Dialect, .where = {}}, config);
  }
}

/// Pixels of an image. Errors: Config for a size that the images of the data set do not have.
void set_side(const Patch& given, Run& config) {
  const PublishedSet& kind = published_set(config.data.dataset);
  std::int64_t usual = kind.image_side;
  if (kind.photos && config.model.given.graph)
    usual = config.model.given.graph->input_shape.h;
  else if (kind.photos && models::find_family(config.model.model).image_side != nullptr)
    usual = models::find_family(config.model.model).image_side(config.model.size);
  std::int64_t& side = config.data.side;
  if (side == 0) side = usual;
  if (!kind.photos && side != kind.image_side)
    fail(ErrorKind::Config,
         "{0}: {1} does not fit {2}, whose images are {3}x{3}: leave the option out",
         given.find("image-size")->where, side, config.data.dataset, kind.image_side);
}

/// Whether shards without cuts and without a pipeline divide memory, and not time.
bool cuts_by_memory(const Run& config) {
  const LayoutRequest& layout = config.layout;
  const bool staged =
      layout.shards.value_or(1) > 1 || layout.device_of.size() > 1 || !layout.schedule_file.empty();
  return staged && layout.splits.empty() && layout.chunks.value_or(1) == 1 && layout.plan.empty() &&
         divides_memory(config.micro_batches, layout.pipelined);
}

}  // namespace

bool has_effect(const Field& spec, const Run& config) {
  return !is_of_another_family(spec, config) && (spec.applies == nullptr || spec.applies(config));
}

std::map<std::string, Value, std::less<>> recorded_values(const Run& config) {
  static const Run usual;
  std::map<std::string, Value, std::less<>> values;
  for (const Field& spec : field_table()) {
    if (!spec.get || !has_effect(spec, config)) continue;
    const std::optional<Value> value = spec.get(spec, config);
    if (!value) continue;
    if (spec.recorded_if_given &&
        value == (spec.by_default ? spec.by_default : spec.get(spec, usual)))
      continue;
    values.emplace(spec.name, *value);
  }
  return values;
}

Run asked_run(const Patch& given) {
  Run config;
  start_with_recipe(given, config);
  config.logging.place = given.text("run-dir").value_or("");
  config.layout.plan = given.text("plan").value_or("");
  apply(given, Pass::Unconditional, config);
  set_side(given, config);
  if (!config.length.iterations && !config.length.epochs)
    config.length.epochs = models::default_recipe(config.model.model, config.model.task).epochs;
  config.layout.pipelined = names_pipeline(given);
  config.layout.cut_by_memory = cuts_by_memory(config);
  apply(given, Pass::Conditional, config);
  return config;
}

std::string to_toml(const Run& run) { return to_toml(recorded_values(run)); }

bool names_pipeline(const Patch& options) {
  constexpr std::array kOfPipelines = {
      "pipeline-depth", "pipeline-splits", "pipeline-schedule", "pipeline-schedule-file",
      "plan",           "device-mapping"};
  return std::ranges::any_of(kOfPipelines,
                             [&](const char* name) { return options.find(name) != nullptr; });
}

std::int64_t micro_batches_of(const Patch& options) {
  return options.integer("pipeline-depth")
      .value_or(options.integer("gradients-to-accumulate").value_or(1));
}

bool opens_cuts(const LayoutRequest& layout) {
  return layout.splits == std::vector<std::string>{"auto"};
}

bool opens_schedule(const LayoutRequest& layout) {
  return to_lower(layout.schedule.value_or("")) == "auto";
}

std::int64_t device_memory(const std::string& asked) {
  if (asked.empty()) return 0;
  const std::optional<std::int64_t> bytes = parse_bytes(asked);
  if (!bytes)
    fail(ErrorKind::Usage, "`device-memory`: invalid size '{}'; examples: 512MiB, 8GB", asked);
  return *bytes;
}

}  // namespace millrace::run
