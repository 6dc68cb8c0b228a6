// SPDX-License-Identifier: Apache-2.0
//
// A small network of each family, to be trained on random images in any layout for a few steps.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/random.hpp"
#include "pipeline/channels.hpp"
#include "pipeline/schedules/schedules.hpp"
#include "train/network.hpp"
#include "train/session.hpp"

namespace millrace::train::small {

using pipeline::OpRange;

/// Random pixels and labels as functions of the index.
class NoiseDataset final : public io::Dataset {
 public:
  /// Image `broken` has an infinite pixel.
  explicit NoiseDataset(Shape shape, std::int64_t broken = -1, std::int64_t size = 500)
      : shape_(shape), broken_(broken), size_(size) {}
  [[nodiscard]] std::string name() const override { return "noise"; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] Shape image_shape() const override { return shape_; }
  [[nodiscard]] std::int64_t classes() const override { return 10; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return static_cast<std::int32_t>((index * 7) % 10);
  }
  io::Sample read(std::int64_t index, const io::ReadKey&, std::span<float> image) const override {
    const RandomStream stream(5, RandomPurpose::SyntheticData, static_cast<std::uint64_t>(index));
    for (std::size_t i = 0; i < image.size(); ++i)
      image[i] = 2.0f * uniform01(stream.block(0, i)[0]) - 1.0f;
    if (index == broken_) image[image.size() / 2] = std::numeric_limits<float>::infinity();
    return io::Sample::Own;
  }

