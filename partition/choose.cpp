// SPDX-License-Identifier: Apache-2.0
//
// What a run says about stages, schedules and ranks, and what is decided where it says nothing.
#include "partition/choose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/cuts.hpp"
#include "partition/recompute.hpp"
#include "partition/search.hpp"
#include "partition/spread.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::partition {

pipeline::ProgramOptions training_program(const Run& run) {
  return {.batch = run.batch_size,
          .type = run.precision.activations,
          .recompute = run.recompute,
          .recompute_layers = run.recompute_layers,
          .images = run.data.image_type,
          .mixing = run.data.mixing.on(),
          .weighted = run.data.weighted};
}

PlanRequest plan_request(const Run& run, const pipeline::ScheduleRequest& schedule) {
  PlanRequest request;
  request.program = training_program(run);
  request.update = {run.optimiser.kind, run.precision,
                    run.optimiser.sharded ? run.pipeline.ranks.replicas : 1};
  request.schedule = schedule;
  request.device = cpu_model(request.program.type);
  request.link = local_link();
  request.replicas = run.pipeline.ranks.replicas;
  request.reduce = {.most_bytes = run.reduced_at_once, .type = run.reduced_as};
  request.segments = run.chosen_segments;
  request.cost_model = "analytic";
  return request;
}

std::string splits_notice(std::span<const std::string> splits) {
  return fmt::format("{}{}", kAutomaticSplits, join(splits, " "));
}

namespace {

std::string spread_notice(const Spread& spread) {
  const auto [least, most] = std::ranges::minmax(spread.shares);
  return fmt::format(
      "Spread over {} ranks: {} stages, {} of them on each rank, {:.1f} ms an update (estimated; "
      "{:.1f} ms with whole devices on each rank), cut at {}",
      spread.shares.size(), spread.splits.size() + 1,
      least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most),
      1e3 * spread.seconds, 1e3 * spread.standing, join(spread.splits, " "));
}

}  // namespace

std::string schedule_notice(std::string_view schedule, std::span<const std::string> splits) {
  return fmt::format("{}{}, with splits {}", kAutomaticSchedule,
                     schedule == kAutomatic ? "actions ordered for these stages" : schedule,
                     join(splits, " "));
}

bool opens_both(const run::LayoutRequest& asked, std::int32_t devices) {
  return opens_schedule(asked) && opens_cuts(asked) && devices > 1 && asked.device_of.empty() &&
         !asked.chunks && asked.plan.empty() && asked.schedule_file.empty();
}

namespace {

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

/// The devices of the pipeline, and those of its stages as far as they are told.
void request_devices(const Run& config, const std::optional<Plan>& plan,
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
    fail(ErrorKind::Usage,
         "`chunks` has no effect here: the plan sets the number of stages per device");
}

/// The name of the schedule that is asked for, or of the one that the layout has without.
std::string schedule_name(const Run& config, const std::optional<Plan>& plan,
                          const pipeline::ScheduleRequest& request) {
  if (config.layout.schedule) return *config.layout.schedule;
  if (request.devices == 1 && request.device_of.size() <= 1) return "Sequential";
  if (plan) return plan->schedule;
  const bool one_after_another =
      request.devices > 1 && run::divides_memory(config.micro_batches, config.layout.pipelined);
  return one_after_another ? "Sequential" : "Interleaved";
}

/// The schedule that the options ask for, on the devices of `plan` or, without a plan, of the
/// schedule in the file, if given. Errors: Usage when the options contradict each other.
pipeline::ScheduleRequest schedule_request(Run& config, const std::optional<Plan>& plan,
                                           const std::optional<pipeline::Schedule>& listed) {
  run::LayoutRequest& asked = config.layout;
  pipeline::ScheduleRequest request;
  request.micro_batches = static_cast<std::int32_t>(config.micro_batches);
  request_devices(config, plan, listed, request);
  asked.shards = request.devices;
  const std::string name = schedule_name(config, plan, request);
  if (!listed && (request.devices > 1 || request.device_of.size() > 1)) asked.schedule = name;
  const bool automatic = to_lower(name) == kAutomatic;
  // Cuts are searched for as if it were 1F1B; the list is made for those that are found.
  const pipeline::ScheduleRule& rule = pipeline::placing_rule(name);
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
           "`pipeline-warmup` has no effect here: it needs `pipeline-schedule` 1F1B or "
           "Interleaved");
    request.extra_warmup = *asked.extra_warmup;
  }
  return request;
}

