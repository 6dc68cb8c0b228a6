// SPDX-License-Identifier: Apache-2.0
#include "cli/resolve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cli/option_reader.hpp"
#include "cli/resolve_layout.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

using train::TrainConfig;

constexpr std::string_view kCifar10 = "cifar-10";
constexpr std::string_view kCifar100 = "cifar-100";
constexpr std::string_view kImageNet = "imagenet";

/// What the recipes of the two families of data sets differ in (SGD's exponent first, momentum's
/// second).
struct Recipe {
  models::Task task;
  std::string_view model_size;
  std::int64_t image_size;
  models::NormKind norm;
  std::int64_t groups;
  std::string_view shortcut;
  std::int64_t batch_size;
  double epochs;
  double sgd_exponent;
  double momentum_exponent;
  double weight_decay;
  std::vector<std::string> decay_excludes;
  std::vector<double> boundaries;
};

Recipe recipe_of(std::string_view dataset) {
  if (dataset == kImageNet)
    return {.task = models::Task::ImageNet,
            .model_size = "18",
            .image_size = 224,
            .norm = models::NormKind::Group,
            .groups = 32,
            .shortcut = "B",
            .batch_size = 4,
            .epochs = 100,
            .sgd_exponent = -8,
            .momentum_exponent = -11,
            .weight_decay = 1e-4,
            .decay_excludes = {"beta", "gamma"},
            .boundaries = {0.3, 0.6, 0.8, 0.9}};
  return {.task = models::Task::Cifar,
          .model_size = "20",
          .image_size = 32,
          .norm = models::NormKind::Batch,
          .groups = 16,
          .shortcut = "A",
          .batch_size = 32,
          .epochs = 160,
          .sgd_exponent = -6,
          .momentum_exponent = -6,
          .weight_decay = 1e-6,
          .decay_excludes = {},
          .boundaries = {0.5, 0.75}};
}

std::string dataset_in(std::string_view directory) {
  const std::string text = to_lower(directory);
  const auto says = [&text](std::string_view word) { return text.find(word) != text.npos; };
  if (says("imagenet")) return std::string(kImageNet);
  if (says("cifar100") || says("cifar-100")) return std::string(kCifar100);
  if (says("cifar")) return std::string(kCifar10);
  return "";
}

std::string dataset_of(const Options& options) {
  if (const auto name = options.text("dataset")) return *name;
  const std::optional<std::string> directory = options.text("data-dir");
  if (options.flag("synthetic-data") && !directory)
    fail(ErrorKind::Usage, "--synthetic-data needs --dataset: which set should it stand for?");
  if (!directory)
    fail(ErrorKind::Usage,
         "no data set: give --data-dir DIR or set DATA_DIR, or use --dataset with "
         "--synthetic-data");
  std::string name = dataset_in(*directory);
  if (name.empty())
    fail(ErrorKind::Usage,
         "{} '{}' does not tell which data set it holds: give --dataset cifar-10, cifar-100 or "
         "imagenet",
         options.find("data-dir")->where, *directory);
  return name;
}

bool wants_validation(const Options& options) {
  if (const auto mode = options.text("validation-mode")) return *mode != "none";
  return !options.flag("no-validation");
}

train::Normalisation normalisation_of(Reader& read, std::string_view dataset) {
  using train::Normalisation;
  if (dataset == kImageNet)
    return read.flag("normalise-input") ? Normalisation::ImageNet : Normalisation::MeanOnly;
  const std::string name = read.text("normalise", "standardise");
  if (name == "dataset") return Normalisation::Dataset;
  return name == "imagenet" ? Normalisation::ImageNet : Normalisation::Standardise;
}

std::int64_t image_size_of(Reader& read, const std::string& dataset) {
  const std::int64_t size = read.integer("image-size", recipe_of(dataset).image_size);
  if (dataset != kImageNet && size != 32)
    fail(ErrorKind::Config, "{}: {} does not fit {}, whose images are 32x32: leave the option out",
         read.options().find("image-size")->where, size, dataset);
  return size;
}

std::int64_t multiply(std::int64_t a, std::int64_t b, std::string_view what) {
  if (a > std::numeric_limits<std::int64_t>::max() / b)
    fail(ErrorKind::Config, "{}: {} x {} does not fit into 64 bits", what, a, b);
  return a * b;
}

