// SPDX-License-Identifier: Apache-2.0
//
// A small network of each family, to be trained on random images in any layout for a few steps.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/random.hpp"
#include "io/checkpoint.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "tests/support/test.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"

namespace millrace::training::small {

using pipeline::OpRange;

/// Random pixels and labels as functions of the index.
class NoiseDataset : public io::Dataset {
 public:
  /// Image `broken` has infinite pixels.
  explicit NoiseDataset(Shape shape, std::int64_t broken = -1, std::int64_t size = 500,
                        std::int64_t classes = 10)
      : shape_(shape), broken_(broken), size_(size), classes_(classes) {}
  [[nodiscard]] std::string name() const override { return "noise"; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] Shape image_shape() const override { return shape_; }
  [[nodiscard]] std::int64_t classes() const override { return classes_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return static_cast<std::int32_t>((index * 7) % classes_);
  }
  io::Sample read(std::int64_t index, const io::ReadKey&, std::span<std::uint8_t> image,
                  PixelScaling& scaling) const override {
    const RandomStream stream(5, RandomPurpose::SyntheticData, static_cast<std::uint64_t>(index));
    for (std::size_t i = 0; i < image.size(); ++i)
      image[i] = static_cast<std::uint8_t>(stream.block(0, i)[0]);
    scaling = io::plain_scaling(shape_);
    if (index == broken_) scaling.scale[0] = std::numeric_limits<float>::infinity();
    return io::Sample::Own;
  }

