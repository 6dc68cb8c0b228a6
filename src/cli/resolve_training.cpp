// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

using train::TrainConfig;

/// "--batch-size, --replicas": the options that lower a total batch.
std::string factors_above_one(const Reader& read, const TrainConfig& config, const char* depth) {
  std::vector<std::string> names;
  if (config.batch_size > 1) names.push_back(read.spelling("batch-size"));
  if (config.micro_batches > 1) names.push_back(read.spelling(depth));
  if (config.pipeline.ranks.replicas > 1) names.push_back(read.spelling("replicas"));
  return join(names, " or ");
}

/// "128" or "dynamic".
train::LossScaling loss_scaling(Reader& read) {
  constexpr double kMost = 16777216.0;
  constexpr double kDynamicStart = 32768.0;
  const std::string text = read.text("loss-scaling");
  if (to_lower(text) == "dynamic")
    return {.kind = train::ScalingKind::Dynamic, .initial = kDynamicStart};
  const std::optional<double> value = parse_number<double>(text);
  if (!value || !(*value > 0.0) || *value > kMost)
    fail(ErrorKind::Usage, "{}: '{}' is neither dynamic nor a number above 0 and at most {:.0f}",
         read.where("loss-scaling"), text, kMost);
  return {.kind = train::ScalingKind::Static, .initial = *value};
}

Precision precision(Reader& read) {
  const std::string bits = read.text("precision", "16.32");
  if (bits == "32.32") return {.activations = DType::F32, .master = DType::F32};
  const DType half = read.text("half") == "fp16" ? DType::F16 : DType::BF16;
  return {.activations = half, .master = bits == "16.16" ? half : DType::F32};
}

void resolve_rounding(Reader& read, TrainConfig& config, Notices& notices) {
  const Setting* given = read.options().find("no-stochastic-rounding");
  const bool off = read.options().flag("no-stochastic-rounding");
  if (config.precision.master != DType::F32) {
    config.stochastic_rounding = !read.flag("no-stochastic-rounding");
    return;
  }
  read.use("no-stochastic-rounding");
  if (off)
    notices.push_back(
        fmt::format("{} has no effect here: 32-bit weights are not rounded", given->where));
}

}  // namespace

void resolve_batch(Reader& read, const FamilyRecipe& recipe, TrainConfig& config) {
  config.batch_size = recipe.batch_size;
  config.label_smoothing = recipe.label_smoothing;
  read.apply(Section::Train, config);
  const char* const depth =
      read.given("pipeline-depth") ? "pipeline-depth" : "gradients-to-accumulate";
  config.micro_batches = read.integer(depth);
  read.apply("replicas", config);
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
         factors_above_one(read, config, depth));
  io::check_mixing(config.data.mixing, config.batch_size);
}

void resolve_length(Reader& read, const FamilyRecipe& recipe, TrainConfig& config) {
  if (const auto iterations = read.options().integer("iterations")) {
    config.iterations = read.note("iterations", *iterations);
  } else {
    const double epochs = read.real("epochs", recipe.epochs);
    const double length = epochs * static_cast<double>(config.iterations_per_epoch);
    constexpr double kMost = 1e15;
    if (length < 1.0 || length > kMost)
      fail(ErrorKind::Config,
           "{} epochs of {} updates are {:.3g} updates; allowed are 1 to {:.0e}: change "
           "--epochs",
           epochs, config.iterations_per_epoch, length, kMost);
    config.iterations = static_cast<std::int64_t>(length);
    if (read.given("max-iterations")) {
      config.learning_rate.horizon =
          config.iterations;  // the learning rates remain those of the whole length
      config.iterations = std::min(config.iterations, read.integer("max-iterations"));
    }
  }
  (void)checked_product(config.iterations, config.total_batch(), "iterations x total batch");
}

void resolve_numerics(Reader& read, TrainConfig& config, Notices& notices) {
  config.loss_scaling = loss_scaling(read);
  config.precision = precision(read);
  resolve_rounding(read, config, notices);
  const std::string recompute =
      read.given("recompute") ? read.text("recompute", "none") : std::string("none");
  // What auto repeats is chosen once the stages are known.
  const bool segments = recompute == "segments" || read.flag("xla-recompute");
  config.recompute = segments ? train::Recompute::Stage : train::Recompute::None;
  if (recompute == "auto" && !read.given("device-memory"))
    fail(ErrorKind::Usage, "{} auto needs --device-memory, the memory that a device may use",
         read.where("recompute"));
  if (read.given("recompute-layers")) {
    config.recompute = train::Recompute::Layers;
    config.recompute_layers = split_list(read.text("recompute-layers"), ' ');
  }
}

void check_layout(Reader& read, const TrainConfig& config) {
  const std::int64_t span = config.model.batch_norm_span;
  const std::int64_t replicas = config.pipeline.ranks.replicas;
  if (span > replicas || replicas % span != 0)
    fail(ErrorKind::Config,
         "{}: {} replicas cannot be divided into spans of {}: give a divisor of the replicas",
         read.where("BN-span"), replicas, span);
}

}  // namespace millrace::cli
