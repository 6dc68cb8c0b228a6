// SPDX-License-Identifier: Apache-2.0
#include "cli/resolve_layout.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "models/registry.hpp"
#include "partition/balance.hpp"
#include "partition/cost.hpp"
#include "partition/cuts.hpp"
#include "partition/plan.hpp"
#include "pipeline/auto_schedule.hpp"
#include "pipeline/channels.hpp"
#include "pipeline/schedule.hpp"

namespace millrace::cli {
namespace {

using models::Graph;
using pipeline::OpRange;
using pipeline::ScheduleKind;
using train::TrainConfig;

std::string read_text(const std::string& file) {
  constexpr std::uint64_t kMaxText = 1 << 28;
  const std::vector<std::byte> bytes = io::read_file(file, kMaxText);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::int32_t> device_mapping(Reader& read) {
  std::vector<std::int32_t> devices;
  if (!read.given("device-mapping")) return devices;
  for (const std::string& word : split_list(read.text("device-mapping", ""), ' ')) {
    std::int32_t device = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), device);
    if (error != std::errc{} || end != word.data() + word.size() || device < 0)
      fail(ErrorKind::Usage, "{}: '{}' is no device: devices are numbers from 0",
           read.options().find("device-mapping")->where, word);
    devices.push_back(device);
  }
  return devices;
}

std::int32_t stages_in(const pipeline::ScheduleRequest& request) {
  if (!request.device_of.empty()) return static_cast<std::int32_t>(request.device_of.size());
  return request.devices * request.chunks;
}

std::vector<std::string> automatic_splits(Reader& read, const Graph& graph,
                                          const TrainConfig& config,
                                          const pipeline::ScheduleRequest& schedule) {
  const DType type = config.precision.activations;
  const auto costs =
      partition::analytic_costs(graph, config.batch_size, type, partition::cpu_model(type));
  return automatic_plan(graph, costs, plan_request(config, schedule), device_memory(read)).splits;
}

/// Shards of a run with one micro-batch share memory, not time.
std::vector<std::string> shard_splits(Reader& read, const Graph& graph, const TrainConfig& config,
                                      const pipeline::ScheduleRequest& schedule) {
  const partition::PlanRequest request = plan_request(config, schedule);
  const pipeline::ProgramOptions options{
      .batch = request.batch, .type = request.type, .recompute = request.recompute};
  const std::vector<pipeline::Slots> slots(static_cast<std::size_t>(schedule.devices));
  partition::LayerFilter filter;
  if (read.given("sharding-include-filter"))
    filter.include = split_list(read.text("sharding-include-filter", ""), ' ');
  if (read.given("sharding-exclude-filter"))
    filter.exclude = split_list(read.text("sharding-exclude-filter", ""), ' ');
  const auto memory = partition::exact_memory(graph, options, slots, request.velocity);
  return partition::splits_of(graph,
                              partition::shard_by_memory(graph, schedule.devices, filter, memory));
}

[[noreturn]] void refuse_missing_splits(Reader& read, const Graph& graph, const TrainConfig& config,
                                        const pipeline::ScheduleRequest& schedule,
                                        std::span<const std::string> given) {
  const DType type = config.precision.activations;
  const auto costs =
      partition::analytic_costs(graph, config.batch_size, type, partition::cpu_model(type));
  std::string message;
  try {
    partition::check_count(graph, given, stages_in(schedule));
  } catch (const Error& error) {
    message = error.what();
  }
  fail(ErrorKind::Usage, "{}\n{}\n--pipeline-splits auto would take: {}", message,
       partition::cut_table(graph, costs, config.batch_size, type),
       fmt::join(automatic_splits(read, graph, config, schedule), " "));
}

std::vector<std::string> resolve_splits(Reader& read, const Graph& graph, const TrainConfig& config,
                                        const pipeline::ScheduleRequest& schedule,
                                        std::vector<std::string>& notices) {
  const std::int32_t stages = stages_in(schedule);
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
        fmt::format("Automatic {}: {}", sharded ? "sharding" : "splits", fmt::join(splits, " ")));
  }
  if (std::ssize(splits) != stages - 1)
    refuse_missing_splits(read, graph, config, schedule, splits);
  read.note("pipeline-splits", fmt::format("{}", fmt::join(splits, " ")));
  return splits;
}

