// SPDX-License-Identifier: Apache-2.0
#include "train/resolve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "core/text.hpp"
#include "models/registry.hpp"

namespace millrace::training {
namespace {

/// Batch norm of one value: its variance is 0, so that the output is beta whatever the input is.
std::string norms_of_one_value(const run::Run& config) {
  if (config.batch_size * config.model.batch_norm_span > 1) return {};
  const models::Graph graph = models::build_model(config.model);
  std::vector<std::string> names;
  for (const models::Op& op : graph.ops) {
    const Shape& shape = graph.value(op.inputs.front()).shape;
    if (std::holds_alternative<models::BatchNorm>(op.kind) && shape.h * shape.w == 1)
      names.push_back(op.name);
  }
  if (names.empty()) return {};
  const std::string others = names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "";
  return fmt::format(
      "batch normalization of {}{} sees one value per channel, 1 image of 1 x 1 pixels, whose "
      "variance is 0: it passes on beta alone; give a larger `batch-size` or `image-size`, or "
      "`group-norm`",
      names.front(), others);
}

std::string random_weights_that_stay(const run::Run& config) {
  if (config.trained_filters.empty() || !config.initial_weights().empty()) return {};
  const models::Graph graph = network_of(config);
  const auto frozen = std::ranges::count_if(graph.parameters, &models::Parameter::frozen);
  if (frozen == 0) return {};
  return fmt::format(
      "`variable-filter` trains {} alone: the {} other tensors keep their random weights; "
      "`init-path` starts from trained ones",
      join(config.trained_filters, ", "), frozen);
}

std::string pipeline_of_one_stage(const Patch& options, const run::Run& config) {
  const Setting* const depth = options.find("pipeline-depth");
  if (depth == nullptr || config.pipeline.ranges.size() > 1 || config.micro_batches == 1) return {};
  return fmt::format(
      "{} {} without `shards` is no pipeline: one device accumulates the gradients of {} "
      "micro-batches, as with `gradients-to-accumulate`",
      depth->where, to_string(depth->value), config.micro_batches);
}

/// One stage has only one order of passes. A run that continues has its schedule recorded.
std::string schedule_of_one_stage(const Patch& options, const run::Run& config) {
  const Setting* const schedule = options.typed("pipeline-schedule");
  if (schedule == nullptr || config.pipeline.ranges.size() > 1) return {};
  return fmt::format("{} {} has no effect here: the network is one stage, which `shards` divides",
                     schedule->where, to_string(schedule->value));
}

}  // namespace

std::vector<std::string> doubts_about_training(const Patch& options, const run::Run& config) {
  std::vector<std::string> lines = {norms_of_one_value(config), random_weights_that_stay(config),
                                    pipeline_of_one_stage(options, config),
                                    schedule_of_one_stage(options, config)};
  std::erase(lines, "");
  return lines;
}

}  // namespace millrace::training