 private:
  Shape shape_;
  std::int64_t broken_;
  std::int64_t size_;
  std::int64_t classes_;
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
  std::vector<std::string> recompute_layers = {};  ///< instead of the whole stage
  /// What a stage recomputes; empty: as `recompute` says.
  std::function<pipeline::ChosenSegments(const models::Graph&, OpRange)> chooses = {};
  std::optional<DType> image_type = {};  ///< in which images reach the device
  int loaders = 1;                       ///< threads
  run::MixingConfig mixing = {};
  double smoothing = 0.0;
  SmoothingForm form = SmoothingForm::OtherClasses;
  double ema_decay = 0.0;
  std::int64_t reduced_at_once = 0;  ///< bytes of gradients
  DType reduced_as = DType::F32;
};

inline std::string name_of(const Layout& layout) {
  return fmt::format(
      "{}: {} stages, {}, {} chunks, recompute {}{}, {}, {} norm, {} replicas, {}{}{}{}{}, "
      "span {}, batch {}, images as {}, {} loaders",
      name_of(layout.family), layout.stages, layout.schedule, layout.chunks, layout.recompute,
      fmt::join(layout.recompute_layers, " "), millrace::name_of(layout.type),
      layout.norm == models::NormKind::Batch ? "batch" : "group", layout.replicas,
      millrace::name_of(layout.rule), layout.narrow ? ", 16-bit masters" : "",
      layout.sharded ? ", sharded" : "", layout.trained.empty() ? "" : ", only ",
      fmt::join(layout.trained, " "), layout.span, layout.batch,
      layout.image_type ? millrace::name_of(*layout.image_type) : "they are stored",
      layout.loaders);
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

inline run::Run config_of(const Layout& layout) {
  run::Run config;
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
  config.averaging.ema_decay = layout.ema_decay;
  if (layout.rule == UpdateRule::Adam || layout.rule == UpdateRule::AdamW)
    config.optimiser.epsilon = 1e-8;
  config.optimiser.sharded = layout.sharded;
  config.reduced_at_once = layout.reduced_at_once;
  config.reduced_as = layout.reduced_as;
  config.recompute = !layout.recompute_layers.empty() ? run::Recompute::Layers
                     : layout.recompute               ? run::Recompute::Stage
                                                      : run::Recompute::None;
  config.recompute_layers = layout.recompute_layers;
  config.label_smoothing = layout.smoothing;
  config.smoothing = layout.form;
  config.data.mixing = layout.mixing;
  config.data.loader_threads = layout.loaders;
  config.data.image_type = layout.image_type;
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

inline pipeline::PipelinePlan plan_of(const Layout& layout, const run::Run& config) {
  const models::Graph graph = network_of(config);
  pipeline::PipelinePlan plan;
  plan.ranges = spread_cuts(graph, layout.stages);
  pipeline::ScheduleRequest request;
  request.name = layout.schedule;
  request.devices = layout.stages / layout.chunks;
  request.chunks = layout.chunks;
  request.micro_batches = static_cast<std::int32_t>(config.micro_batches);
  const auto links = pipeline::links(graph, plan.ranges);
  pipeline::Schedule compute =
      layout.actions.empty() ? generate(request) : pipeline::parse_schedule(layout.actions, "file");
  if (!layout.actions.empty()) (void)number_in_order(compute);
  plan.schedule = with_communication(compute, links);
  validate(plan.schedule, links);
  plan.ranks = {.devices = request.devices, .replicas = layout.replicas, .ranks = 1};
  return plan;
}

/// A training of this layout, for Training below.
inline run::Run planned(const Layout& layout,
                        run::ValidationMode validation = run::ValidationMode::None) {
  run::Run config = config_of(layout);
  config.pipeline = plan_of(layout, config);
  config.validation = validation;
  if (layout.chooses) {
    const models::Graph graph = network_of(config);
    config.recompute = run::Recompute::Stage;
    for (const OpRange range : config.pipeline.ranges)
      config.chosen_segments.push_back(layout.chooses(graph, range));
  }
  return config;
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

/// The length of a - b over that of b.
inline double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i] - b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

/// A training in one process, or one rank's part of it, step by step.
class Training {
 public:
  static constexpr double kRate = 0.05;

  /// Starts at iteration `first`. Without `data` it trains on noise.
  explicit Training(const run::Run& config, const comm::World& world,
                    std::shared_ptr<const io::Dataset> data = nullptr, std::int64_t first = 0)
      : config_(config),
        data_(data ? std::move(data) : std::make_shared<NoiseDataset>(config.model.image)),
        session_(config, Session::Use::Training, world),
        next_(first) {
    session_.allocate();
    session_.initialise(1);
    begin_feeds();
  }

  StepResult step(double rate = kRate) { return session_.step(feeds_, next_++, rate); }
  void steps(std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) (void)step();
  }
  /// The results of n steps by a host that goes ahead of the device where it can.
  std::vector<StepResult> steps_ahead(std::int64_t n) {
    std::vector<StepResult> results;
    const std::int64_t end = next_ + n;
    const auto queue = [this] { session_.queue_step(feeds_, next_++, kRate); };
    while (std::ssize(results) < n) {
      if (std::ssize(results) == n - (end - next_)) queue();
      if (next_ < end && session_.may_queue_ahead()) queue();
      results.push_back(session_.finish_step());
    }
    return results;
  }
  /// New loaders, as a restored run has them.
  void begin_feeds() { feeds_ = session_.feeder().training(data_, next_ * config_.total_batch()); }
  Session& session() { return session_; }
  [[nodiscard]] std::string digest() const {
    return io::digest(session_.tensors().snapshot().tensors());
  }
  [[nodiscard]] std::map<std::string, std::vector<float>> values() const {
    return values_by_name(session_.tensors().snapshot());
  }
  pipeline::MicroBatchMetrics validate(const std::shared_ptr<const io::Dataset>& data) {
    return session_.evaluate(session_.feeder().validation(data), data->size(),
                             [](std::int64_t) { return false; });
  }
  [[nodiscard]] io::CheckpointHeader header() const {
    io::CheckpointHeader header;
    header.iteration = next_;
    header.model = session_.graph().name;
    header.scaling_state = to_json(session_.scaling());
    return header;
  }
  fs::path save(const fs::path& directory) const {
    return io::write_checkpoint(directory, header(), session_.tensors().snapshot().tensors());
  }

 private:
  run::Run config_;
  std::shared_ptr<const io::Dataset> data_;
  Session session_;
  Feeds feeds_;
  std::int64_t next_;
};

}  // namespace millrace::training::small