/// The schedule that the costs of these very stages ask for.
pipeline::Schedule automatic_schedule(const Graph& graph, const TrainConfig& config,
                                      const pipeline::ScheduleRequest& request,
                                      std::span<const OpRange> ranges) {
  const DType type = config.precision.activations;
  const auto costs =
      partition::analytic_costs(graph, config.batch_size, type, partition::cpu_model(type));
  const partition::PlanRequest plan = plan_request(config, request);
  pipeline::AutoRequest automatic;
  for (const OpRange& range : ranges)
    automatic.costs.stages.push_back(partition::stage_cost(costs, range, plan.recompute));
  automatic.micro_batches = request.micro_batches;
  automatic.device_of = request.device_of;
  automatic.links = pipeline::links(pipeline::channels(graph, ranges));
  // As much memory as Grouped takes.
  const auto stages = static_cast<std::int32_t>(ranges.size());
  for (std::int32_t s = 0; s < stages; ++s) automatic.stash_limit.push_back(2 * (stages - s));
  return pipeline::generate_auto(automatic);
}

pipeline::Schedule schedule_of(Reader& read, const Graph& graph, const TrainConfig& config,
                               const pipeline::ScheduleRequest& request,
                               std::span<const OpRange> ranges) {
  if (read.options().text("pipeline-schedule") == "auto" && stages_in(request) > 1)
    return automatic_schedule(graph, config, request, ranges);
  if (!read.given("pipeline-schedule-file")) return pipeline::generate(request);
  const std::string file = read.text("pipeline-schedule-file", "");
  pipeline::Schedule schedule = pipeline::parse_schedule(read_text(file), file);
  if (schedule.stages != stages_in(request) || schedule.micro_batches != request.micro_batches ||
      schedule.devices() != request.devices)
    fail(ErrorKind::Config,
         "{}: is for {} devices, {} stages and {} micro-batches, this run has {}, {} and {}: "
         "change --shards, --device-mapping or --pipeline-depth",
         file, schedule.devices(), schedule.stages, schedule.micro_batches, request.devices,
         stages_in(request), request.micro_batches);
  return schedule;
}

/// The numbers of ranks that `devices` can be dealt out to evenly.
std::vector<std::int32_t> divisors(std::int32_t devices) {
  std::vector<std::int32_t> result;
  for (std::int32_t d = 1; d <= devices; ++d)
    if (devices % d == 0) result.push_back(d);
  return result;
}

void resolve_ranks(Reader& read, const MachineFacts& machine, TrainConfig& config,
                   std::vector<std::string>& notices) {
  pipeline::RankMap& map = config.pipeline.ranks;
  const std::int32_t devices = map.devices * map.replicas;
  // Given only: another start of the same run may have other processes.
  const std::int64_t wanted = read.given("ranks") ? read.integer("ranks", devices)
                              : machine.ranks > 0 ? machine.ranks
                                                  : devices;
  if (machine.ranks > 0 && wanted != machine.ranks)
    fail(ErrorKind::Config,
         "{} processes were started, but --ranks says {}: start as many as it says, or leave it "
         "out",
         machine.ranks, wanted);
  if (wanted > devices || devices % wanted != 0)
    fail(ErrorKind::Config,
         "{} ranks cannot share {} device(s) ({} shards x {} replicas) evenly: possible are {}",
         wanted, devices, map.devices, map.replicas, fmt::join(divisors(devices), ", "));
  map.ranks = static_cast<std::int32_t>(wanted);
  const int local = std::max(1, machine.ranks > 0 ? machine.local_ranks : map.ranks);
  config.threads =
      static_cast<int>(read.integer("threads-per-device", std::max(1, machine.cores / local)));
  if (local > machine.cores)
    notices.push_back(fmt::format("{} ranks share the {} cores of this machine: they take turns",
                                  local, machine.cores));
}

/// Options that recipes carry along and that nothing here depends on: said once, never refused.
void note_without_effect(Reader& read, std::vector<std::string>& notices) {
  for (const char* name :
       {"available-memory-proportion", "batches-per-step", "no-stochastic-rounding"}) {
    if (!read.given(name)) continue;
    const OptionSpec& spec = *find_option(name);
    const std::string help(spec.help);
    notices.push_back(fmt::format("{} {}", read.options().find(name)->where,
                                  help.substr(help.find("has no effect"))));
    read.note(name, read.options().find(name)->value);
  }
}