 private:
  Shape shape_;
  std::int64_t broken_;
  std::int64_t size_;
};

inline constexpr std::int64_t kSteps = 5;
inline constexpr std::int32_t kMicroBatches = 8;
/// Few, because every layout validates them all; the last of three micro-batches lacks one image.
inline constexpr std::int64_t kValidationImages = 50;

enum class Family { ResNet, ResNeXt, SqueezeNet, EfficientNet };

inline std::string_view name_of(Family family) {
  constexpr std::array<std::string_view, 4> kNames = {"resnet", "resnext", "squeezenet",
                                                      "efficientnet"};
  return kNames.at(static_cast<std::size_t>(family));
}

struct Layout {
  std::int32_t stages = 1;
  std::string_view schedule = "Sequential";
  std::int32_t chunks = 1;
  bool recompute = false;
  DType type = DType::F32;
  models::NormKind norm = models::NormKind::Batch;
  std::int32_t replicas = 1;
  UpdateRule rule = UpdateRule::Momentum;
  bool narrow = false;   ///< 16-bit masters
  bool sharded = false;  ///< whole tensors are given to replicas
  Family family = Family::ResNet;
  std::vector<std::string> trained = {};  ///< filters; none: everything
  std::int32_t span = 1;                  ///< replicas that share batch statistics
  std::int64_t batch = 2;                 ///< micro-batch size; a step always has the same samples
  std::string actions = {};               ///< compute actions as CSV, in place of the schedule's
  double clip_norm = 0.0;
};

inline std::string name_of(const Layout& layout) {
  return fmt::format(
      "{}: {} stages, {}, {} chunks, recompute {}, {}, {} norm, {} replicas, {}{}{}{}{}, "
      "span {}, batch {}",
      name_of(layout.family), layout.stages, layout.schedule, layout.chunks, layout.recompute,
      millrace::name_of(layout.type), layout.norm == models::NormKind::Batch ? "batch" : "group",
      layout.replicas, millrace::name_of(layout.rule), layout.narrow ? ", 16-bit masters" : "",
      layout.sharded ? ", sharded" : "", layout.trained.empty() ? "" : ", only ",
      fmt::join(layout.trained, " "), layout.span, layout.batch);
}

/// One small network of each family with all of its special ops.
inline models::ModelOptions model_of(const Layout& layout) {
  models::ModelOptions model = models::default_options(name_of(layout.family), models::Task::Cifar);
  model.batch_norm_span = layout.span;
  switch (layout.family) {
    case Family::ResNet:
      model.size = "20";
      model.norm = layout.norm;
      model.groups = 4;
      model.image = {16, 16, 3};
      break;
    case Family::ResNeXt:
      model.size = "11";
      model.resnext.groups = 8;
      model.resnext.squeeze_excitation = models::SqueezeExcitation::On;
      model.residual.initialisers = models::InitialiserSet::Nvidia;
      break;
    case Family::SqueezeNet:
      model.squeezenet.bypass = models::Bypass::Simple;
      break;
    case Family::EfficientNet:
      model.size = "cifar";
      model.group_order = models::GroupOrder::Strided;
      model.efficientnet.depth = 0.4;
      model.efficientnet.width = 0.3;
      model.efficientnet.expand_ratio = 2;
      model.efficientnet.top_width = 320;
      model.efficientnet.dropout_rate = 0.3;
      model.efficientnet.block_survival = 0.5;
      break;
  }
  return model;
}

inline TrainConfig config_of(const Layout& layout) {
  TrainConfig config;
  config.model = model_of(layout);
  config.batch_size = layout.batch;
  config.micro_batches = kMicroBatches * 2 / (layout.replicas * layout.batch);
  config.iterations = kSteps;
  config.optimiser.kind = layout.rule;
  config.trained_filters = layout.trained;
  config.optimiser.lars_skips = {"gamma", "beta", "bias"};
  config.optimiser.weight_decay = 1e-4;
  config.precision = {.activations = layout.type,
                      .master = layout.narrow ? layout.type : DType::F32};
  config.optimiser.clip_norm = layout.clip_norm;
  if (layout.rule == UpdateRule::Adam || layout.rule == UpdateRule::AdamW)
    config.optimiser.epsilon = 1e-8;
  config.optimiser.sharded = layout.sharded;
  config.recompute = layout.recompute ? Recompute::Stage : Recompute::None;
  config.validation_batch_size = 3;
  config.data.train_size = 500;
  config.data.validation_size = kValidationImages;
  return config;
}

/// Cuts spread evenly over the ops, so that most lie inside residual blocks.
inline std::vector<OpRange> spread_cuts(const models::Graph& graph, std::int32_t stages) {
  std::vector<OpRange> ranges;
  ranges.reserve(static_cast<std::size_t>(stages));
  const auto ops = static_cast<std::int32_t>(graph.ops.size());
  for (std::int32_t s = 0; s < stages; ++s)
    ranges.push_back({ops * s / stages, ops * (s + 1) / stages});
  return ranges;
}

inline pipeline::PipelinePlan plan_of(const Layout& layout, const TrainConfig& config) {
  const models::Graph graph = network_of(config);
  pipeline::PipelinePlan plan;
  plan.ranges = spread_cuts(graph, layout.stages);
  pipeline::ScheduleRequest request;
  request.name = layout.schedule;
  request.devices = layout.stages / layout.chunks;
  request.chunks = layout.chunks;
  request.micro_batches = static_cast<std::int32_t>(config.micro_batches);
  const auto links = pipeline::links(pipeline::channels(graph, plan.ranges));
  pipeline::Schedule compute =
      layout.actions.empty() ? generate(request) : pipeline::parse_schedule(layout.actions, "file");
  if (!layout.actions.empty()) (void)number_in_order(compute);
  plan.schedule = with_communication(compute, links);
  validate(plan.schedule, links);
  plan.ranks = {.devices = request.devices, .replicas = layout.replicas, .ranks = 1};
  return plan;
}

/// The values, by name, that a checkpoint would contain.
inline std::map<std::string, std::vector<float>> values_by_name(const Snapshot& snapshot) {
  std::map<std::string, std::vector<float>> result;
  for (const io::NamedTensor& tensor : snapshot.tensors()) {
    const auto* values = reinterpret_cast<const float*>(tensor.data.data());
    result[tensor.info.name].assign(values, values + tensor.info.elements());
  }
  return result;
}

/// The same values, concatenated.
inline std::vector<float> all_values(const Snapshot& snapshot) {
  std::vector<float> result;
  for (const auto& [name, values] : values_by_name(snapshot))
    result.insert(result.end(), values.begin(), values.end());
  return result;
}

}  // namespace millrace::train::small
