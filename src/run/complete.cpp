// SPDX-License-Identifier: Apache-2.0
#include "run/complete.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/complete_parts.hpp"
#include "run/image_options.hpp"
#include "run/published_set.hpp"

namespace millrace::run {
namespace {

/// Reports options that never have an effect here but occur in recipes. They are not refused.
void note_idle(const Patch& given, Notices& notices) {
  for (const auto& [name, setting] : given.settings()) {
    const Field& spec = *find_field(name);
    const bool* flag = std::get_if<bool>(&setting.value);
    if (spec.idle.empty() || (flag != nullptr && !*flag)) continue;
    notices.push_back(fmt::format("{} has no effect here: {}", setting.where, spec.idle));
  }
}

/// Why an option has no effect, and what to do, as far as its row says.
std::string reason_of(const Field& spec, const Patch& options) {
  if (spec.section == Section::Model && spec.heading.empty() && is_given_network(options))
    return fmt::format(": {} is the whole network: remove the option", *options.text("model"));
  return spec.needs.empty() ? "" : fmt::format(": it needs {}", spec.needs);
}

/// Whether what an option does not do is told elsewhere.
bool has_own_notice(std::string_view name, const Run& config) {
  if (name == "warmup-epochs") return config.length.iterations.has_value();
  return name.starts_with("sharding-") && config.pipeline.ranges.size() > 1;
}

/// An option without an effect is an error on the command line, unless its trainer accepts it
/// there or `smoke` took the data away, a notice in a file (which may serve several command lines),
/// and normal in the environment and for defaults of a dialect.
void check_effects(const Patch& given, const Run& config, Notices& notices) {
  for (const auto& [name, setting] : given.settings()) {
    const Field& spec = *find_field(name);
    const bool off = spec.type == ValueType::Flag && !std::get<bool>(setting.value);
    const bool typed = setting.origin == Origin::CommandLine;
    if (spec.section == Section::Command || !spec.idle.empty() || off ||
        setting.origin == Origin::Environment || setting.origin == Origin::Dialect ||
        has_effect(spec, config) || has_own_notice(name, config))
      continue;
    if (spec.for_other_data && !typed) continue;
    const std::string message =
        fmt::format("{} has no effect here{}", setting.where, reason_of(spec, given));
    const bool replaced = spec.section == Section::Data && given.flag("smoke");
    if (typed && !spec.harmless && !replaced) fail(ErrorKind::Usage, "{}", message);
    notices.push_back(message);
  }
}

/// One core decodes images for several cores that train on them, but not for a GPU.
int loader_threads(const DataConfig& data, const MachineFacts& machine) {
  constexpr int kMost = 16;
  const bool pictures = holds_photos(data.dataset) && data.source == ImageSource::Files;
  if (!pictures || !machine.has_gpu) return 1;
  return std::clamp(threads_of_rank(machine, machine.local_ranks), 1, kMost);
}

std::string dataset_in(std::string_view directory) {
  const PublishedSet* const named = set_named_in(directory);
  return named == nullptr ? "" : std::string(named->name);
}

/// "a, b or c".
std::string choice_of(std::vector<std::string> names) {
  const std::string last = names.back();
  names.pop_back();
  return join(names, ", ") + " or " + last;
}

/// "`batch-size` or `replicas`": the options that lower a total batch.
std::string factors_above_one(const Run& config) {
  const bool pipelined = config.layout.depth_is_of_pipeline;
  std::vector<std::string_view> names;
  if (config.batch_size > 1) names.emplace_back("`batch-size`");
  if (config.micro_batches > 1)
    names.emplace_back(pipelined ? "`pipeline-depth`" : "`gradients-to-accumulate`");
  if (config.pipeline.ranks.replicas > 1) names.emplace_back("`replicas`");
  return join(names, " or ");
}

void complete_data(const DatasetFacts& facts, const MachineFacts& machine, Run& config) {
  DataConfig& data = config.data;
  data.train_size = facts.train_size;
  data.validation_size = facts.validation_size;
  data.class_names = facts.class_names;
  data.preparation = facts.preparation;
  data.image_type = data.asked_type;
  // The tensors are the same, and there is less to copy.
  const bool copies = machine.copies_images && !data.image_type && !data.normalises_on_host;
  if (data.sends_bytes || copies) data.image_type = data.image_type.value_or(DType::U8);
  if (data.source != ImageSource::Files)
    data.directory.clear();  // recipes name it anyway, and its path may name the data set
  else if (!facts.directory.empty())
    data.directory = facts.directory;
}

void complete_batch(Run& config) {
  const std::int64_t replicas = config.pipeline.ranks.replicas;
  const std::int64_t images =
      checked_product(config.batch_size, config.micro_batches, "batch size x micro-batches");
  const std::int64_t total =
      checked_product(images, replicas, "batch size x micro-batches x replicas");
  const bool trains = config.data.train_size > 0;
  config.iterations_per_epoch = trains ? config.data.train_size / total : 1;
  if (config.iterations_per_epoch == 0)
    fail(ErrorKind::Config,
         "the total batch of {} ({} images x {} micro-batches x {} replicas) exceeds the {} "
         "training images: lower {}",
         total, config.batch_size, config.micro_batches, replicas, config.data.train_size,
         factors_above_one(config));
}

void complete_length(Run& config) {
  const LengthRequest& length = config.length;
  if (length.iterations) {
    config.iterations = *length.iterations;
  } else {
    const double updates = *length.epochs * static_cast<double>(config.iterations_per_epoch);
    constexpr double kMost = 1e15;
    if (updates < 1.0 || updates > kMost)
      fail(ErrorKind::Config,
           "{} epochs of {} updates are {:.3g} updates; allowed are 1 to {:.0e}: change "
           "`epochs`",
           *length.epochs, config.iterations_per_epoch, updates, kMost);
    config.iterations = static_cast<std::int64_t>(updates);
    if (length.max_iterations) {
      config.learning_rate.horizon =
          config.iterations;  // the learning rates remain those of the whole length
      config.iterations = std::min(config.iterations, *length.max_iterations);
    }
  }
  (void)checked_product(config.iterations, config.total_batch(), "iterations x total batch");
}

}  // namespace

ImageSource image_source(const Patch& options) {
  if (options.flag("generated-data")) return ImageSource::Host;
  return options.flag("synthetic-data") ? ImageSource::Device : ImageSource::Files;
}

std::string dataset_name(const Patch& options) {
  if (const auto name = options.text("dataset")) return *name;
  const std::optional<std::string> directory = options.text("data-dir");
  if (image_source(options) != ImageSource::Files && !directory)
    fail(ErrorKind::Usage, "{} needs `dataset`: give the data set that it stands for",
         options.flag("synthetic-data") ? "`synthetic-data`" : "`generated-data`");
  if (!directory)
    fail(ErrorKind::Usage,
         "no data set: give `data-dir` DIR or set DATA_DIR, or use `dataset` with "
         "`synthetic-data`");
  std::string name = dataset_in(*directory);
  if (name.empty())
    fail(ErrorKind::Usage, "{} '{}' does not name a known data set: give `dataset` {}",
         options.find("data-dir")->where, *directory, choice_of(set_names()));
  return name;
}

bool wants_validation(const Patch& options) {
  if (const auto mode = options.text("validation-mode")) return *mode != "none";
  return !options.flag("no-validation");
}

bool dataset_is_told(const Patch& options) {
  const std::optional<std::string> directory = options.text("data-dir");
  return options.text("dataset") || !directory || !dataset_in(*directory).empty();
}

void check_mixing(const MixingConfig& config, std::int64_t batch_size) {
  if (!(config.mixup_alpha >= 0.0) || !std::isfinite(config.mixup_alpha))
    fail(ErrorKind::Config,
         "`mixup-alpha` {}: must be positive, as the parameter of Beta(alpha, alpha); 0 turns "
         "mixup off",
         config.mixup_alpha);
  if (!(config.cutmix_lambda >= 0.0 && config.cutmix_lambda <= 1.0))
    fail(ErrorKind::Config,
         "`cutmix-lambda` {}: must be 0 to 1, the share of an image that stays; 1 turns cutmix off",
         config.cutmix_lambda);
  if (config.on() && batch_size < 2)
    fail(ErrorKind::Config,
         "{} mixes images of the same micro-batch, but `batch-size` is {}: choose at least 2",
         config.mixup_alpha > 0.0 ? "`mixup-alpha`" : "`cutmix-lambda`", batch_size);
}

void check_numbers(const Run& run) {
  check_mixing(run.data.mixing, run.batch_size);
  if (run.layout.recompute == RecomputeRequest::Auto && run.layout.device_memory.empty())
    fail(ErrorKind::Usage,
         "`recompute` auto needs `device-memory`, the memory that a device may use");
  const std::int64_t span = run.model.batch_norm_span;
  const std::int64_t replicas = run.pipeline.ranks.replicas;
  if (span > replicas || replicas % span != 0)
    fail(
        ErrorKind::Config,
        "`BN-span`: {} replicas cannot be divided into spans of {}: give a divisor of the replicas",
        replicas, span);
}

Verbosity verbosity_of(const Patch& options) {
  const bool quiet = options.flag("quiet");
  if (quiet && options.flag("verbose"))
    fail(ErrorKind::Usage, "{} and {} contradict each other: give one of them",
         options.find("quiet")->where, options.find("verbose")->where);
  if (quiet) return Verbosity::Quiet;
  return options.flag("verbose") ? Verbosity::Verbose : Verbosity::Normal;
}

int threads_of_rank(const MachineFacts& machine, int local_ranks) {
  return machine.threads > 0
             ? machine.threads
             : std::clamp(machine.cores / std::max(1, local_ranks), 1, kMostThreads);
}

std::int64_t checked_product(std::int64_t a, std::int64_t b, std::string_view what) {
  if (a > std::numeric_limits<std::int64_t>::max() / b)
    fail(ErrorKind::Config, "{}: {} x {} does not fit into 64 bits", what, a, b);
  return a * b;
}

Completed complete(const Patch& given, const DatasetFacts& data, const MachineFacts& machine) {
  Completed result;
  check_families(given, result.notices);
  result.run = asked_run(given);
  Run& run = result.run;
  complete_model(given, data, run, result.notices);
  if (given.find("pipeline-num-parallel") == nullptr)
    run.data.loader_threads = loader_threads(run.data, machine);
  complete_data(data, machine, run);
  complete_batch(run);
  complete_length(run);
  complete_optimiser(given, run);
  complete_rate(given, run, result.notices);
  check_numbers(run);
  run.stop_after = given.integer("stop-after");
  complete_validation(given, run, result.notices);
  run.verbosity = verbosity_of(given);
  complete_trace(given, run, result.notices);
  if (given.flag("smoke") && machine.ranks > 1)
    fail(ErrorKind::Usage,
         "{} processes were started, but `smoke` runs one replica in one process: start it without "
         "a launcher (mpirun -np 1), or leave `smoke` out",
         machine.ranks);
  return result;
}

void complete_layout(const Patch& given, const MachineFacts& machine, Run& run, Notices& notices) {
  check_hosts(given, machine, run, notices);
  complete_checkpoints(given, run, notices);
  complete_logs(given, run, notices);
  check_name(given, run);
  note_idle(given, notices);
  check_effects(given, run, notices);
}

}  // namespace millrace::run
