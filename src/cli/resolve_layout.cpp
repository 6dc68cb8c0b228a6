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
using train::TrainConfig;

partition::PlanRequest plan_request(const TrainConfig& config,
                                    const pipeline::ScheduleRequest& schedule) {
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

bool names_pipeline(const Options& options) {
  constexpr std::array kOfPipelines = {
      "pipeline-depth", "pipeline-splits", "pipeline-schedule", "pipeline-schedule-file",
      "plan",           "device-mapping"};
  return std::ranges::any_of(kOfPipelines,
                             [&](const char* name) { return options.find(name) != nullptr; });
}

namespace {

/// The plan in the file that --plan names. Errors: Io; Config when it is for another network.
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

std::vector<std::int32_t> device_mapping(Reader& read) {
  std::vector<std::int32_t> devices;
  if (!read.given("device-mapping")) return devices;
  for (const std::string& word : split_list(read.text("device-mapping"), ' ')) {
    const std::optional<std::int32_t> device = parse_number<std::int32_t>(word);
    if (!device || *device < 0)
      fail(ErrorKind::Usage, "{}: '{}' is not a device; devices are numbered from 0",
           read.where("device-mapping"), word);
    devices.push_back(*device);
  }
  return devices;
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
         "{} needs {} devices, but --shards is {}: give that number, or leave --shards out", origin,
         1 + *used.rbegin(), request.devices);
  for (std::int32_t d = 0; d < request.devices && !used.empty(); ++d)
    if (!used.contains(d))
      fail(ErrorKind::Usage,
           "{}: device {} of {} has no stage: number the devices without gaps, or lower --shards",
           origin, d, request.devices);
}

/// Whether shards divide memory, not time.
bool only_shards(const Reader& read, const TrainConfig& config) {
  return config.micro_batches == 1 || !names_pipeline(read.options());
}

partition::SplitRequest sharding(Reader& read) {
  partition::SplitRequest request{.aim = partition::SplitRequest::For::Memory};
  if (read.given("sharding-include-filter"))
    request.filter.include = split_list(read.text("sharding-include-filter"), ' ');
  if (read.given("sharding-exclude-filter"))
    request.filter.exclude = split_list(read.text("sharding-exclude-filter"), ' ');
  return request;
}

[[noreturn]] void refuse_missing_splits(const Graph& graph, const TrainConfig& config,
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
              fmt::format("{}\n--pipeline-splits auto would select: {}",
                          partition::cut_table(graph, costs, program.batch, program.type),
                          join(partition::choose_splits(graph, request,
                                                        {.memory_limit = config.device_memory}),
                               " ")));
}

/// The compute actions of --pipeline-schedule-file if given.
std::optional<pipeline::Schedule> schedule_in_file(Reader& read) {
  if (!read.given("pipeline-schedule-file")) return std::nullopt;
  constexpr std::uint64_t kMostBytes = 4 << 20;  // some 700,000 actions
  const std::string file = read.text("pipeline-schedule-file");
  return without_communication(pipeline::parse_schedule(io::read_text(file, kMostBytes), file));
}

/// The schedule that the options ask for, on the devices of `plan` or, without a plan, of the
/// schedule in the file, if given. Errors: Usage when the options contradict each other.
pipeline::ScheduleRequest schedule_request(Reader& read, const TrainConfig& config,
                                           const std::optional<partition::Plan>& plan,
                                           const std::optional<pipeline::Schedule>& listed) {
  pipeline::ScheduleRequest request;
  request.micro_batches = static_cast<std::int32_t>(config.micro_batches);
  request.devices = static_cast<std::int32_t>(read.integer("shards"));
  request.device_of = plan ? plan->device_of : device_mapping(read);
  const bool in_file = !plan && listed;
  if (in_file && request.device_of.empty()) request.device_of = listed->device_of;
  if (!request.device_of.empty() && !read.given("shards")) {
    request.devices = 1 + *std::max_element(request.device_of.begin(), request.device_of.end());
    read.note("shards", std::int64_t{request.devices});
  }
  check_mapping(request, plan                           ? "--plan"
                         : read.given("device-mapping") ? "--device-mapping"
                                                        : "--pipeline-schedule-file");
  if (plan && read.given("chunks"))
    fail(ErrorKind::Usage, "{} has no effect here: the plan sets the number of stages per device",
         read.where("chunks"));
  const bool pipelined = request.devices > 1 || request.device_of.size() > 1;
  // Without a pipeline, shards run one after another.
  const bool sharded = request.devices > 1 && only_shards(read, config);
  const std::string otherwise = plan ? plan->schedule : sharded ? "Sequential" : "Interleaved";
  std::string name = "Sequential";
  if (pipelined || read.given("pipeline-schedule"))
    name = read.text("pipeline-schedule", otherwise);
  const bool automatic = to_lower(name) == "auto";
  // Cuts are searched for as if it were 1F1B; the list is made for those that are found.
  const pipeline::ScheduleRule& rule = pipeline::schedule_rule(automatic ? "1F1B" : name);
  request.name = rule.name;
  const bool chunked = rule.placement != pipeline::StagePlacement::Free;
  if (chunked || read.given("chunks"))
    request.chunks = static_cast<std::int32_t>(read.integer("chunks", chunked ? 2 : 1));
  if (chunked && (plan || in_file)) {  // these schedules place their stages themselves
    request.chunks = static_cast<std::int32_t>(request.device_of.size()) / request.devices;
    request.device_of.clear();
  }
  if (automatic && request.chunks > 1 && request.device_of.empty()) {
    for (std::int32_t s = 0; s < request.devices * request.chunks; ++s)
      request.device_of.push_back(s % request.devices);
    request.chunks = 1;
  }
  if (read.given("pipeline-warmup")) {
    if (automatic || read.given("pipeline-schedule-file"))
      fail(ErrorKind::Usage,
           "{} has no effect here: it needs --pipeline-schedule 1F1B or Interleaved",
           read.where("pipeline-warmup"));
    request.extra_warmup = static_cast<std::int32_t>(read.integer("pipeline-warmup"));
  }
  return request;
}

