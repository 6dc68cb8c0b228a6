// SPDX-License-Identifier: Apache-2.0
#include "pipeline/executor.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "ops/variants.hpp"
#include "pipeline/pipeline_plan.hpp"

namespace millrace::pipeline {
namespace {

/// The entries of `rank`.
std::vector<LocalEntry> entries_of(const PipelinePlan& plan, std::span<const Message> messages,
                                   std::span<const StageRun> runs, int rank) {
  std::vector<LocalEntry> entries;
  const std::vector<std::vector<PlanEntry>> lists = lists_by_rank(plan, links(messages));
  for (const auto& [replica, entry, action] : lists.at(static_cast<std::size_t>(rank)))
    entries.push_back({replica, entry, action, find_run(runs, replica, action.stage)});
  return entries;
}

/// By unit, the entry for which its weights are packed: the update that made them. An evaluation
/// has none; there it is the first entry that reads them.
std::vector<std::size_t> packing_entries(std::span<const LocalEntry> entries, std::size_t units) {
  std::vector<std::size_t> found(units, entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (std::size_t& at = found[entries[i].unit];
        at == entries.size() || entries[i].action.kind == ActionKind::Update)
      at = i;
  return found;
}

/// The most pieces that a step can have: waits before an entry and between its parts, work between
/// them, and what happens for a unit after all entries.
std::size_t most_pieces(std::span<const LocalEntry> entries, std::span<const StageRun> runs) {
  constexpr std::size_t kEntry = 8;
  constexpr std::size_t kPart = 4;
  constexpr std::size_t kUnit = 11;
  std::size_t pieces = kUnit * runs.size();
  for (const LocalEntry& entry : entries)
    pieces += kEntry + kPart * runs[entry.unit].parts(entry.action.kind);
  return pieces;
}

/// The most times that kernels are queued for an entry or a unit in a step.
std::size_t most_spans(std::span<const LocalEntry> entries, std::span<const StageRun> runs) {
  std::size_t spans = 3 * runs.size();  // weights are packed, updated, and averaged
  for (const LocalEntry& entry : entries) spans += 1 + runs[entry.unit].parts(entry.action.kind);
  return spans;
}

Recording recording_of(std::vector<LocalEntry> entries, std::span<const StageRun> runs) {
  std::size_t pieces = most_pieces(entries, runs);
  // A span is a piece, and may cut another in two.
  if (device::kHasQueues) pieces += 2 * most_spans(entries, runs);
  return {std::move(entries), pieces};
}

}  // namespace

Executor::Executor(const Graph& graph, const PipelinePlan& plan, std::span<const LocalStage> units,
                   int rank)
    : plan_(&plan),
      training_(has_backward(plan.schedule)),
      micro_batches_(plan.schedule.micro_batches),
      all_messages_(messages(graph, plan.ranges)),
      runs_(stage_runs(graph, plan, units)),
      recording_(recording_of(entries_of(plan, all_messages_, runs_, rank), runs_)),
      spans_(most_spans(recording_.entries(), runs_)),
      packing_entry_(packing_entries(recording_.entries(), runs_.size())),
      update_(graph, plan, runs_, recording_, spans_),
      teams_(plan, runs_),
      batches_(units.size()),
      held_(units.size()),
      measured_stash_(units.size()),
      metrics_(static_cast<std::size_t>(plan.ranks.replicas * micro_batches_)) {
  messages_.reserve(units.size());
  for (std::size_t u = 0; u < units.size(); ++u)
    messages_.emplace_back(runs_, u, plan, all_messages_, recording_);
}

std::int64_t Executor::message_bytes() const {
  std::int64_t bytes = update_.message_bytes();
  for (const StageMessages& messages : messages_) bytes += messages.message_bytes();
  return bytes;
}

void Executor::bind(std::byte* memory, comm::Transport& transport, const comm::World& world) {
  for (auto& places : std::span(places_).first(goes_ahead() ? 2 : 1))
    for (const StageRun& run : runs_) places.emplace_back(run, micro_batches_);
  transport_ = &transport;
  transport_run_ = transport.add_run(message_order(*plan_, all_messages_));
  for (StageMessages& messages : messages_) messages.bind(transport);
  const int first_tag = plan_->ranks.replicas * static_cast<int>(all_messages_.size());
  update_.bind(memory, transport, world, first_tag);
  teams_.bind(transport, first_tag + update_.tags());
}

void Executor::prepare_timing() {
  std::size_t kernels = 0;
  for (const LocalEntry& entry : recording_.entries()) {
    const StageProgram& program = runs_[entry.unit].program->program();
    if (const auto phase = exchanging_phase(entry.action.kind))
      kernels += program.phase(*phase).size();
    if (is_compute(entry.action.kind) && ends_micro_batch(entry.action.kind))
      kernels += program.phase(Phase::BackwardWeight).size();
  }
  recording_.reserve_kernels(kernels);
}

std::string Executor::name_of(const KernelPiece& piece) const {
  const std::size_t unit = recording_.entries()[piece.entry].unit;
  const BoundProgram& program = *runs_[unit].program;
  const Call& call = program.program().phase(piece.phase)[piece.call];
  return program.graph().op(call.op).name + ' ' + std::string(millrace::name_of(call.kind));
}

bool Executor::reads_images(std::size_t unit) const {
  const std::vector<Crossing>& inputs = runs_[unit].program->program().inputs;
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const Crossing& c) { return c.value == Graph::input(); });
}

