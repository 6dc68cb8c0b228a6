// SPDX-License-Identifier: Apache-2.0
#include "train/stage_times.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/clock.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"

namespace millrace::training {
namespace {

using pipeline::ActionKind;
using pipeline::StageCost;

constexpr std::size_t kWarmUpSteps = 1;
constexpr std::size_t kSteps = 5;

/// Seconds of work for each entry of a step.
std::vector<double> work_of(const pipeline::Recording& recording) {
  std::vector<double> seconds(recording.entries().size());
  for (const pipeline::Piece& piece : recording.pieces())
    if (pipeline::is_work(piece.doing))
      seconds[piece.entry] += 1e-9 * static_cast<double>(piece.end - piece.begin);
  return seconds;
}

/// Medians over steps or passes, by entry or op.
std::vector<double> medians(const std::vector<std::vector<double>>& steps) {
  std::vector<double> result(steps.front().size());
  std::vector<double> values(steps.size());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::transform(steps.begin(), steps.end(), values.begin(),
                   [i](const std::vector<double>& step) { return step[i]; });
    std::nth_element(values.begin(), middle, values.end());
    result[i] = *middle;
  }
  return result;
}

/// The times of a stage's actions of one kind.
struct Mean {
  double seconds = 0.0;
  int count = 0;
  void add(double one) {
    seconds += one;
    ++count;
  }
  [[nodiscard]] double value() const { return count > 0 ? seconds / count : 0.0; }
};

/// What the actions of a stage take.
struct ActionTimes {
  std::array<Mean, static_cast<std::size_t>(ActionKind::Update) + 1> by_kind;
  [[nodiscard]] Mean& of(ActionKind kind) { return by_kind[static_cast<std::size_t>(kind)]; }
  /// Schedules that split some backwards only have times of the parts.
  [[nodiscard]] StageCost cost() {
    const bool split = of(ActionKind::BackwardInput).count > 0;
    return {.forward = of(ActionKind::Forward).value(),
            .backward_input = of(split ? ActionKind::BackwardInput : ActionKind::Backward).value(),
            .backward_weight = of(ActionKind::BackwardWeight).value(),
            .update = of(ActionKind::Update).value()};
  }
};

/// Plays the part of a rank, and notes the times of its stages of the first replica.
void measure(const run::Run& config, const std::shared_ptr<const io::Dataset>& dataset, int rank,
             bool shares_cores, std::vector<ActionTimes>& times) {
  const comm::World alone{comm::World::Alone{}};
  Session session(config, Use::Training, alone, rank);
  session.allocate();
  session.initialise(config.seed);
  if (shares_cores) session.set_clock(processor_nanoseconds);
  const double threads = shares_cores ? config.threads : 1.0;
  const Feeds feeds = session.feeder().training(dataset, 0);
  const pipeline::Recording& recording = session.executor().recording();
  std::vector<std::vector<double>> steps;
  for (std::size_t i = 0; i < kWarmUpSteps + kSteps; ++i) {
    (void)session.step(feeds, static_cast<std::int64_t>(i), 0.0);
    if (i >= kWarmUpSteps) steps.push_back(work_of(recording));
  }
  const std::vector<double> seconds = medians(steps);
  for (std::size_t i = 0; i < seconds.size(); ++i)
    if (const pipeline::LocalEntry& entry = recording.entries()[i]; entry.replica == 0)
      times.at(static_cast<std::size_t>(entry.action.stage))
          .of(entry.action.kind)
          .add(seconds[i] / threads);
}

/// Plays the parts of this process.
std::vector<ActionTimes> measure_all(const run::Run& config,
                                     const std::shared_ptr<const io::Dataset>& dataset,
                                     const comm::World& world, int at_once) {
  const pipeline::RankMap& map = config.pipeline.ranks;
  std::vector<ActionTimes> times(config.pipeline.ranges.size());
  if (world.size() == map.ranks) {
    world.barrier();
    measure(config, dataset, world.rank(), world.local_size() > at_once, times);
  } else {
    for (int rank = 0; rank <= map.rank_of(0, map.devices - 1); ++rank)
      measure(config, dataset, rank, false, times);
  }
  return times;
}

/// Black images of class 0, as large as a program's.
class EmptyBatch {
 public:
  EmptyBatch(const pipeline::StageProgram& program, std::int64_t count)
      : labels_(static_cast<std::size_t>(count)) {
    for (const pipeline::Crossing& input : program.inputs)
      if (input.value == models::Graph::input())
        images_.resize(static_cast<std::size_t>(program.buffer(input.activation).bytes));
  }
  [[nodiscard]] io::Batch batch() const {
    io::Batch batch;
    batch.count = std::ssize(labels_);
    batch.images = images_;
    batch.labels = labels_;
    return batch;
  }

