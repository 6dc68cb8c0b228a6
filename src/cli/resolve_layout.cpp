// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/layout_options.hpp"
#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/cuts.hpp"
#include "partition/plan.hpp"
#include "pipeline/messages.hpp"
#include "pipeline/schedule.hpp"
#include "train/setup.hpp"

namespace millrace::cli {
namespace {

using models::Graph;
using train::TrainConfig;

/// The numbers of ranks among which `devices` can be divided evenly.
std::vector<std::int32_t> divisors(std::int32_t devices) {
  std::vector<std::int32_t> result;
  for (std::int32_t d = 1; d <= devices; ++d)
    if (devices % d == 0) result.push_back(d);
  return result;
}

void resolve_ranks(Reader& read, const MachineFacts& machine, TrainConfig& config,
                   Notices& notices) {
  pipeline::RankMap& map = config.pipeline.ranks;
  const std::int32_t devices = map.devices * map.replicas;
  // Recorded only when given: a restored run may have another number of processes.
  const std::int64_t wanted = read.given("ranks") ? read.integer("ranks", devices)
                              : machine.ranks > 0 ? machine.ranks
                                                  : devices;
  if (machine.ranks > 0 && wanted != machine.ranks)
    fail(ErrorKind::Config,
         "{} processes were started, but --ranks is {}: start that number, or leave --ranks out",
         machine.ranks, wanted);
  if (wanted > devices || devices % wanted != 0)
    fail(
        ErrorKind::Config,
        "{} ranks cannot share {} device(s) ({} shards x {} replicas) evenly; possible numbers: {}",
        wanted, devices, map.devices, map.replicas, join(divisors(devices), ", "));
  map.ranks = static_cast<std::int32_t>(wanted);
  const int local = ranks_here(machine, config);
  config.threads = threads_of_rank(machine, local);
  read.apply("threads-per-device", config);
  if (local > machine.cores)
    notices.push_back(fmt::format("{} ranks share the {} cores of this machine and take turns",
                                  local, machine.cores));
}

/// Options for starting ranks do not affect the run itself.
void note_launching(Reader& read) {
  for (const char* name : {"hosts", "ssh-port", "interface", "distributed"})
    if (read.given(name)) read.use(name);
}

/// The IPU trainer ignores these filters in a pipeline, and its command lines contain them there.
void note_sharding_filters(Reader& read, std::size_t stages, Notices& notices) {
  for (const char* name : {"sharding-include-filter", "sharding-exclude-filter"}) {
    if (stages < 2 || !read.given(name) || read.used(name)) continue;
    read.use(name);
    notices.push_back(
        fmt::format("{} has no effect here: it is for automatic sharding with one micro-batch; a "
                    "pipeline is cut at --pipeline-splits or by --plan",
                    read.options().find(name)->where));
  }
}

}  // namespace

void resolve_layout(Reader& read, const MachineFacts& machine, TrainConfig& config,
                    Notices& notices) {
  const Graph graph = train::network_of(config);
  for (const std::string& name : config.recompute_layers) {
    const bool known =
        std::any_of(graph.layers.begin(), graph.layers.end(), [&](const models::Layer& layer) {
          return pipeline::names_layer({&name, 1}, layer.name);
        });
    if (!known)
      fail(ErrorKind::Config,
           "--recompute-layers: {} has no layer {}; layers have the same names as splits",
           graph.name, name);
  }
  const std::optional<partition::Plan> plan = plan_given(read.options(), graph);
  const partition::Plan* const planned = plan ? &*plan : nullptr;
  const std::optional<pipeline::Schedule> file = schedule_in_file(read);
  const pipeline::Schedule* const listed = file ? &*file : nullptr;
  const pipeline::ScheduleRequest request = schedule_request(read, config, planned, listed);
  pipeline::PipelinePlan& pipeline = config.pipeline;
  if (plan) {
    config.splits = plan->splits;
    read.note("pipeline-splits", join(config.splits, " "));
    read.note("device-mapping", join(plan->device_of, " "));
  } else {
    config.splits = resolve_splits(read, graph, config, request, notices);
  }
  pipeline.ranges = partition::stages_of(graph, config.splits);
  note_sharding_filters(read, pipeline.ranges.size(), notices);
  pipeline.ranks.devices = request.devices;
  const std::vector<pipeline::Link> links = pipeline::links(graph, pipeline.ranges);
  pipeline.schedule = with_communication(
      schedule_of(read, graph, config, request, planned, listed, notices), links);
  pipeline::validate(pipeline.schedule, links);
  resolve_ranks(read, machine, config, notices);
  read.apply("weight-check-every", config);
  resolve_devices(read, machine, config, notices);
  note_launching(read);
  read.apply("hang-timeout", config);
}

Options relaid(const Options& given, const Options& recorded, Options merged) {
  const auto depth_of = [](const Options& o) {
    return o.integer("pipeline-depth").value_or(o.integer("gradients-to-accumulate").value_or(1));
  };
  const auto replicas_of = [](const Options& o) { return o.integer("replicas").value_or(1); };
  const std::int64_t before = depth_of(recorded) * replicas_of(recorded);
  const bool depth_given =
      given.find("pipeline-depth") != nullptr || given.find("gradients-to-accumulate") != nullptr;
  if (!depth_given && before % replicas_of(merged) == 0) {
    merged.erase("pipeline-depth");
    merged.set(*find_option("gradients-to-accumulate"), {.value = before / replicas_of(merged),
                                                         .origin = Origin::File,
                                                         .where = "--gradients-to-accumulate"});
  }
  const std::int64_t now = depth_of(merged) * replicas_of(merged);
  if (now != before)
    fail(ErrorKind::Usage,
         "{} micro-batches x {} replicas would change the total batch of the run, which started "
         "with {} x {}: keep the product at {}",
         depth_of(merged), replicas_of(merged), depth_of(recorded), replicas_of(recorded), before);
  // A different number of stages needs new cuts.
  const auto relays = [&](std::string_view name) { return given.find(name) != nullptr; };
  const bool other_stages = relays("shards") || relays("chunks") || relays("device-mapping") ||
                            relays("pipeline-schedule") || relays("plan");
  if (!relays("ranks") && (other_stages || relays("replicas"))) merged.erase("ranks");
  if (!other_stages) return merged;
  if (!relays("device-mapping")) merged.erase("device-mapping");
  if (!relays("chunks")) merged.erase("chunks");
  if (!relays("shards") && (relays("device-mapping") || relays("plan"))) merged.erase("shards");
  if (!relays("pipeline-warmup")) merged.erase("pipeline-warmup");
  if (!relays("pipeline-schedule")) merged.erase("pipeline-schedule");
  if (!relays("pipeline-splits")) {
    merged.erase("pipeline-splits");
    if (merged.integer("shards").value_or(1) > 1 || relays("device-mapping") || relays("chunks"))
      merged.set(
          *find_option("pipeline-splits"),
          {.value = std::string("auto"), .origin = Origin::File, .where = "--pipeline-splits"});
  }
  return merged;
}

}  // namespace millrace::cli