bool Executor::reads_labels(std::size_t unit) const {
  return runs_[unit].program->program().labels.valid();
}

bool Executor::goes_ahead() const {
  static const bool ahead = ops::variant("STEPS_AHEAD", 1) != 0;
  return ahead && device::kHasGraphs && !device::kHostReadable && training_ &&
         plan_->ranks.ranks == 1 && runs_.size() == 1 && micro_batches_ <= kMostMicroBatchesAhead;
}

void Executor::begin_step(const device::ExecutionSpace& space, const StepSettings& settings) {
  space_ = &space;
  recording_.begin_step();
  spans_.begin_step(!whole_);
  update_.begin_step(space, settings, turn_, queued_ > 0);
  transport_->begin_run(transport_run_);
}

void Executor::pack(const StepSettings& settings) {
  for (std::size_t u = 0; u < runs_.size(); ++u) {
    recording_.enter(packing_entry_[u]);
    {
      const Recording::While packing(recording_, Doing::Pack);
      spans_.begin(*space_, packing_entry_[u], Doing::Pack);
      runs_[u].begin_step(*space_, settings);
      spans_.end(*space_);
    }
    for (std::int32_t m = 0; m < std::min(runs_[u].slots.stash, micro_batches_); ++m)
      messages_[u].post(ActionKind::ReceiveActivation, m);
  }
}

void Executor::run(const device::ExecutionSpace& space, const StepSettings& settings,
                   std::span<io::BatchSource* const> feeds) {
  MILLRACE_ASSERT(queued_ == 0);
  whole_ = false;
  turn_ = 0;
  skipped_ = false;
  std::fill(held_.begin(), held_.end(), 0);
  std::fill(measured_stash_.begin(), measured_stash_.end(), 0);
  begin_step(space, settings);
  pack(settings);
  const std::size_t entries = recording_.entries().size();
  for (std::size_t first = 0; first < entries;) {
    const std::size_t count = teams_.size_at(recording_.entries(), first);
    execute(first, count, settings, feeds);
    first += count;
  }
  if (training_) skipped_ = !update_.finish(settings);
  for (StageMessages& messages : messages_) messages.await_all_sent();
  recording_.take_times_of_device(spans_.times(space, recording_.clock()));
  device::fence(space);
  collect_metrics(settings, turn_);
  recording_.finish();
}

void Executor::queue(const device::ExecutionSpace& space, const StepSettings& settings,
                     std::span<io::BatchSource* const> feeds) {
  MILLRACE_ASSERT(goes_ahead() && queued_ < 2 && settings.clip_norm <= 0.0);
  whole_ = true;
  turn_ = (finished_ + queued_) % 2;
  begin_step(space, settings);
  const std::size_t entries = recording_.entries().size();
  for (std::size_t first = 0, last = 0; first < entries; first = last) {
    for (last = first + 1; last < entries && !reads_images_at(last);) ++last;
    recording_.begin(first, last - first);
    const std::int32_t m = recording_.entries()[first].action.micro_batch;
    const io::Batch& batch = next_batch(*feeds.front());
    const BoundProgram& program = *runs_.front().program;
    std::byte* const small = places_[turn_].front().small(m);
    Stage::keep_small(program, batch, small);
    kept_.run(space, {turn_, first, batch.images.data(), settings.seed}, [&] {
      if (first == 0) pack(settings);
      Stage::queue_load(space, program, runs_.front().context(m), batch, small);
      constexpr std::array<io::BatchSource*, 1> kLoaded = {nullptr};
      for (std::size_t entry = first; entry < last; ++entry) execute(entry, 1, settings, kLoaded);
      if (last == entries) update_.queue_if_finite();
    });
    recording_.end(first, last - first);
  }
  done_[turn_].mark(space);
  ++queued_;
  recording_.finish();
}