void resolve_model(Reader& read, const Recipe& recipe, const DatasetFacts& data,
                   models::ModelOptions& model) {
  model.model = to_lower(read.text("model", "resnet"));
  model.size = read.text("model-size", recipe.model_size);
  model.task = recipe.task;
  model.classes = data.classes;
  model.image = data.image;

  const std::string block = read.text("block", "auto");
  model.block = block == "basic"        ? models::BlockKind::Basic
                : block == "bottleneck" ? models::BlockKind::Bottleneck
                                        : models::BlockKind::Auto;
  model.shortcut = read.text("shortcut", recipe.shortcut).front();
  if (model.shortcut == 'A')
    model.shortcut_pad = read.text("shortcut-pad", "end") == "both" ? models::ShortcutPadSide::Both
                                                                    : models::ShortcutPadSide::End;
  const bool batch = read.options().flag("batch-norm");
  const bool group = read.options().flag("group-norm");
  model.norm = batch ? models::NormKind::Batch : group ? models::NormKind::Group : recipe.norm;
  read.note("batch-norm", model.norm == models::NormKind::Batch);
  read.note("group-norm", model.norm == models::NormKind::Group);
  if (model.norm == models::NormKind::Group)
    model.groups = read.integer("groups", recipe.groups);
  else
    model.batch_norm_decay = read.real("BN-decay", model.batch_norm_decay);
}

void resolve_data(Reader& read, const DataRequest& request, const DatasetFacts& facts,
                  train::DataConfig& data) {
  data.dataset = read.note("dataset", request.dataset);
  data.synthetic = read.flag("synthetic-data");
  data.train_size = facts.train_size;
  data.validation_size = facts.validation_size;
  data.normalisation = normalisation_of(read, request.dataset);
  data.augment = !read.flag("train-with-valid-preprocessing");
  data.loader_threads = static_cast<int>(read.integer("pipeline-num-parallel", 1));
  (void)image_size_of(read, request.dataset);
  if (data.synthetic) {
    read.use("data-dir");  // recipes name it all the same, and its words may tell the data set
    return;
  }
  data.directory = facts.directory.empty() ? request.directory : facts.directory;
  if (!data.directory.empty()) read.note("data-dir", data.directory.string());
}

void resolve_batch(Reader& read, const Recipe& recipe, TrainConfig& config) {
  config.batch_size = read.integer("batch-size", recipe.batch_size);
  config.micro_batches = read.given("pipeline-depth") ? read.integer("pipeline-depth", 1)
                                                      : read.integer("gradients-to-accumulate", 1);
  const std::int64_t replicas = read.integer("replicas", 1);
  config.pipeline.ranks.replicas = static_cast<std::int32_t>(replicas);
  const std::int64_t total =
      multiply(multiply(config.batch_size, config.micro_batches, "batch size x micro-batches"),
               replicas, "batch size x micro-batches x replicas");
  config.iterations_per_epoch = config.data.train_size / total;
  if (config.iterations_per_epoch == 0)
    fail(ErrorKind::Config,
         "a total batch of {} ({} images x {} micro-batches x {} replicas) is more than the {} "
         "training images: lower --batch-size or --gradients-to-accumulate",
         total, config.batch_size, config.micro_batches, replicas, config.data.train_size);
}

void resolve_length(Reader& read, const Recipe& recipe, TrainConfig& config,
                    std::vector<std::string>& notices) {
  if (const auto iterations = read.options().integer("iterations")) {
    config.iterations = read.note("iterations", *iterations);
    const Setting* warmup = read.options().find("warmup-epochs");
    if (warmup != nullptr)
      notices.push_back(
          fmt::format("{} is ignored: --iterations gives the length of the run", warmup->where));
  } else {
    const double epochs = read.real("epochs", recipe.epochs);
    const double length = epochs * static_cast<double>(config.iterations_per_epoch);
    constexpr double kMost = 1e15;
    if (length < 1.0 || length > kMost)
      fail(ErrorKind::Config,
           "{} epochs of {} iterations are {:.3g} iterations, allowed are 1 to {:.0e}: change "
           "--epochs",
           epochs, config.iterations_per_epoch, length, kMost);
    config.iterations = static_cast<std::int64_t>(length);
    const double warmup = read.real("warmup-epochs", 5.0);
    config.schedule.warmup_iterations = static_cast<std::int64_t>(
        std::floor(static_cast<double>(config.iterations) * warmup / epochs));
    if (config.schedule.warmup_iterations >= config.iterations)
      notices.push_back(
          fmt::format("the warm-up of {} epochs is as long as the run of {}", warmup, epochs));
  }
  (void)multiply(config.iterations, config.total_batch(), "iterations x total batch");
}

