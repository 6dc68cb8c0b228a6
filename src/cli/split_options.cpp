// SPDX-License-Identifier: Apache-2.0
#include "cli/split_options.hpp"

#include <fmt/format.h>

#include "cli/schedule_options.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "partition/balance.hpp"
#include "partition/cost.hpp"
#include "partition/cuts.hpp"

namespace millrace::cli {
namespace {

using models::Graph;
using train::TrainConfig;

std::vector<std::string> automatic_splits(Reader& read, const Graph& graph,
                                          const TrainConfig& config,
                                          const pipeline::ScheduleRequest& schedule) {
  return automatic_plan(graph, estimated_costs(graph, config), plan_request(config, schedule),
                        device_memory(read))
      .splits;
}

/// With one micro-batch, shards divide memory, not time.
std::vector<std::string> shard_splits(Reader& read, const Graph& graph, const TrainConfig& config,
                                      const pipeline::ScheduleRequest& schedule) {
  const partition::PlanRequest request = plan_request(config, schedule);
  const pipeline::ProgramOptions options{.batch = request.batch,
                                         .type = request.type,
                                         .recompute = request.recompute,
                                         .images = request.images,
                                         .mixing = request.mixing};
  const std::vector<pipeline::Slots> slots(static_cast<std::size_t>(schedule.devices));
  partition::LayerFilter filter;
  if (read.given("sharding-include-filter"))
    filter.include = split_list(read.text("sharding-include-filter", ""), ' ');
  if (read.given("sharding-exclude-filter"))
    filter.exclude = split_list(read.text("sharding-exclude-filter", ""), ' ');
  const auto memory = partition::exact_memory(graph, options, slots, request.update);
  return partition::splits_of(graph,
                              partition::shard_by_memory(graph, schedule.devices, filter, memory));
}

[[noreturn]] void refuse_missing_splits(Reader& read, const Graph& graph, const TrainConfig& config,
                                        const pipeline::ScheduleRequest& schedule,
                                        std::span<const std::string> given) {
  const DType type = config.precision.activations;
  const std::vector<partition::OpCost> costs = estimated_costs(graph, config);
  std::string message;
  try {
    partition::check_count(graph, given, schedule.stages());
  } catch (const Error& error) {
    message = error.what();
  }
  fail(ErrorKind::Usage, "{}\n{}\n--pipeline-splits auto would select: {}", message,
       partition::cut_table(graph, costs, config.batch_size, type),
       join(automatic_splits(read, graph, config, schedule), " "));
}

}  // namespace

partition::PlanRequest plan_request(const TrainConfig& config,
                                    const pipeline::ScheduleRequest& schedule) {
  partition::PlanRequest request;
  request.batch = config.batch_size;
  request.type = config.precision.activations;
  request.recompute = config.recompute == train::RecomputePolicy::Stage ? pipeline::Recompute::Stage
                                                                        : pipeline::Recompute::None;
  request.update = {config.optimiser.kind, config.precision,
                    config.optimiser.sharded ? config.pipeline.ranks.replicas : 1};
  request.images = config.data.image_type;
  request.mixing = config.data.mixing.on();
  request.schedule = schedule;
  request.cost_model = "analytic";
  return request;
}

std::vector<partition::OpCost> estimated_costs(const Graph& graph, const TrainConfig& config) {
  const DType type = config.precision.activations;
  return recomputing(
      graph, partition::analytic_costs(graph, config.batch_size, type, partition::cpu_model(type)),
      config.recompute_layers);
}

partition::Plan automatic_plan(const models::Graph& graph, std::span<const partition::OpCost> costs,
                               const partition::PlanRequest& request, std::int64_t memory_limit) {
  // Cuts inside blocks cost an extra pass over a value and send more data, so they must save time.
  // Very deep networks always have a boundary between layers close to the best cut.
  constexpr std::size_t kDeep = 400;
  constexpr double kWorth = 0.97;
  partition::Search search;
  search.memory_limit = memory_limit;
  const bool layers_suffice =
      request.schedule.stages() <= std::ssize(partition::layer_cuts(graph)) + 1;
  if (!layers_suffice) {
    search.cuts = partition::op_cuts(graph);
    return partition::best_plans(graph, costs, request, search).front();
  }
  partition::Plan plan = partition::best_plans(graph, costs, request, search).front();
  if (graph.ops.size() > kDeep) return plan;
  search.cuts = partition::op_cuts(graph);
  partition::Plan finer = partition::best_plans(graph, costs, request, search).front();
  return finer.seconds < kWorth * plan.seconds ? finer : plan;
}

std::optional<partition::Plan> plan_given(const Options& options, const Graph& graph) {
  constexpr std::uint64_t kMostBytes = 4 << 20;
  const std::optional<std::string> file = options.text("plan");
  if (!file) return std::nullopt;
  partition::Plan plan = partition::parse_plan(io::read_text(*file, kMostBytes), *file);
  if (plan.model != graph.name)
    fail(ErrorKind::Config, "{}: this is a plan for {}, but the run trains {}", *file, plan.model,
         graph.name);
  return plan;
}

std::int64_t device_memory(Reader& read) {
  if (!read.given("device-memory")) return 0;
  const std::string text = read.text("device-memory", "");
  const std::optional<std::int64_t> bytes = parse_bytes(text);
  if (!bytes)
    fail(ErrorKind::Usage, "{}: invalid size '{}'; examples: 512MiB, 8GB",
         read.options().find("device-memory")->where, text);
  return *bytes;
}

std::vector<std::string> resolve_splits(Reader& read, const Graph& graph, const TrainConfig& config,
                                        const pipeline::ScheduleRequest& schedule,
                                        std::vector<std::string>& notices) {
  const std::int32_t stages = schedule.stages();
  std::vector<std::string> splits;
  if (stages == 1 && !read.given("pipeline-splits")) return splits;
  const bool given = read.given("pipeline-splits");
  splits = given ? split_list(read.text("pipeline-splits", ""), ' ') : splits;
  const bool automatic = splits == std::vector<std::string>{"auto"};
  const bool sharded = !given && config.micro_batches == 1 && schedule.chunks == 1;
  if (automatic || sharded) {
    splits = sharded ? shard_splits(read, graph, config, schedule)
                     : automatic_splits(read, graph, config, schedule);
    notices.push_back(
        fmt::format("Automatic {}: {}", sharded ? "sharding" : "splits", join(splits, " ")));
  }
  (void)partition::stages_of(graph, splits);  // reports a wrong name before a wrong number
  if (std::ssize(splits) != stages - 1)
    refuse_missing_splits(read, graph, config, schedule, splits);
  read.note("pipeline-splits", join(splits, " "));
  return splits;
}

}  // namespace millrace::cli
