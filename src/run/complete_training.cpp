// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/complete_parts.hpp"

namespace millrace::run {

namespace {

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

}  // namespace

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
  check_mixing(config.data.mixing, config.batch_size);
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

void complete_numerics(const Patch& given, Run& config) {
  const LayoutRequest& layout = config.layout;
  if (layout.recompute == RecomputeRequest::Auto && layout.device_memory.empty())
    fail(ErrorKind::Usage, "{} auto needs `device-memory`, the memory that a device may use",
         given.find("recompute")->where);
}

void check_layout(const Patch& given, const Run& config) {
  const std::int64_t span = config.model.batch_norm_span;
  const std::int64_t replicas = config.pipeline.ranks.replicas;
  if (span > replicas || replicas % span != 0)
    fail(ErrorKind::Config,
         "{}: {} replicas cannot be divided into spans of {}: give a divisor of the replicas",
         given.find("BN-span")->where, replicas, span);
}

}  // namespace millrace::run