void resolve_rate(Reader& read, const Recipe& recipe, TrainConfig& config) {
  train::OptimiserConfig& optimiser = config.optimiser;
  const bool momentum = read.text("optimiser", "SGD") == "momentum";
  optimiser.kind = momentum ? train::OptimiserKind::Momentum : train::OptimiserKind::Sgd;
  if (momentum) optimiser.momentum = read.real("momentum", optimiser.momentum);
  optimiser.weight_decay = read.real("weight-decay", recipe.weight_decay);
  optimiser.decay_excludes = recipe.decay_excludes;

  train::ScheduleConfig& schedule = config.schedule;
  const double exponent =
      read.real("base-learning-rate", momentum ? recipe.momentum_exponent : recipe.sgd_exponent);
  schedule.base_rate = std::exp2(exponent) * static_cast<double>(config.total_batch());
  const bool stepped = read.text("lr-schedule", "stepped") == "stepped";
  schedule.kind = stepped ? train::ScheduleKind::Stepped : train::ScheduleKind::Cosine;
  if (!stepped) {
    schedule.boundaries.clear();
    return;
  }
  schedule.decay = read.real("learning-rate-decay", schedule.decay);
  schedule.boundaries = read.reals("learning-rate-schedule", recipe.boundaries);
}

void resolve_training(Reader& read, TrainConfig& config) {
  config.label_smoothing = read.real("label-smoothing", 0.0);
  config.loss_scaling.initial = read.real("loss-scaling", 128.0);
  const bool wide = read.text("precision", "16.32") == "32.32";
  config.precision = {.activations = wide ? DType::F32 : DType::BF16, .master = DType::F32};
  config.recompute =
      read.flag("xla-recompute") ? train::RecomputePolicy::Stage : train::RecomputePolicy::None;
  if (read.given("recompute-layers")) {
    config.recompute = train::RecomputePolicy::Layers;
    config.recompute_layers = split_list(read.text("recompute-layers", ""), ' ');
  }
  config.seed = static_cast<std::uint64_t>(read.integer("seed", 0));
  config.stop_after = read.options().integer("stop-after");
}

void resolve_validation(Reader& read, TrainConfig& config) {
  // --no-validation true or false is the other spelling of a mode.
  const std::string_view otherwise = wants_validation(read.options()) ? "all" : "none";
  const std::string mode = read.text("validation-mode", otherwise);
  config.validation = mode == "all"   ? train::ValidationMode::All
                      : mode == "end" ? train::ValidationMode::End
                                      : train::ValidationMode::None;
  config.validation_batch_size = config.batch_size;
  if (config.validation == train::ValidationMode::None) return;
  config.validation_batch_size = read.follower("valid-batch-size", config.batch_size);
  config.validate_every = multiply(read.integer("epochs-between-evals", 1),
                                   config.iterations_per_epoch, "epochs between validations");
}

/// A run without a directory saves nothing: what asks for a checkpoint contradicts it.
void check_nothing_saved(const Reader& read, const TrainConfig& config) {
  const Setting* stop = read.options().find("stop-after");
  if (stop != nullptr)
    fail(ErrorKind::Usage,
         "{} saves a checkpoint, but --no-logs saves nothing: leave one of them out", stop->where);
  if (config.validation == train::ValidationMode::End)
    fail(ErrorKind::Usage,
         "--validation-mode end validates saved checkpoints, but --no-logs saves nothing: validate "
         "with mode all, or leave --no-logs out");
}

void resolve_checkpoints(Reader& read, TrainConfig& config, std::vector<std::string>& notices) {
  if (read.options().flag("no-logs")) return check_nothing_saved(read, config);
  const bool all = config.validation == train::ValidationMode::End;
  config.max_checkpoints_to_keep =
      static_cast<int>(read.follower("max-ckpts-to-keep", all ? 0 : 1));
  const bool disabled = read.flag("disable-checkpoints");
  const std::int64_t per_epoch = disabled ? 0 : read.integer("ckpts-per-epoch", 1);
  if (per_epoch > 0)
    config.checkpoint_every = std::max<std::int64_t>(config.iterations_per_epoch / per_epoch, 1);
  else if (all)
    notices.emplace_back(
        "--validation-mode end validates saved checkpoints, and only the final one will be saved");
}

void resolve_logs(Reader& read, TrainConfig& config) {
  const bool per_epoch =
      read.given("logs-per-epoch") || (!read.given("log-freq") && !read.given("iterations"));
  config.log_every = per_epoch
                         ? std::max<std::int64_t>(
                               config.iterations_per_epoch / read.integer("logs-per-epoch", 16), 1)
                         : read.integer("log-freq", 500);
}

RunPlace resolve_place(Reader& read) {
  const Options& options = read.options();
  RunPlace place;
  place.logs = !options.flag("no-logs");
  if (!place.logs) return place;
  place.run_directory = options.text("run-dir").value_or("");
  if (!place.run_directory.empty()) return place;
  // Recorded only when given: a run that is continued has its place already.
  place.log_directory = read.given("log-dir") ? read.text("log-dir", "") : "logs";
  if (read.given("name-suffix")) place.suffix = read.text("name-suffix", "");
  if (place.suffix.find('/') != std::string::npos)
    fail(ErrorKind::Usage,
         "{} '{}' must not hold a '/': it is part of one directory's name; --log-dir says where "
         "that "
         "lies",
         options.find("name-suffix")->where, place.suffix);
  return place;
}