void Executor::finish() {
  MILLRACE_ASSERT(queued_ > 0);
  const std::size_t turn = finished_++ % 2;
  --queued_;
  done_[turn].wait();
  skipped_ = !update_.found_finite(turn);
  collect_metrics({}, turn);
}

KeptCount Executor::kept() const {
  KeptCount all = kept_.count();
  for (const StageRun& run : runs_) {
    const KeptCount own = run.program->kept();
    all.kept += own.kept;
    all.refused += own.refused;
  }
  return all;
}

void Executor::exchange(const std::function<void()>& with_all_ranks) {
  recording_.await_all_ranks(packing_entry_.back());
  with_all_ranks();
  recording_.finish();
}

/// Executes entries [first, first + count), which run together.
void Executor::execute(std::size_t first, std::size_t count, const StepSettings& settings,
                       std::span<io::BatchSource* const> feeds) {
  recording_.begin(first, count);
  const LocalEntry& entry = recording_.entries()[first];
  const Action& action = entry.action;
  ActionRecord& record = recording_.at(first);
  switch (action.kind) {
    case ActionKind::Forward:
    case ActionKind::Backward:
    case ActionKind::BackwardInput:
    case ActionKind::BackwardWeight:
      compute(first, count, settings, feeds);
      break;
    case ActionKind::SendActivation:
    case ActionKind::SendGradient:
      messages_[entry.unit].send(action, record);
      break;
    case ActionKind::ReceiveActivation:
    case ActionKind::ReceiveGradient:
      record.done = action;  // posted earlier
      break;
    case ActionKind::Reduce:
      update_.start(entry.unit);
      record.done = {.kind = ActionKind::Reduce, .stage = runs_[entry.unit].unit.stage};
      break;
    case ActionKind::Update:
      update_.await(entry.unit, settings);
      record.done = {.kind = ActionKind::Update, .stage = runs_[entry.unit].unit.stage};
      break;
  }
  add_up();
  recording_.end(first, count);
}

void Executor::compute(std::size_t first, std::size_t count, const StepSettings& settings,
                       std::span<io::BatchSource* const> feeds) {
  const std::span<const LocalEntry> team = recording_.entries().subspan(first, count);
  const Action& action = team.front().action;
  const std::int32_t m = action.micro_batch;
  const bool is_forward = action.kind == ActionKind::Forward;
  // Calls f for each entry of the team, one after the other.
  const auto for_team = [&](auto&& f) {
    for (std::size_t i = 0; i < count; ++i) {
      recording_.enter(first + i);
      f(first + i, team[i]);
    }
  };
  for_team([&](std::size_t, const LocalEntry& entry) {
    if (is_forward)
      begin_forward(entry.unit, m, feeds[entry.unit]);
    else if (makes_input_gradient(action.kind))
      begin_backward(entry.unit, m);
  });
  const std::optional<Phase> phase = exchanging_phase(action.kind);
  const std::size_t parts = phase ? runs_[team.front().unit].program->parts(*phase) : 0;
  for (std::size_t part = 0; part < parts; ++part) {
    const bool exchanges = teams_.exchanges(team.front(), part);
    for_team([&](std::size_t i, const LocalEntry& entry) {
      run_part(i, *phase, part, m, settings);
      if (exchanges) teams_.start(entry, part);
    });
    for (std::size_t i = 0; exchanges && i < count; ++i) {
      recording_.enter(first + i);
      teams_.await(team[i], part, recording_, update_);
    }
  }
  for_team([&](std::size_t i, const LocalEntry& entry) {
    if (is_forward)
      end_forward(entry.unit, m, settings, recording_.at(i));
    else
      end_backward(i, settings, recording_.at(i));
  });
}

void Executor::run_part(std::size_t entry, Phase phase, std::size_t part, std::int32_t m,
                        const StepSettings& settings) {
  const std::size_t unit = recording_.entries()[entry].unit;
  const StageRun& run = runs_[unit];
  if (whole_) return run.program->queue_part(*space_, phase, part, run.context(m));
  spans_.begin(*space_, entry, Doing::Work);
  run.run_part(*space_, phase, part, m, settings, recording_);
  spans_.end(*space_);
  if (phase != Phase::Forward && m + 1 == micro_batches_)
    update_.start_complete(unit, run.program->backward_calls(phase, part));
  add_up();
}

