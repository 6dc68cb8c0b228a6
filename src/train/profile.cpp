// SPDX-License-Identifier: Apache-2.0
#include "train/profile.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "device/arena.hpp"
#include "device/compat.hpp"
#include "pipeline/stage.hpp"
#include "train/setup.hpp"

namespace millrace::training {
namespace {

using pipeline::Phase;

constexpr std::size_t kPasses = 9;
constexpr std::size_t kWarmUp = 2;

/// Seconds of one phase by pass and op.
using Samples = std::array<std::vector<double>, kPasses>;

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

std::vector<double> medians(const Samples& samples) {
  std::vector<double> result(samples[0].size());
  for (std::size_t op = 0; op < result.size(); ++op) {
    std::array<double, kPasses - kWarmUp> values = {};
    for (std::size_t k = 0; k < values.size(); ++k) values[k] = samples[k + kWarmUp][op];
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    result[op] = values[values.size() / 2];
  }
  return result;
}

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
  constexpr std::array kPhases = {Phase::Forward, Phase::BackwardInput, Phase::BackwardWeight};
  const EmptyBatch images(stage.training().program(), config.batch_size);
  const auto small =
      device::host_buffer(static_cast<std::size_t>(pipeline::Stage::small_bytes(stage.training())));
  std::array<Samples, 3> samples;
  for (std::size_t pass = 0; pass < kPasses; ++pass) {
    pipeline::Stage::load(space, stage.training(), {}, images.batch(), small.get());
    for (std::size_t p = 0; p < kPhases.size(); ++p) {
      samples[p][pass].resize(graph.ops.size());
      stage.training().profile(space, kPhases[p], {}, samples[p][pass]);
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

}  // namespace millrace::training