/// Whether the options leave the schedule and the cuts open, so that they are chosen together.
bool chooses_schedule(Reader& read, const pipeline::ScheduleRequest& request) {
  const Options& options = read.options();
  const auto automatic = [&](const char* name) {
    return to_lower(options.text(name).value_or("")) == "auto";
  };
  return automatic("pipeline-schedule") && automatic("pipeline-splits") && request.devices > 1 &&
         request.device_of.empty() && !read.given("chunks") && !read.given("plan") &&
         !read.given("pipeline-schedule-file");
}

/// The fastest schedule, with its cuts. They are recorded, so that a restored run has the same.
pipeline::ScheduleRequest resolve_schedule(Reader& read, const Graph& graph, TrainConfig& config,
                                           const pipeline::ScheduleRequest& open,
                                           const partition::Room& room, Notices& notices) {
  const partition::ScheduleChoice choice =
      partition::fitting_schedule(graph, sized_request(graph, config, open), room);
  config.splits = choice.plan.splits;
  read.note("pipeline-schedule", choice.schedule.name);
  read.note("pipeline-splits", join(config.splits, " "));
  if (choice.schedule.chunks > 1) read.note("chunks", std::int64_t{choice.schedule.chunks});
  notices.push_back(schedule_notice(choice.schedule.name, config.splits));
  if (choice.schedule.name == partition::kAutomatic) return open;
  return choice.schedule;
}

/// One stage has no cuts. Errors: Usage for any that are named.
void require_no_splits(Reader& read, Notices& notices) {
  const std::string& where = read.where("pipeline-splits");
  read.use("pipeline-splits");
  const std::string splits = *read.options().text("pipeline-splits");
  if (const std::size_t n = split_list(splits, ' ').size(); splits != "auto")
    fail(ErrorKind::Usage,
         "{}: {} split(s) make {} stages, but there is one device: give --shards {}", where, n,
         n + 1, n + 1);
  notices.push_back(fmt::format("{} auto has no effect here: it needs --shards", where));
}

/// The cuts of a run: those given, or automatic ones for `auto` and for sharding without splits.
std::vector<std::string> resolve_splits(Reader& read, const Graph& graph, const TrainConfig& config,
                                        const pipeline::ScheduleRequest& schedule,
                                        const partition::Room& room, Notices& notices) {
  const std::int32_t stages = schedule.stages();
  std::vector<std::string> splits;
  const bool given = read.given("pipeline-splits");
  if (stages == 1) return splits;
  if (given) splits = split_list(read.text("pipeline-splits"), ' ');
  const bool automatic = splits == std::vector<std::string>{"auto"};
  const bool sharded = !given && only_shards(read, config) && schedule.chunks == 1;
  if (automatic || sharded) {
    const partition::PlanRequest request = sized_request(graph, config, schedule);
    splits = sharded ? partition::choose_splits(graph, request, sharding(read))
                     : partition::fitting_splits(graph, request, room);
    notices.push_back(sharded ? "Automatic sharding: " + join(splits, " ") : splits_notice(splits));
  }
  (void)partition::stages_of(graph, splits);  // reports a wrong name before a wrong number
  if (std::ssize(splits) != stages - 1) refuse_missing_splits(graph, config, schedule, splits);
  read.note("pipeline-splits", join(splits, " "));
  return splits;
}