/// An option that nothing asked for is a mistake on the command line, worth a line when it stands
/// in a file (which may serve several command lines), and normal in the environment.
void check_all_used(const Reader& read, std::vector<std::string>& notices) {
  for (const auto& [name, setting] : read.options().settings()) {
    const OptionSpec& spec = *find_option(name);
    const bool off = spec.type == ValueType::Flag && !std::get<bool>(setting.value);
    if (spec.section == Section::Command || off || setting.origin == Origin::Environment ||
        read.used(name) || name == "no-validation")
      continue;
    if (name == "warmup-epochs" && read.given("iterations")) continue;  // has its own notice
    const std::string message =
        fmt::format("{} has no effect here{}", setting.where,
                    spec.needs.empty() ? "" : fmt::format(": it needs {}", spec.needs));
    if (setting.origin == Origin::CommandLine) fail(ErrorKind::Usage, "{}", message);
    notices.push_back(message);
  }
}

}  // namespace

bool dataset_is_told(const Options& options) {
  const std::optional<std::string> directory = options.text("data-dir");
  return options.text("dataset") || !directory || !dataset_in(*directory).empty();
}

DataRequest data_request(const Options& options, DataNeed need) {
  Reader read(options);
  DataRequest request;
  request.dataset = dataset_of(options);
  request.synthetic = options.flag("synthetic-data");
  request.validation = wants_validation(options);
  request.normalisation = normalisation_of(read, request.dataset);
  const std::int64_t size = image_size_of(read, request.dataset);
  request.image = {.h = size, .w = size, .c = 3};
  request.seed = static_cast<std::uint64_t>(options.integer("seed").value_or(0));
  if (request.synthetic) return request;
  request.directory = options.text("data-dir").value_or("");
  if (need == DataNeed::Name) return request;
  if (request.dataset == kImageNet)
    fail(ErrorKind::Config,
         "imagenet: TFRecord files cannot be read by this version; add --synthetic-data");
  if (request.directory.empty())
    fail(ErrorKind::Usage,
         "no place for {}: give --data-dir DIR or set DATA_DIR, or use --synthetic-data",
         request.dataset);
  return request;
}

DatasetFacts published_facts(const DataRequest& request) {
  if (request.dataset == kImageNet)
    return {.train_size = 1'281'167,
            .validation_size = 50'000,
            .classes = 1000,
            .image = request.image,
            .directory = request.directory};
  return {.train_size = 50'000,
          .validation_size = 10'000,
          .classes = request.dataset == kCifar100 ? 100 : 10,
          .image = request.image,
          .directory = request.directory};
}

Resolution resolve(const Options& options, const DatasetFacts& data, const MachineFacts& machine) {
  Reader read(options);
  const DataRequest request = data_request(options, DataNeed::Name);
  const Recipe recipe = recipe_of(request.dataset);
  Resolution result;
  TrainConfig& config = result.config;
  resolve_model(read, recipe, data, config.model);
  resolve_data(read, request, data, config.data);
  resolve_batch(read, recipe, config);
  resolve_length(read, recipe, config, result.notices);
  resolve_rate(read, recipe, config);
  resolve_training(read, config);
  resolve_layout(read, machine, config, result.notices);
  resolve_validation(read, config);
  resolve_checkpoints(read, config, result.notices);
  resolve_logs(read, config);
  result.place = resolve_place(read);
  check_all_used(read, result.notices);
  config.resolved_toml = to_toml(read.effective());
  return result;
}

Options continued_options(const Options& given, const Options& recorded) {
  Options command_line;
  Options environment;
  for (const auto& [name, setting] : given.settings()) {
    const OptionSpec& spec = *find_option(name);
    if (setting.origin == Origin::Environment) {
      environment.set(spec, setting);
      continue;
    }
    command_line.set(spec, setting);
    if (spec.mathematics == Mathematics::Keeps) continue;
    const Setting* before = recorded.find(name);
    if (before != nullptr && before->value == setting.value) continue;
    fail(ErrorKind::Usage,
         "{} {} would change the mathematics of the run, which began with{}: leave it out, or "
         "start a new run",
         setting.where, to_string(setting.value),
         before != nullptr ? " " + to_string(before->value) : "out it");
  }
  Options merged = merge(merge(command_line, recorded), environment);
  return relaid(command_line, recorded, std::move(merged));
}

}  // namespace millrace::cli