/// How ranks get started has no part in the run itself.
void note_launching(Reader& read) {
  for (const char* name : {"hosts", "ssh-port", "interface", "distributed"})
    if (read.given(name)) read.use(name);
}

constexpr std::string_view kTraceInRun = "trace.json";

void resolve_trace(const Options& options, TrainConfig& config) {
  std::optional<std::string> file = options.text("trace");
  // A name alone lies in the run directory, which nobody knows yet.
  if (!file && options.text("gc-profile")) file = std::string(kTraceInRun);
  const std::optional<std::string> steps = options.text("profile-steps");
  if (!file) {
    if (steps)
      fail(ErrorKind::Usage,
           "--profile-steps has no effect here: it needs --trace FILE or --gc-profile");
    return;
  }
  config.trace = *file;
  config.trace_first = 1;
  config.trace_last = 10;
  if (!steps) return;
  const std::vector<std::string> pieces = split_list(*steps);
  const auto number = [&](const std::string& text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc{} && end == text.data() + text.size();
    return whole ? value : 0;
  };
  const bool two = pieces.size() == 2;
  config.trace_first = two ? number(pieces[0]) : 0;
  config.trace_last = two ? number(pieces[1]) : 0;
  if (config.trace_first < 1 || config.trace_last < config.trace_first)
    fail(ErrorKind::Usage,
         "--profile-steps: '{}' is not the first and the last weight update of a trace, as in 5,8",
         *steps);
}

}  // namespace

/// What the options say of stages and schedule, with the defaults filled in.
pipeline::ScheduleRequest schedule_request(Reader& read, const TrainConfig& config,
                                           const partition::Plan* plan) {
  pipeline::ScheduleRequest request;
  request.micro_batches = static_cast<std::int32_t>(config.micro_batches);
  request.devices = static_cast<std::int32_t>(read.integer("shards", 1));
  request.device_of = plan != nullptr ? plan->device_of : device_mapping(read);
  if (!request.device_of.empty() && !read.given("shards"))
    request.devices = 1 + *std::max_element(request.device_of.begin(), request.device_of.end());
  const bool pipelined = request.devices > 1 || request.device_of.size() > 1;
  // Without a pipeline, shards run one after the other.
  const bool sharded = request.devices > 1 && config.micro_batches == 1;
  std::string_view kind = sharded ? "Sequential" : "Interleaved";
  if (plan != nullptr) kind = plan->schedule;
  if (pipelined || read.given("pipeline-schedule")) {
    const std::string name = read.text("pipeline-schedule", kind);
    // Cuts are searched for as if it were 1F1B; the list is made for those that are found.
    request.kind = name == "auto" || name == "Auto" ? ScheduleKind::OneFOneB
                                                    : pipeline::parse_schedule_kind(name);
  } else
    request.kind = ScheduleKind::Sequential;
  const bool chunked = request.kind == ScheduleKind::Looped || request.kind == ScheduleKind::ZbV;
  if (chunked || read.given("chunks"))
    request.chunks = static_cast<std::int32_t>(read.integer("chunks", chunked ? 2 : 1));
  if (read.given("pipeline-warmup"))
    request.extra_warmup = static_cast<std::int32_t>(read.integer("pipeline-warmup", 0));
  return request;
}

partition::PlanRequest plan_request(const TrainConfig& config,
                                    const pipeline::ScheduleRequest& schedule) {
  partition::PlanRequest request;
  request.batch = config.batch_size;
  request.type = config.precision.activations;
  request.recompute = config.recompute == train::RecomputePolicy::Stage ? pipeline::Recompute::Stage
                                                                        : pipeline::Recompute::None;
  request.velocity = config.optimiser.kind == train::OptimiserKind::Momentum
                         ? partition::Velocity::Momentum
                         : partition::Velocity::None;
  request.schedule = schedule;
  request.cost_model = "analytic";
  return request;
}