 private:
  std::vector<std::byte> images_;
  std::vector<std::int32_t> labels_;
};

}  // namespace

std::vector<partition::OpCost> profiled_costs(const run::Run& config) {
  run::Run alone = config;
  alone.model.batch_norm_span = 1;  // only kernels are timed; there is no peer
  const models::Graph graph = network_of(alone);
  const DType type = config.precision.activations;
  const auto backend = ops::make_default_backend({}, config.allow_nondeterministic);
  pipeline::StageOptions options;
  options.batch = config.batch_size;
  options.type = type;
  options.backward = pipeline::Backward::Split;
  pipeline::Stage stage(graph, pipeline::whole(graph), options, *backend);
  const device::Arena arena(stage.bytes());
  stage.bind(arena.at(0));
  stage.parameters().initialise(0);
  const device::ExecutionSpace space;
  stage.training().begin_step(space);
  constexpr std::size_t kPasses = 9;
  constexpr std::size_t kWarmUp = 2;
  constexpr std::array kPhases = {pipeline::Phase::Forward, pipeline::Phase::BackwardInput,
                                  pipeline::Phase::BackwardWeight};
  const EmptyBatch images(stage.training().program(), config.batch_size);
  const auto small =
      device::host_buffer(static_cast<std::size_t>(pipeline::Stage::small_bytes(stage.training())));
  std::array<std::vector<std::vector<double>>, 3> samples;  // by pass and op
  for (std::size_t pass = 0; pass < kPasses; ++pass) {
    pipeline::Stage::load(space, stage.training(), {}, images.batch(), small.get());
    for (std::size_t p = 0; p < kPhases.size(); ++p) {
      std::vector<double> seconds(graph.ops.size());
      stage.training().profile(space, kPhases[p], {}, seconds);
      if (pass >= kWarmUp) samples[p].push_back(std::move(seconds));
    }
  }
  std::vector<partition::OpCost> costs =
      partition::analytic_costs(graph, config.batch_size, type, partition::cpu_model(type));
  const std::vector<double> forward = medians(samples[0]);
  const std::vector<double> input = medians(samples[1]);
  const std::vector<double> weight = medians(samples[2]);
  for (std::size_t op = 0; op < costs.size(); ++op) {
    costs[op].forward = forward[op];
    costs[op].backward_input = input[op];
    costs[op].backward_weight = weight[op];
  }
  return costs;
}

std::vector<StageCost> measured_costs(const run::Run& config,
                                      const std::shared_ptr<const io::Dataset>& dataset,
                                      const comm::World& world, int at_once) {
  run::Run resident = config;
  resident.data.source = run::ImageSource::Device;  // reading images is not a cost of a stage
  std::vector<double> numbers;                      // zero for stages of other ranks
  for (ActionTimes& times : measure_all(resident, dataset, world, at_once)) {
    const StageCost cost = times.cost();
    numbers.insert(numbers.end(),
                   {cost.forward, cost.backward_input, cost.backward_weight, cost.update});
  }
  world.add(numbers);
  std::vector<StageCost> costs;
  for (std::size_t i = 0; i < numbers.size(); i += 4)
    costs.push_back({.forward = numbers[i],
                     .backward_input = numbers[i + 1],
                     .backward_weight = numbers[i + 2],
                     .update = numbers[i + 3]});
  return costs;
}

}  // namespace millrace::training
