// SPDX-License-Identifier: Apache-2.0
//
// The bytes of stages, found by making their kernels, for those who choose a layout.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "device/compat.hpp"
#include "device/environment.hpp"
#include "ops/backend.hpp"
#include "pipeline/memory_plan.hpp"
#include "pipeline/stage.hpp"
#include "train/feeder.hpp"
#include "train/memory.hpp"
#include "train/setup.hpp"

namespace millrace::training {
namespace {

/// What else a process needs for each device, without checkpoints, for choices that are made before
/// it can be measured.
std::int64_t assumed_rest(const run::Run& config) {
  const DType type = config.data.image_type.value_or(config.precision.activations);
  const bool reads = config.data.source != run::ImageSource::Device;
  const std::int64_t image = reads ? config.model.image.elements() * size_of(type) : 0;
  // Images on their way to a device with memory of its own, of the training and of a validation.
  const std::int64_t on_the_way =
      device::kHostReadable ? 0
                            : UploadedFeed::bytes(config.batch_size * image) +
                                  UploadedFeed::bytes(config.validation_batch_size * image);
  if (!device::computes_on_cores()) return on_the_way;
  const std::int64_t batches = io::LoaderOptions{}.batches_ahead + 1;
  const std::int64_t host = kLeastBase + kMargin + batches * config.batch_size * image;
  return on_the_way + host / config.pipeline.ranks.most_devices();
}

/// The same with checkpoints.
std::int64_t rest_beside_stages(const models::Graph& graph, const run::Run& config) {
  std::int64_t rest = assumed_rest(config);
  const bool saves = config.logging.keeps && rest > 0;
  const std::int64_t tensors = 1 + std::ssize(update_slots(config.optimiser.kind));
  if (saves)  // copies of the tensors of an average device
    rest += 4 * tensors * graph.trainable_elements() / config.pipeline.ranks.devices;
  return rest;
}

}  // namespace

partition::StageSizer stage_sizer(const models::Graph& graph, const run::Run& config) {
  device::expect_threads(config.threads);
  const std::shared_ptr<ops::Backend> backend =
      ops::make_default_backend({}, config.allow_nondeterministic);
  pipeline::StageOptions common = stage_options(config, Use::Training);
  // Validation overlaps the micro-batches of neighboring stages.
  if (config.pipeline.ranks.devices > 1) common.evaluation_slots.stash = 2;
  if (config.optimiser.sharded) common.parameters.shares = config.pipeline.ranks.replicas;
  return [&graph, backend, common](pipeline::OpRange range, const pipeline::ProgramOptions& program,
                                   pipeline::Slots slots) {
    pipeline::StageOptions options = common;
    static_cast<pipeline::ProgramOptions&>(options) = program;
    options.slots = slots;
    return device::aligned(pipeline::Stage(graph, range, options, *backend).bytes());
  };
}

namespace {

/// The sizes of the stages that consist of one layer each.
struct LayerSize {
  pipeline::OpRange range;
  pipeline::StageSize size;
};

std::vector<LayerSize> sizes_of_layers(const models::Graph& graph, pipeline::StageOptions options,
                                       ops::Backend& backend) {
  options.recompute = pipeline::Recompute::None;
  options.evaluation_batch = 0;
  options.slots = {};
  std::vector<LayerSize> sizes;
  for (std::size_t layer = 0; layer < graph.layers.size(); ++layer) {
    const bool last = layer + 1 == graph.layers.size();
    const std::int32_t end =
        last ? pipeline::whole(graph).last : graph.layers[layer + 1].first_op.value;
    const pipeline::OpRange range{graph.layers[layer].first_op.value, end};
    sizes.push_back({range, pipeline::Stage(graph, range, options, backend).size()});
  }
  return sizes;
}

}  // namespace

partition::StageSizer search_sizer(const models::Graph& graph, const run::Run& config) {
  device::expect_threads(config.threads);
  const std::shared_ptr<ops::Backend> backend =
      ops::make_default_backend({}, config.allow_nondeterministic);
  pipeline::StageOptions common = stage_options(config, Use::Training);
  if (config.optimiser.sharded) common.parameters.shares = config.pipeline.ranks.replicas;
  using Key = std::pair<std::int64_t, pipeline::Backward>;
  auto known = std::make_shared<std::map<Key, std::vector<LayerSize>>>();
  return
      [&graph, backend, common, known](
          pipeline::OpRange range, const pipeline::ProgramOptions& program, pipeline::Slots slots) {
        const auto [sizes, added] = known->try_emplace({program.batch, program.backward});
        if (added) {
          pipeline::StageOptions options = common;
          static_cast<pipeline::ProgramOptions&>(options) = program;
          sizes->second = sizes_of_layers(graph, options, *backend);
        }
        std::int64_t bytes = partition::program_bytes(graph, range, program, slots);
        std::int64_t scratch = 0;
        for (const LayerSize& layer : sizes->second) {
          if (layer.range.last <= range.first || layer.range.first >= range.last) continue;
          bytes += layer.size.state + layer.size.kernels - layer.size.scratch;
          scratch = std::max(scratch, layer.size.scratch);
        }
        return device::aligned(bytes + scratch);
      };
}

partition::Sizer sizer_of(const models::Graph& graph) {
  return {.search = [&graph](const run::Run& run) { return search_sizer(graph, run); },
          .exact = [&graph](const run::Run& run) { return stage_sizer(graph, run); },
          .rest = [&graph](const run::Run& run) { return rest_beside_stages(graph, run); },
          .varies = kBaseVaries};
}

std::vector<std::int64_t> sizes_of_stages(const models::Graph& graph, const run::Run& config) {
  const pipeline::PipelinePlan& plan = config.pipeline;
  const partition::StageSizer sizer = stage_sizer(graph, config);
  const std::vector<pipeline::Slots> slots = pipeline::slots_of(graph, plan);
  pipeline::ProgramOptions program = training_program(config);
  program.backward =
      splits_backward(plan.schedule) ? pipeline::Backward::Split : pipeline::Backward::Joined;
  std::vector<std::int64_t> bytes;
  for (std::size_t s = 0; s < plan.ranges.size(); ++s)
    bytes.push_back(
        sizer(plan.ranges[s], with_segments(graph, plan.ranges[s], program, slots[s]), slots[s]));
  return bytes;
}

}  // namespace millrace::training
