// SPDX-License-Identifier: Apache-2.0
//
// What the options say about stages, schedules and ranks. What they leave open is decided in
// partition/layout.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "partition/cuts.hpp"
#include "partition/layout.hpp"
#include "pipeline/messages.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "train/setup.hpp"

namespace millrace::cli {

using models::Graph;
using run::Run;

partition::PlanRequest plan_request(const Run& config, const pipeline::ScheduleRequest& schedule) {
  partition::PlanRequest request;
  request.program = train::training_program(config);
  request.update = {config.optimiser.kind, config.precision,
                    config.optimiser.sharded ? config.pipeline.ranks.replicas : 1};
  request.schedule = schedule;
  request.device = partition::cpu_model(request.program.type);
  request.link = partition::local_link();
  request.replicas = config.pipeline.ranks.replicas;
  request.segments = config.chosen_segments;
  request.cost_model = "analytic";
  return request;
}

namespace {

/// The plan in the file that was given. Errors: Io; Config when it is for another network.
std::optional<partition::Plan> plan_given(const Run& config, const Graph& graph) {
  constexpr std::uint64_t kMostBytes = 4 << 20;
  const std::string& file = config.layout.plan;
  if (file.empty()) return std::nullopt;
  partition::Plan plan = partition::parse_plan(io::read_text(file, kMostBytes), file);
  if (plan.model != graph.name)
    fail(ErrorKind::Config, "{}: this is a plan for {}, but the run trains {}", file, plan.model,
         graph.name);
  return plan;
}

/// Checks a mapping from the options or a plan: every device up to the highest must have a stage.
void check_mapping(const pipeline::ScheduleRequest& request, std::string_view origin) {
  constexpr std::int32_t kMostDevices = 4096;
  std::set<std::int32_t> used(request.device_of.begin(), request.device_of.end());
  if (!used.empty() && *used.rbegin() >= kMostDevices)
    fail(ErrorKind::Usage, "{}: device {} exceeds the maximum of {}", origin, *used.rbegin(),
         kMostDevices - 1);
  if (!used.empty() && *used.rbegin() >= request.devices)
    fail(ErrorKind::Usage,
         "{} needs {} devices, but `shards` is {}: give that number, or leave `shards` out", origin,
         1 + *used.rbegin(), request.devices);
  for (std::int32_t d = 0; d < request.devices && !used.empty(); ++d)
    if (!used.contains(d))
      fail(ErrorKind::Usage,
           "{}: device {} of {} has no stage: number the devices without gaps, or lower `shards`",
           origin, d, request.devices);
}

/// Whether shards divide memory, not time.
bool only_shards(const Run& config) {
  return config.micro_batches == 1 || !config.layout.pipelined;
}

[[noreturn]] void refuse_missing_splits(const Graph& graph, const Run& config,
                                        const pipeline::ScheduleRequest& schedule,
                                        std::span<const std::string> given) {
  const partition::PlanRequest request = plan_request(config, schedule);
  const pipeline::ProgramOptions& program = request.program;
  const std::vector<partition::OpCost> costs =
      partition::estimated_costs(graph, program, request.device);
  std::string message;
  try {
    partition::check_count(graph, given, schedule.stages());
  } catch (const Error& error) {
    message = error.what();
  }
  throw Error(ErrorKind::Usage, message,
              fmt::format("{}\n`pipeline-splits` auto would select: {}",
                          partition::cut_table(graph, costs, program.batch, program.type),
                          join(partition::choose_splits(graph, request,
                                                        {.memory_limit = config.device_memory}),
                               " ")));
}

/// The compute actions in the file of a schedule, if one was given.
std::optional<pipeline::Schedule> schedule_in_file(const Run& config) {
  const std::string& file = config.layout.schedule_file;
  if (file.empty()) return std::nullopt;
  constexpr std::uint64_t kMostBytes = 4 << 20;  // some 700,000 actions
  return without_communication(pipeline::parse_schedule(io::read_text(file, kMostBytes), file));
}

/// The devices of the pipeline, and those of its stages as far as they are told.
void request_devices(const Run& config, const std::optional<partition::Plan>& plan,
                     const std::optional<pipeline::Schedule>& listed,
                     pipeline::ScheduleRequest& request) {
  const run::LayoutRequest& asked = config.layout;
  request.devices = asked.shards.value_or(1);
  request.device_of = plan ? plan->device_of : asked.device_of;
  if (!plan && listed && request.device_of.empty()) request.device_of = listed->device_of;
  if (!request.device_of.empty() && !asked.shards)
    request.devices = 1 + *std::max_element(request.device_of.begin(), request.device_of.end());
  check_mapping(request, plan                      ? "`plan`"
                         : asked.device_of.empty() ? "`pipeline-schedule-file`"
                                                   : "`device-mapping`");
  if (plan && asked.chunks)
    fail(ErrorKind::Usage, "{} has no effect here: the plan sets the number of stages per device",
         "`chunks`");
}

/// The name of the schedule that is asked for, or of the one that the layout has without.
std::string schedule_name(const Run& config, const std::optional<partition::Plan>& plan,
                          const pipeline::ScheduleRequest& request) {
  const bool pipelined = request.devices > 1 || request.device_of.size() > 1;
  // Without a pipeline, shards run one after another.
  const bool sharded = !pipelined || (request.devices > 1 && only_shards(config));
  return config.layout.schedule.value_or(!pipelined ? "Sequential"
                                         : plan     ? plan->schedule
                                         : sharded  ? "Sequential"
                                                    : "Interleaved");
}

/// The schedule that the options ask for, on the devices of `plan` or, without a plan, of the
/// schedule in the file, if given. Errors: Usage when the options contradict each other.
pipeline::ScheduleRequest schedule_request(Run& config, const std::optional<partition::Plan>& plan,
                                           const std::optional<pipeline::Schedule>& listed) {
  run::LayoutRequest& asked = config.layout;
  pipeline::ScheduleRequest request;
  request.micro_batches = static_cast<std::int32_t>(config.micro_batches);
  request_devices(config, plan, listed, request);
  asked.shards = request.devices;
  const std::string name = schedule_name(config, plan, request);
  if (request.devices > 1 || request.device_of.size() > 1) asked.schedule = name;
  const bool automatic = to_lower(name) == "auto";
  // Cuts are searched for as if it were 1F1B; the list is made for those that are found.
  const pipeline::ScheduleRule& rule = pipeline::schedule_rule(automatic ? "1F1B" : name);
  request.name = rule.name;
  const bool chunked = rule.placement != pipeline::StagePlacement::Free;
  if (chunked && !asked.chunks) asked.chunks = 2;
  request.chunks = asked.chunks.value_or(1);
  if (chunked && (plan || listed)) {  // these schedules place their stages themselves
    request.chunks = static_cast<std::int32_t>(request.device_of.size()) / request.devices;
    request.device_of.clear();
  }
  if (automatic && request.chunks > 1 && request.device_of.empty()) {
    for (std::int32_t s = 0; s < request.devices * request.chunks; ++s)
      request.device_of.push_back(s % request.devices);
    request.chunks = 1;
  }
  if (asked.extra_warmup) {
    if (automatic || listed)
      fail(ErrorKind::Usage,
           "{} has no effect here: it needs `pipeline-schedule` 1F1B or Interleaved",
           "`pipeline-warmup`");
    request.extra_warmup = *asked.extra_warmup;
  }
  return request;
}

/// Whether the schedule and the cuts are open, so that they are chosen together.
bool chooses_schedule(const run::LayoutRequest& asked, const pipeline::ScheduleRequest& request) {
  return opens_schedule(asked) && opens_cuts(asked) && request.devices > 1 &&
         request.device_of.empty() && !asked.chunks && asked.plan.empty() &&
         asked.schedule_file.empty();
}

/// The fastest schedule, with its cuts. They are recorded, so that a restored run has the same.
pipeline::ScheduleRequest resolve_schedule(const Graph& graph, Run& config,
                                           const pipeline::ScheduleRequest& open,
                                           const partition::Room& room, Notices& notices) {
  const partition::ScheduleChoice choice =
      partition::fitting_schedule(graph, sized_request(graph, config, open), room);
  config.splits = choice.plan.splits;
  config.layout.schedule = choice.schedule.name;
  if (choice.schedule.chunks > 1) config.layout.chunks = choice.schedule.chunks;
  notices.push_back(schedule_notice(choice.schedule.name, config.splits));
  if (choice.schedule.name == partition::kAutomatic) return open;
  return choice.schedule;
}

/// One stage has no cuts. Errors: Usage for any that are named.
void require_no_splits(run::LayoutRequest& asked, Notices& notices) {
  if (asked.splits.empty()) return;
  const std::size_t n = asked.splits.size();
  if (!opens_cuts(asked))
    fail(ErrorKind::Usage,
         "`pipeline-splits`: {} split(s) make {} stages, but there is one device: give `shards` {}",
         n, n + 1, n + 1);
  notices.emplace_back("`pipeline-splits` auto has no effect here: it needs `shards`");
  asked.splits.clear();
}

/// The cuts of a run: those given, or automatic ones for `auto` and for sharding without splits.
std::vector<std::string> resolve_splits(const Graph& graph, Run& config,
                                        const pipeline::ScheduleRequest& schedule,
                                        const partition::Room& room, Notices& notices) {
  run::LayoutRequest& asked = config.layout;
  const std::int32_t stages = schedule.stages();
  std::vector<std::string> splits = asked.splits;
  asked.cut_by_memory = false;
  if (stages == 1) return splits;
  asked.cut_by_memory = splits.empty() && only_shards(config) && schedule.chunks == 1;
  if (asked.cut_by_memory) {
    splits = partition::choose_splits(
        graph, sized_request(graph, config, schedule),
        {.aim = partition::SplitRequest::For::Memory, .filter = {asked.include, asked.exclude}});
    notices.push_back("Automatic sharding: " + join(splits, " "));
  } else if (opens_cuts(asked)) {
    splits = partition::fitting_splits(graph, sized_request(graph, config, schedule), room);
    notices.push_back(splits_notice(splits));
  }
  (void)partition::stages_of(graph, splits);  // reports a wrong name before a wrong number
  if (std::ssize(splits) != stages - 1) refuse_missing_splits(graph, config, schedule, splits);
  return splits;
}

/// The compute actions: those of `listed`, the schedule in the file, if given, otherwise generated.
pipeline::Schedule schedule_of(const Graph& graph, const Run& config,
                               const pipeline::ScheduleRequest& request,
                               const std::optional<partition::Plan>& plan,
                               const std::optional<pipeline::Schedule>& listed, Notices& notices) {
  const std::vector<pipeline::OpRange>& stages = config.pipeline.ranges;
  const bool automatic = opens_schedule(config.layout);
  if (automatic && !listed && request.stages() > 1) {
    const partition::PlanRequest planned = plan_request(config, request);
    return partition::automatic_schedule(
        graph, stages,
        plan ? partition::step_costs(graph, stages, plan->costs, planned)
             : partition::estimated_step(graph, stages, planned),
        request);
  }
  if (!listed) return pipeline::generate(request);
  pipeline::Schedule schedule = *listed;
  if (pipeline::number_in_order(schedule))
    notices.push_back(
        fmt::format("{}: its micro-batches are taken in ascending order, as "
                    "gradients add up in that order",
                    schedule.name));
  if (schedule.stages != request.stages() || schedule.micro_batches != request.micro_batches ||
      schedule.devices() != request.devices)
    fail(ErrorKind::Config,
         "{}: the schedule has {} devices, {} stages and {} micro-batches, but the run has {}, {} "
         "and {}: change `shards`, `device-mapping` or `pipeline-depth`",
         schedule.name, schedule.devices(), schedule.stages, schedule.micro_batches,
         request.devices, request.stages(), request.micro_batches);
  return schedule;
}

/// The numbers of ranks among which `devices` can be divided evenly.
std::vector<std::int32_t> divisors(std::int32_t devices) {
  std::vector<std::int32_t> result;
  for (std::int32_t d = 1; d <= devices; ++d)
    if (devices % d == 0) result.push_back(d);
  return result;
}

/// What gives something to do to all processes that a launcher started.
std::string replicas_remedy(const MachineFacts& machine, const pipeline::RankMap& map) {
  if (machine.ranks <= map.devices * map.replicas || machine.ranks % map.devices != 0) return "";
  return fmt::format(
      "; `replicas` {} gives all of them work, as `distributed` does for the workers in TF_CONFIG",
      machine.ranks / map.devices);
}

void resolve_ranks(const MachineFacts& machine, Run& config, Notices& notices) {
  pipeline::RankMap& map = config.pipeline.ranks;
  const std::int32_t devices = map.devices * map.replicas;
  // Recorded only when given: a restored run may have another number of processes.
  const std::int64_t wanted =
      config.layout.ranks.value_or(machine.ranks > 0 ? machine.ranks : devices);
  if (machine.ranks > 0 && wanted != machine.ranks)
    fail(ErrorKind::Config,
         "{} processes were started, but `ranks` is {}: start that number, or leave `ranks` out",
         machine.ranks, wanted);
  if (wanted > devices || devices % wanted != 0)
    fail(ErrorKind::Config,
         "{} ranks cannot share {} device(s) ({} shards x {} replicas) evenly; possible numbers: "
         "{}{}",
         wanted, devices, map.devices, map.replicas, join(divisors(devices), ", "),
         replicas_remedy(machine, map));
  map.ranks = static_cast<std::int32_t>(wanted);
  const int local = ranks_here(machine, config);
  config.threads = config.layout.threads.value_or(threads_of_rank(machine, local));
  note_turns(machine, config, local, notices);
}

/// Errors: Config for a layer of `recompute-layers` that the network does not have.
void check_recomputed_layers(const Graph& graph, const Run& config) {
  for (const std::string& name : config.recompute_layers) {
    const bool known =
        std::any_of(graph.layers.begin(), graph.layers.end(), [&](const models::Layer& layer) {
          return pipeline::names_layer({&name, 1}, layer.name);
        });
    if (!known)
      fail(ErrorKind::Config,
           "`recompute-layers`: {} has no layer {}; layers have the same names as splits",
           graph.name, name);
  }
}

/// What a proposal of another layout has to know of this one.
run::LayoutOrigin origin_of(const Layout& layout) {
  const run::LayoutRequest& asked = layout.asked;
  run::LayoutOrigin origin{.cuts_chosen = !layout.notices.empty(),
                           .schedule_chosen = layout.schedule_chosen,
                           .placed_by = {}};
  if (!asked.plan.empty()) origin.placed_by.emplace_back("`plan`");
  if (!asked.device_of.empty()) origin.placed_by.emplace_back("`device-mapping`");
  if (asked.chunks) origin.placed_by.emplace_back("`chunks`");
  if (!asked.schedule_file.empty()) origin.placed_by.emplace_back("`pipeline-schedule-file`");
  return origin;
}

pipeline::Recompute recompute_of(const Run& config) {
  const run::LayoutRequest& asked = config.layout;
  if (!config.recompute_layers.empty()) return pipeline::Recompute::Layers;
  // What Auto repeats is chosen once the stages are known.
  const bool stages = asked.recompute == run::RecomputeRequest::Segments || asked.recomputes_stages;
  return stages ? pipeline::Recompute::Stage : pipeline::Recompute::None;
}

}  // namespace

Layout resolve_layout(const MachineFacts& machine, Run& config, Notices& notices) {
  const Graph graph = train::network_of(config);
  Layout layout;
  layout.asked = config.layout;
  config.device_memory = device_memory(layout.asked.device_memory);
  config.recompute = recompute_of(config);
  config.chosen_segments.clear();
  check_recomputed_layers(graph, config);
  const std::optional<partition::Plan> plan = plan_given(config, graph);
  const std::optional<pipeline::Schedule> listed = schedule_in_file(config);
  pipeline::ScheduleRequest request = schedule_request(config, plan, listed);
  pipeline::PipelinePlan& pipeline = config.pipeline;
  pipeline.ranks.devices = request.devices;
  resolve_ranks(machine, config, notices);  // sizes depend on the threads
  if (request.stages() == 1) require_no_splits(config.layout, notices);
  layout.room = room_of_stages(graph, config, machine);
  layout.schedule_chosen = chooses_schedule(config.layout, request);
  if (layout.schedule_chosen) {
    request = resolve_schedule(graph, config, request, layout.room, layout.notices);
  } else if (plan) {
    config.splits = plan->splits;
    config.layout.device_of = plan->device_of;
  } else {
    config.splits = resolve_splits(graph, config, request, layout.room, layout.notices);
  }
  config.layout.splits = config.splits;
  config.layout.threads = config.threads;
  config.layout.pipelined = config.layout.pipelined || !config.splits.empty();
  pipeline.ranges = partition::stages_of(graph, config.splits);
  note_sharding_filters(config, notices);
  const std::vector<pipeline::Link> links = pipeline::links(graph, pipeline.ranges);
  pipeline.schedule =
      with_communication(schedule_of(graph, config, request, plan, listed, notices), links);
  pipeline::validate(pipeline.schedule, links);
  config.layout_origin = origin_of(layout);
  if (layout.room.repeats) choose_segments(graph, layout.room, config, layout.notices);
  run::complete_devices(machine, config, notices);
  layout.request = request;
  return layout;
}

}  // namespace millrace::cli