/// The IPU trainer ignores these filters in a pipeline, and its command lines contain them there.
void note_sharding_filters(const Run& config, Notices& notices) {
  const run::LayoutRequest& asked = config.layout;
  if (config.pipeline.ranges.size() < 2 || asked.cut_by_memory) return;
  for (const auto& [name, filter] : {std::pair{"sharding-include-filter", &asked.include},
                                     std::pair{"sharding-exclude-filter", &asked.exclude}})
    if (!filter->empty())
      notices.push_back(fmt::format(
          "`{}` has no effect here: it is for automatic sharding with one micro-batch; a pipeline "
          "is cut at `pipeline-splits` or by `plan`",
          name));
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

/// What Auto repeats is chosen once the stages are known.
Recompute recompute_of(const Run& run) {
  if (!run.recompute_layers.empty()) return Recompute::Layers;
  const bool stages = run.layout.recompute == run::RecomputeRequest::Segments;
  return stages || run.layout.recomputes_stages ? Recompute::Stage : Recompute::None;
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

/// Chooses the layout of one run.
class Chooser {
 public:
  Chooser(const Graph& graph, const LayoutFacts& facts, const Sizer& sizer, Choice& choice)
      : graph_(graph),
        facts_(facts),
        sizer_(sizer),
        run_(choice.run),
        asked_(choice.run.layout),
        layout_(choice.layout),
        notices_(choice.notices) {}

  /// What the run says, as far as ranks and sizes do not depend on what is open.
  void read() {
    run_.asked_layout = asked_;
    run_.device_memory = run::device_memory(asked_.device_memory);
    run_.recompute = recompute_of(run_);
    run_.chosen_segments.clear();
    run_.pipeline.ranks.shares = asked_.rank_shares;
    check_recomputed_layers(graph_, run_);
    layout_.request = schedule_request(run_, facts_.plan, facts_.actions);
    run_.pipeline.ranks.devices = layout_.request.devices;
  }

  /// Cuts, schedule and what is repeated.
  void arrange() {
    pipeline::ScheduleRequest& request = layout_.request;
    if (request.stages() == 1) require_no_splits(asked_, notices_);
    if (run_.device_memory > 0)
      layout_.room = {.bytes = std::max<std::int64_t>(1, run_.device_memory - sizer_.rest(run_)),
                      .repeats = asked_.recompute == run::RecomputeRequest::Auto};
    if (opens_both(asked_, request.devices)) {
      choose_schedule();
    } else if (facts_.plan) {
      run_.splits = facts_.plan->splits;
      asked_.device_of = facts_.plan->device_of;
    } else {
      run_.splits = splits();
    }
    asked_.splits = run_.splits;
    asked_.threads = run_.threads;
    asked_.pipelined = asked_.pipelined || !run_.splits.empty();
    run_.pipeline.ranges = stages_of(graph_, run_.splits);
    run_.pipeline.joint = {};
    note_sharding_filters(run_, notices_);
    if (facts_.decided && !facts_.decided->shares.empty()) return take_over_spread();
    const std::vector<pipeline::Link> links = pipeline::links(graph_, run_.pipeline.ranges);
    run_.pipeline.schedule = with_communication(actions(), links);
    pipeline::validate(run_.pipeline.schedule, links);
    if (!facts_.decided) asked_.spread = false;
    if (may_spread())
      spread();
    else if (!asked_.rank_speeds.empty() && !asked_.elastic && !facts_.decided)
      fail(
          ErrorKind::Config,
          "`speeds-of-ranks` {}: these stages cannot be cut further, because of `Sequential` "
          "shards, `devices-of-ranks`, `device-memory`, `BN-span`, or what is given for each stage "
          "or device: leave that or the speeds out",
          join(asked_.rank_speeds, " "));
    if (layout_.room.repeats) {
      run_.chosen_segments = facts_.decided ? facts_.decided->segments : choose_segments();
      run_.recompute = Recompute::Stage;
    }
  }

 private:
  [[nodiscard]] PlanRequest planned() const {
    PlanRequest request = plan_request(run_, layout_.request);
    if (facts_.rates) facts_.rates(request);
    return request;
  }
  /// The same with sizes, for a search within memory.
  [[nodiscard]] PlanRequest sized() const {
    PlanRequest request = planned();
    if (run_.device_memory > 0) request.sizer = sizer_.search(run_);
    return request;
  }

  /// The fastest schedule, with its cuts. They are recorded, so that a restored run has the same.
  void choose_schedule() {
    const ScheduleChoice choice =
        fitting_layout(graph_, sized(), layout_.room, Open::ScheduleAndCuts);
    run_.splits = choice.plan.splits;
    asked_.schedule = choice.schedule.name;
    if (choice.schedule.chunks > 1) asked_.chunks = choice.schedule.chunks;
    layout_.notices.push_back(schedule_notice(choice.schedule.name, run_.splits));
    if (choice.schedule.name != kAutomatic) layout_.request = choice.schedule;
  }

  /// The cuts of a run: those given, or automatic ones for `auto` and for sharding without splits.
  std::vector<std::string> splits() {
    const pipeline::ScheduleRequest& request = layout_.request;
    std::vector<std::string> splits = asked_.splits;
    asked_.cut_by_memory = false;
    if (request.stages() == 1) return splits;
    if (facts_.decided) {
      asked_.cut_by_memory = facts_.decided->cut_by_memory;
      return splits;
    }
    asked_.cut_by_memory = splits.empty() &&
                           run::divides_memory(run_.micro_batches, asked_.pipelined) &&
                           request.chunks == 1;
    if (asked_.cut_by_memory) {
      splits = splits_by_memory(graph_, sized(), {asked_.include, asked_.exclude});
      layout_.notices.push_back("Automatic sharding: " + join(splits, " "));
    } else if (opens_cuts(asked_)) {
      splits = fitting_layout(graph_, sized(), layout_.room, Open::Cuts).plan.splits;
      layout_.notices.push_back(splits_notice(splits));
    }
    (void)stages_of(graph_, splits);  // reports a wrong name before a wrong number
    if (std::ssize(splits) != request.stages() - 1) refuse_missing(splits);
    return splits;
  }

  /// Whether the ranks may have parts of stages where they cannot have equally many devices. What
  /// is given by stage or device holds for those that were asked for, and replicas that share batch
  /// statistics keep to one order.
  [[nodiscard]] bool may_spread() const {
    const pipeline::RankMap& map = run_.pipeline.ranks;
    const bool divides = asked_.rank_speeds.empty() &&
                         (map.ranks >= map.all_devices() || map.all_devices() % map.ranks == 0);
    const bool open = run_.asked_layout.spread || !asked_.rank_speeds.empty() ||
                      opens_cuts(run_.asked_layout) || map.devices == 1 ||
                      (asked_.elastic && facts_.machine.ranks > 0);
    const bool in_turn = map.devices > 1 && layout_.request.name == "Sequential";
    return open && !divides && !facts_.decided && !in_turn && asked_.rank_shares.empty() &&
           asked_.schedule_file.empty() && asked_.scratch_shares.size() < 2 &&
           (asked_.devices.empty() || to_lower(asked_.devices) == "auto") &&
           run_.device_memory == 0 && pipeline::span_of(graph_) == 1;
  }

  void spread() {
    PlanRequest request = planned();
    const std::vector<OpCost> costs = costs_of(graph_, request);
    const std::optional<Spread> found =
        partition::spread(graph_, costs, request, run_.pipeline, asked_.rank_speeds);
    if (!found) return;
    asked_.spread = true;  // also when it is restored
    layout_.notices.push_back(spread_notice(*found));
    take(*found);
  }

  void take(const Spread& spread) {
    run_.splits = spread.splits;
    run_.pipeline = plan_of(graph_, spread, run_.pipeline.ranks.replicas);
  }

  void take_over_spread() {
    take({.splits = facts_.decided->splits,
          .shares = facts_.decided->shares,
          .order = facts_.decided->actions});
  }

  [[noreturn]] void refuse_missing(std::span<const std::string> given) const {
    const PlanRequest request = planned();
    std::string message;
    try {
      check_count(graph_, given, layout_.request.stages());
    } catch (const Error& error) {
      message = error.what();
    }
    const std::vector<OpCost> costs = costs_of(graph_, request);
    const Plan selected = automatic_plan(graph_, costs, request, run_.device_memory);
    throw Error(ErrorKind::Usage, message,
                fmt::format("{}\n`pipeline-splits` auto would select: {}",
                            cut_table(graph_, costs, request.program.batch, request.program.type),
                            join(selected.splits, " ")));
  }

  /// The compute actions: those that were decided or are in a file, otherwise generated.
  pipeline::Schedule actions() {
    if (facts_.decided) return facts_.decided->actions;
    const pipeline::ScheduleRequest& request = layout_.request;
    const std::vector<OpRange>& stages = run_.pipeline.ranges;
    if (facts_.actions) return given_actions();
    if (!opens_schedule(asked_) || request.stages() < 2) return pipeline::generate(request);
    return automatic_schedule(graph_, stages,
                              facts_.plan
                                  ? step_costs(graph_, stages, facts_.plan->costs, planned())
                                  : estimated_step(graph_, stages, planned()),
                              request);
  }

  pipeline::Schedule given_actions() {
    const pipeline::ScheduleRequest& request = layout_.request;
    pipeline::Schedule schedule = *facts_.actions;
    if (pipeline::number_in_order(schedule))
      notices_.push_back(
          schedule.name +
          ": its micro-batches are taken in ascending order, as gradients add up in that order");
    if (schedule.stages != request.stages() || schedule.micro_batches != request.micro_batches ||
        schedule.devices() != request.devices)
      fail(ErrorKind::Config,
           "{}: the schedule has {} devices, {} stages and {} micro-batches, but the run has {}, "
           "{} and {}: change `shards`, `device-mapping` or `pipeline-depth`",
           schedule.name, schedule.devices(), schedule.stages, schedule.micro_batches,
           request.devices, request.stages(), request.micro_batches);
    return schedule;
  }

  /// What each stage repeats, so that its device keeps to its room.
  std::vector<pipeline::ChosenSegments> choose_segments() {
    std::vector<pipeline::ChosenSegments> segments;
    PlanRequest request = planned();
    request.program.backward =
        splits_backward(run_.pipeline.schedule) ? Backward::Split : Backward::Joined;
    const std::vector<OpCost> costs = costs_of(graph_, request);
    double forward = 0.0;
    for (const OpCost& cost : costs) forward += cost.forward;
    double repeated = 0.0;
    for (Recomputation& stage : choose_recomputation(graph_, costs, run_.pipeline, request.program,
                                                     sizer_.exact(run_), layout_.room.bytes)) {
      repeated += stage.seconds;
      segments.push_back(std::move(stage.chosen));
    }
    layout_.notices.push_back(
        fmt::format("Recomputation: {:.1f} ms of {:.1f} ms forward per micro-batch (estimated)",
                    1e3 * repeated, 1e3 * forward));
    return segments;
  }

  const Graph& graph_;
  const LayoutFacts& facts_;
  const Sizer& sizer_;
  Run& run_;
  run::LayoutRequest& asked_;  ///< of the run; what is chosen is entered here
  Layout& layout_;
  Notices& notices_;
};

}  // namespace

Choice choose_once(const Graph& graph, Run run, const LayoutFacts& facts, const Sizer& sizer) {
  Choice choice{.run = std::move(run), .layout = {}};
  Chooser chooser(graph, facts, sizer, choice);
  chooser.read();
  run::complete_ranks(facts.machine, choice.run, choice.notices);  // sizes depend on the threads
  chooser.arrange();
  run::complete_devices(facts.machine, choice.run, choice.notices);
  return choice;
}

Choice rearrange(const Graph& graph, Run run, const LayoutFacts& facts, const Sizer& sizer) {
  Choice choice{.run = std::move(run), .layout = {}};
  Chooser chooser(graph, facts, sizer, choice);
  chooser.read();
  chooser.arrange();
  return choice;
}

}  // namespace millrace::partition