/// The compute actions: those of `listed`, the schedule in the file, if given, otherwise generated.
pipeline::Schedule schedule_of(Reader& read, const Graph& graph, const TrainConfig& config,
                               const pipeline::ScheduleRequest& request,
                               const std::optional<partition::Plan>& plan,
                               const std::optional<pipeline::Schedule>& listed, Notices& notices) {
  const std::vector<pipeline::OpRange>& stages = config.pipeline.ranges;
  const auto name = read.effective().find("pipeline-schedule");
  const bool automatic =
      name != read.effective().end() && to_lower(std::get<std::string>(name->second)) == "auto";
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
         "and {}: change --shards, --device-mapping or --pipeline-depth",
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

/// What to do where --smoke leaves less to run than the processes that a launcher started.
std::string smoke_remedy(const Options& options) {
  if (!options.flag("smoke")) return "";
  return "; --smoke runs one replica in one process: start it without a launcher "
         "(mpirun -np 1), or leave --smoke out";
}

/// What gives something to do to all processes that a launcher started.
std::string replicas_remedy(const Options& options, const MachineFacts& machine,
                            const pipeline::RankMap& map) {
  if (options.flag("smoke")) return smoke_remedy(options);
  if (machine.ranks <= map.devices * map.replicas || machine.ranks % map.devices != 0) return "";
  return fmt::format(
      "; --replicas {} gives all of them work, as --distributed does for the "
      "workers in TF_CONFIG",
      machine.ranks / map.devices);
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
         "{} processes were started, but --ranks is {}: start that number, or leave --ranks out{}",
         machine.ranks, wanted, smoke_remedy(read.options()));
  if (wanted > devices || devices % wanted != 0)
    fail(ErrorKind::Config,
         "{} ranks cannot share {} device(s) ({} shards x {} replicas) evenly; possible numbers: "
         "{}{}",
         wanted, devices, map.devices, map.replicas, join(divisors(devices), ", "),
         replicas_remedy(read.options(), machine, map));
  map.ranks = static_cast<std::int32_t>(wanted);
  const int local = ranks_here(machine, config);
  config.threads = threads_of_rank(machine, local);
  read.apply("threads-per-device", config);
  note_turns(machine, config, local, notices);
}

/// Errors: Config for a layer of --recompute-layers that the network does not have.
void check_recomputed_layers(const Graph& graph, const TrainConfig& config) {
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
}

train::LayoutOrigin origin_of(const Reader& read, const Layout& layout) {
  train::LayoutOrigin origin{.cuts_chosen = !layout.notices.empty(),
                             .schedule_chosen = layout.schedule_chosen,
                             .placed_by = {}};
  for (const char* name : {"plan", "device-mapping", "chunks", "pipeline-schedule-file"})
    if (read.given(name)) origin.placed_by.push_back(fmt::format("--{}", name));
  return origin;
}

}  // namespace

Layout resolve_layout(Reader& read, const MachineFacts& machine, TrainConfig& config,
                      Notices& notices) {
  const Graph graph = train::network_of(config);
  config.device_memory = device_memory(read);
  check_recomputed_layers(graph, config);
  const std::optional<partition::Plan> plan = plan_given(read.options(), graph);
  const std::optional<pipeline::Schedule> listed = schedule_in_file(read);
  pipeline::ScheduleRequest request = schedule_request(read, config, plan, listed);
  pipeline::PipelinePlan& pipeline = config.pipeline;
  pipeline.ranks.devices = request.devices;
  resolve_ranks(read, machine, config, notices);  // sizes depend on the threads
  if (request.stages() == 1 && read.given("pipeline-splits")) require_no_splits(read, notices);
  Layout layout;
  layout.room = room_of_stages(read, graph, config, machine);
  layout.schedule_chosen = chooses_schedule(read, request);
  if (layout.schedule_chosen) {
    request = resolve_schedule(read, graph, config, request, layout.room, layout.notices);
  } else if (plan) {
    config.splits = plan->splits;
    read.note("pipeline-splits", join(config.splits, " "));
    read.note("device-mapping", join(plan->device_of, " "));
  } else {
    config.splits = resolve_splits(read, graph, config, request, layout.room, layout.notices);
  }
  pipeline.ranges = partition::stages_of(graph, config.splits);
  note_sharding_filters(read, pipeline.ranges.size(), notices);
  const std::vector<pipeline::Link> links = pipeline::links(graph, pipeline.ranges);
  pipeline.schedule =
      with_communication(schedule_of(read, graph, config, request, plan, listed, notices), links);
  pipeline::validate(pipeline.schedule, links);
  config.layout_origin = origin_of(read, layout);
  if (layout.room.repeats) choose_segments(graph, layout.room, config, layout.notices);
  read.apply("weight-check-every", config);
  resolve_devices(read, machine, config, notices);
  read.apply("hang-timeout", config);
  layout.plan = plan;
  layout.request = request;
  return layout;
}

}  // namespace millrace::cli