void Executor::add_up() {
  if (!update_.adding()) return;
  const Recording::While adding(recording_, Doing::Add);
  update_.advance();
}

void Executor::begin_forward(std::size_t unit, std::int32_t m, io::BatchSource* feed) {
  messages_[unit].await_sent(m, StageMessages::Memory::Stash);
  messages_[unit].receive(ActionKind::ReceiveActivation, m, update_);
  messages_[unit].copy(*space_, ActionKind::ReceiveActivation, m);
  if (feed == nullptr) return;
  batches_[unit] = &next_batch(*feed);
  Stage::load(*space_, *runs_[unit].program, runs_[unit].context(m), *batches_[unit],
              places_[turn_][unit].small(m));
}

const io::Batch& Executor::next_batch(io::BatchSource& feed) {
  const Recording::While waiting(recording_, Doing::AwaitImages);
  const io::Batch* const batch = feed.next();
  MILLRACE_ASSERT(batch != nullptr);
  return *batch;
}

void Executor::end_forward(std::size_t unit, std::int32_t m, const StepSettings& settings,
                           ActionRecord& record) {
  StageRun& run = runs_[unit];
  record.done = {.kind = ActionKind::Forward, .stage = run.unit.stage, .micro_batch = m};
  if (run.program->program().loss.valid()) {
    const std::int64_t at = run.unit.replica + std::int64_t{run.replicas} * m;
    Stage::queue_losses(*space_, *run.program, run.context(m), places_[turn_][unit].losses(m));
    if (settings.loss != nullptr) run.ask_for_loss(settings, *batches_[unit], m);
    if (settings.logits) settings.logits(at, run.unit.state->logits(*run.program, run.context(m)));
  }
  measured_stash_[unit] = std::max(measured_stash_[unit], ++held_[unit]);
  if (training_)
    messages_[unit].post(ActionKind::ReceiveGradient, m);
  else
    free_slot(unit, m);
}

void Executor::begin_backward(std::size_t unit, std::int32_t m) {
  // The gradient arrives after the sent activation was used, so the wait after it is short.
  messages_[unit].receive(ActionKind::ReceiveGradient, m, update_);
  messages_[unit].await_sent(m, StageMessages::Memory::Any);
}

void Executor::end_backward(std::size_t entry, const StepSettings& settings, ActionRecord& record) {
  const auto& [replica, place, action, unit] = recording_.entries()[entry];
  const StageRun& run = runs_[unit];
  const std::int32_t m = action.micro_batch;
  if (makes_input_gradient(action.kind)) {
    messages_[unit].copy(*space_, ActionKind::SendGradient, m);
    record.done = {.kind = ActionKind::BackwardInput, .stage = run.unit.stage, .micro_batch = m};
  }
  if (!ends_micro_batch(action.kind)) return;
  // For a joined backward this list is empty.
  for (std::size_t part = 0; part < run.program->parts(Phase::BackwardWeight); ++part)
    run_part(entry, Phase::BackwardWeight, part, m, settings);
  const bool both = record.done.kind == ActionKind::BackwardInput;
  record.done = {.kind = both ? ActionKind::Backward : ActionKind::BackwardWeight,
                 .stage = run.unit.stage,
                 .micro_batch = m};
  free_slot(unit, m);
}

/// The losses of all micro-batches, once the device is done.
void Executor::collect_metrics(const StepSettings& settings, std::size_t turn) {
  std::fill(metrics_.begin(), metrics_.end(), MicroBatchMetrics{});
  for (const LocalEntry& entry : recording_.entries()) {
    const StageRun& run = runs_[entry.unit];
    if (entry.action.kind != ActionKind::Forward || !run.program->program().loss.valid()) continue;
    const std::int32_t m = entry.action.micro_batch;
    const std::int64_t at = entry.replica + std::int64_t{run.replicas} * m;
    MicroBatchMetrics& metrics = metrics_[static_cast<std::size_t>(at)];
    metrics = run.unit.state->metrics(*run.program, places_[turn][entry.unit].losses(m),
                                      settings.by_class);
    if (settings.loss != nullptr)
      metrics.loss =
          run.own_losses[static_cast<std::size_t>(m)].value * static_cast<double>(metrics.samples);
  }
}

/// The stage needs nothing more of micro-batch m: the next one may arrive in its stash slot.
void Executor::free_slot(std::size_t unit, std::int32_t m) {
  --held_[unit];
  const std::int32_t next = m + runs_[unit].slots.stash;
  if (next < micro_batches_) messages_[unit].post(ActionKind::ReceiveActivation, next);
}

}  // namespace millrace::pipeline
