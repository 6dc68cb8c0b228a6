// SPDX-License-Identifier: Apache-2.0
#include "train/setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/machine_limits.hpp"
#include "device/environment.hpp"
#include "io/atomic_file.hpp"
#include "io/images/presets.hpp"
#include "models/registry.hpp"
#include "ops/backend.hpp"
#include "pipeline/op_shapes.hpp"
#include "run/complete.hpp"
#include "train/memory.hpp"

namespace millrace::training {

run::MachineFacts this_machine() {
  return {.cores = usable_cores(),
          .memory = read_limits().memory.bytes,
          .device_memory = device::total_memory(),
          .has_gpu = !device::computes_on_cores(),
          .copies_images = device::has_own_memory(),
          .has_cudnn = ops::has_nondeterministic()};
}

run::MachineFacts this_machine(const comm::World& world) {
  run::MachineFacts facts = this_machine();
  if (!comm::started_by_launcher()) return facts;
  // A launcher may have bound each rank to its own cores; otherwise the ranks share them.
  std::vector<int> cores = world.gather_here(device::core_numbers());
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  facts.cores = whole_cores(std::max(1, static_cast<int>(cores.size())), read_limits().cores);
  facts.ranks = world.size();
  facts.local_ranks = world.local_size();
  if (facts.local_ranks > facts.cores) world.share_cores();
  // Results depend on this number, so all machines use that of the one with the fewest cores.
  facts.threads =
      static_cast<int>(-world.maximum(-std::int64_t{std::max(1, facts.cores / facts.local_ranks)}));
  return facts;
}

models::Graph network_of(const run::Run& config) {
  models::Graph graph = models::build_model(config.model);
  models::train_only(graph, config.trained_filters);
  pipeline::store_images(graph, config.batch_size, [&](const ops::ConvShape& first) {
    return ops::stored_image_here(first, config.precision.activations);
  });
  return graph;
}

namespace {

/// What a checkpoint will say of the images.
void require_told_rightly(const io::Dataset& images) {
  const std::size_t names = images.class_names().size();
  if (names != 0 && std::cmp_not_equal(names, images.classes()))
    fail(ErrorKind::Data, "{}: has {} classes, but {} class names: give one for each, or none",
         images.name(), images.classes(), names);
  const std::optional<run::Preparation> preparation = images.preparation();
  if (!preparation) return;
  if (!preparation->preset.empty()) (void)io::image_preset(preparation->preset);
  if (preparation->by_image) return;
  for (std::size_t c = 0; c < preparation->mean.size(); ++c)
    if (const double mean = preparation->mean[c], deviation = preparation->deviation[c];
        !std::isfinite(mean) || !std::isfinite(deviation) || deviation <= 0.0)
      fail(ErrorKind::Data,
           "{}: prepares color {} of its images by mean {} and deviation {}: give finite numbers, "
           "and deviations above 0",
           images.name(), c, mean, deviation);
}

}  // namespace

void require_matching(const models::Graph& network, const io::Dataset& images) {
  if (images.size() < 1) fail(ErrorKind::Data, "{}: the data set is empty", images.name());
  if (images.image_shape() != network.input_shape)
    fail(ErrorKind::Config, "{}: images of {}, but {} takes images of {}", images.name(),
         images.image_shape(), network.name, network.input_shape);
  if (images.classes() > network.classes)
    fail(ErrorKind::Config, "{}: {} classes, but {} tells {} apart", images.name(),
         images.classes(), network.name, network.classes);
}

void adapt_to(run::Run& run, const io::Dataset& images, const io::Dataset* validation) {
  require_told_rightly(images);
  run.data.weighted = false;
  for (std::int64_t i = 0; i < images.size(); ++i) {
    const float weight = images.weight(i);
    if (!std::isfinite(weight) || weight < 0.0f)
      fail(ErrorKind::Data, "{}: image {} has weight {}: give 0 or more", images.name(), i, weight);
    run.data.weighted = run.data.weighted || weight != 1.0f;
  }
  if (!images.has_floats() && (validation == nullptr || !validation->has_floats())) return;
  if (run.data.asked_type == DType::U8)
    fail(ErrorKind::Config,
         "`data-loader-image-type`: floats, as in {}, do not fit in uint8: give no type",
         images.name());
  if (run.data.image_type == DType::U8) run.data.image_type.reset();
}

namespace {

constexpr std::uint64_t kMostFileBytes = 4 << 20;  // of a schedule: some 700,000 actions

/// The plan in the file that was given. Errors: Io; Config when it is for another network.
std::optional<partition::Plan> plan_given(const run::Run& config, const models::Graph& graph) {
  const std::string& file = config.layout.plan;
  if (file.empty()) return std::nullopt;
  partition::Plan plan = partition::parse_plan(io::read_text(file, kMostFileBytes), file);
  if (plan.model != graph.name)
    fail(ErrorKind::Config, "{}: this is a plan for {}, but the run trains {}", file, plan.model,
         graph.name);
  return plan;
}

/// The compute actions in the file of a schedule, if one was given.
std::optional<pipeline::Schedule> schedule_in_file(const run::Run& config) {
  const std::string& file = config.layout.schedule_file;
  if (file.empty()) return std::nullopt;
  if (!std::filesystem::exists(file))
    fail(ErrorKind::Io,
         "`pipeline-schedule-file` {}: there is no such file: say where it is, or name a "
         "`pipeline-schedule`",
         file);
  return without_communication(pipeline::parse_schedule(io::read_text(file, kMostFileBytes), file));
}

}  // namespace

partition::LayoutFacts layout_facts(const models::Graph& graph, const run::Run& run,
                                    const run::MachineFacts& machine) {
  return {.machine = machine, .plan = plan_given(run, graph), .actions = schedule_in_file(run)};
}

void give_stages_devices(run::LayoutRequest& layout) {
  if (!layout.shards && layout.device_of.empty() && !layout.splits.empty() &&
      !run::opens_cuts(layout))
    layout.shards = static_cast<std::int32_t>(layout.splits.size()) + 1;
}

run::Run decided(const models::Graph& network, const comm::World& world, int threads,
                 run::Run run) {
  run.layout.pipelined = run.layout.pipelined || !run.layout.splits.empty();
  give_stages_devices(run.layout);
  const run::MachineFacts machine = {.cores = static_cast<int>(device::core_numbers().size()),
                                     .ranks = world.size(),
                                     .local_ranks = world.local_size(),
                                     .threads = threads,
                                     .memory = read_limits().memory.bytes,
                                     .device_memory = device::total_memory()};
  run::check_numbers(run);
  const partition::LayoutFacts facts = layout_facts(network, run, machine);
  return partition::choose(network, std::move(run), facts, sizer_of(network)).run;
}

bool evaluates(const run::Run& config, Use use) {
  return use == Use::Evaluation || use == Use::Serving ||
         (use == Use::Training && config.validation != run::ValidationMode::None);
}

pipeline::StageOptions stage_options(const run::Run& config, Use use) {
  pipeline::StageOptions options{training_program(config)};
  if (use != Use::Training) options.batch = 0;
  options.evaluation_batch = evaluates(config, use) ? config.validation_batch_size : 0;
  if (use == Use::Inference) options.evaluation_batch = config.batch_size;
  options.backward = splits_backward(config.pipeline.schedule) ? pipeline::Backward::Split
                                                               : pipeline::Backward::Joined;
  options.label_smoothing = {static_cast<float>(config.label_smoothing), config.smoothing};
  if (use == Use::Training) {
    options.parameters.rule = config.optimiser.kind;
    options.parameters.clips = config.optimiser.clip_norm > 0.0;
    options.parameters.averages = config.averaging.ema_decay > 0.0;
    options.parameters.reduce = {.replicas = config.pipeline.ranks.replicas,
                                 .most_bytes = config.reduced_at_once,
                                 .type = config.reduced_as};
  }
  options.parameters.decay_excludes = config.optimiser.decay_excludes;
  options.parameters.lars_skips = config.optimiser.lars_skips;
  options.parameters.precision = config.precision;
  options.parameters.stochastic_rounding = config.stochastic_rounding;
  options.parameters.seed = config.seed;
  return options;
}

std::vector<int> device_numbers_of(const run::Run& config, int rank) {
  std::vector<int> numbers;
  if (config.device_numbers.empty()) return numbers;
  const pipeline::RankMap& map = config.pipeline.ranks;
  for (std::int32_t r = 0; r < map.replicas; ++r)
    for (std::int32_t d = 0; d < map.devices; ++d)
      if (map.rank_of(r, d) == rank)
        numbers.push_back(
            config.device_numbers.at(static_cast<std::size_t>(std::int64_t{r} * map.devices + d)));
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

int gpu_of(const run::Run& config, int rank) {
  const std::vector<int> numbers = device_numbers_of(config, rank);
  if (numbers.empty() || device::computes_on_cores()) return -1;
  if (numbers.size() > 1)
    fail(ErrorKind::Config,
         "`select-ipus`: rank {} was given GPUs {} and {}, but a process can use only one: start "
         "one rank per GPU with `ranks`",
         rank, numbers[0], numbers[1]);
  return numbers.front();
}

std::vector<std::string> describe_computing(const run::Run& config) {
  std::vector<std::string> lines = {fmt::format("Kernels: {}", device::describe_kernels())};
  const DType type = config.precision.activations;
  if (type != DType::F32) lines.push_back(ops::describe_products(type));
  return lines;
}

std::string config_file_text(const run::Run& config) {
  std::string text;
  for (const std::string& line : describe_computing(config)) text += fmt::format("# {}\n", line);
  return text + "\n" + run::to_toml(config);
}

}  // namespace millrace::training