partition::Plan automatic_plan(const models::Graph& graph, std::span<const partition::OpCost> costs,
                               const partition::PlanRequest& request, std::int64_t memory_limit) {
  // Cuts inside blocks cost an extra pass over a value and send more: they must be worth it. In
  // very deep networks there is always a boundary between layers near enough.
  constexpr std::size_t kDeep = 400;
  constexpr double kWorth = 0.97;
  partition::Search search;
  search.memory_limit = memory_limit;
  partition::Plan plan = partition::best_plans(graph, costs, request, search).front();
  if (graph.ops.size() > kDeep) return plan;
  search.cuts = partition::op_cuts(graph);
  partition::Plan finer = partition::best_plans(graph, costs, request, search).front();
  return finer.seconds < kWorth * plan.seconds ? finer : plan;
}

std::int64_t device_memory(Reader& read) {
  if (!read.given("device-memory")) return 0;
  const std::string text = read.text("device-memory", "");
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit = to_lower(std::string_view(end, text.data() + text.size()));
  constexpr double kKibi = 1024.0;
  const double factor = unit.empty() || unit == "b" ? 1.0
                        : unit == "kb"              ? 1e3
                        : unit == "mb"              ? 1e6
                        : unit == "gb"              ? 1e9
                        : unit == "kib"             ? kKibi
                        : unit == "mib"             ? kKibi * kKibi
                        : unit == "gib"             ? kKibi * kKibi * kKibi
                                                    : 0.0;
  if (error != std::errc{} || factor == 0.0 || !(value > 0.0) || value * factor > 9e18)
    fail(ErrorKind::Usage, "{}: '{}' is no size, as 512MiB or 8GB are",
         read.options().find("device-memory")->where, text);
  return static_cast<std::int64_t>(value * factor);
}

void resolve_layout(Reader& read, const MachineFacts& machine, TrainConfig& config,
                    std::vector<std::string>& notices) {
  const Graph graph = models::build_model(config.model);
  for (const std::string& name : config.recompute_layers) {
    const bool known =
        std::any_of(graph.layers.begin(), graph.layers.end(), [&](const models::Layer& layer) {
          return layer.name == name || layer.name.starts_with(name + "/");
        });
    if (!known)
      fail(ErrorKind::Config,
           "--recompute-layers: {} has no layer {}; layers are named as splits are", graph.name,
           name);
  }
  std::optional<partition::Plan> plan;
  if (const auto file = read.options().text("plan")) {
    plan = partition::parse_plan(read_text(*file), *file);
    if (plan->model != graph.name)
      fail(ErrorKind::Config, "{}: is a plan for {}, this run trains {}", *file, plan->model,
           graph.name);
  }
  const pipeline::ScheduleRequest request = schedule_request(read, config, plan ? &*plan : nullptr);
  pipeline::PipelinePlan& pipeline = config.pipeline;
  if (plan) {
    config.splits = plan->splits;
    read.note("pipeline-splits", fmt::format("{}", fmt::join(config.splits, " ")));
    read.note("device-mapping", fmt::format("{}", fmt::join(plan->device_of, " ")));
  } else {
    config.splits = resolve_splits(read, graph, config, request, notices);
  }
  pipeline.ranges = partition::stages_of(graph, config.splits);
  pipeline.ranks.devices = request.devices;
  const std::vector<pipeline::Link> links =
      pipeline::links(pipeline::channels(graph, pipeline.ranges));
  pipeline.schedule =
      with_communication(schedule_of(read, graph, config, request, pipeline.ranges), links);
  pipeline::validate(pipeline.schedule, links);
  resolve_ranks(read, machine, config, notices);
  if (pipeline.ranks.replicas > 1)
    config.weight_check_every = read.integer("weight-check-every", 100);
  resolve_trace(read.options(), config);
  note_without_effect(read, notices);
  note_launching(read);
  config.hang_timeout = static_cast<int>(read.follower("hang-timeout", 600));
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
         "{} micro-batches x {} replicas would change the total batch of the run, which began with "
         "{} x {}: keep the product at {}",
         depth_of(merged), replicas_of(merged), depth_of(recorded), replicas_of(recorded), before);
  // Other stages need other cuts.
  const auto relays = [&](std::string_view name) { return given.find(name) != nullptr; };
  const bool other_stages = relays("shards") || relays("chunks") || relays("device-mapping") ||
                            relays("pipeline-schedule") || relays("plan");
  if (!relays("ranks") && (other_stages || relays("replicas"))) merged.erase("ranks");
  if (!other_stages) return merged;
  if (!relays("device-mapping")) merged.erase("device-mapping");
  if (!relays("chunks")) merged.erase("chunks");
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
