// SPDX-License-Identifier: Apache-2.0
#include "pipeline/executor.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "device/vendor_scope.hpp"
#include "pipeline/exceptions.hpp"

namespace millrace::pipeline {
namespace {

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

BufferId crossing(std::span<const Crossing> crossings, ValueId value, bool gradient) {
  const auto found = std::find_if(crossings.begin(), crossings.end(),
                                  [&](const Crossing& c) { return c.value == value; });
  MILLRACE_ASSERT(found != crossings.end());
  return gradient ? found->gradient : found->activation;
}

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

bool shared_out(const Parameters& parameters) { return parameters.share_borders().size() > 2; }

/// Each replica adds up an equal part; if the update is divided, the gradients of the parameters
/// that it updates. Running sums are then added up by the last replica and sent to all.
Reduction reduction_of(const Parameters& parameters, const Unit& unit, std::int32_t replicas) {
  const std::int64_t elements = parameters.accumulated_elements();
  if (!shared_out(parameters)) return {equal_parts(elements, replicas), 0, unit.replica};
  const std::span<const std::int64_t> shares = parameters.share_borders();
  Borders borders(shares.begin(), shares.end());
  borders.back() = elements;
  return {borders, parameters.learning_elements(), unit.replica};
}

std::optional<Gather> gather_of(const Parameters& parameters, const Unit& unit) {
  if (!shared_out(parameters)) return {};
  const std::span<const std::int64_t> shares = parameters.share_borders();
  return Gather(Borders(shares.begin(), shares.end()), 0, unit.replica);
}

/// Replicas that share batch statistics in a training of `graph`.
std::int32_t span_among(const Graph& graph, std::int32_t replicas) {
  const std::int64_t span = span_of(graph);
  if (replicas % span != 0)
    fail(
        ErrorKind::Config,
        "batch statistics span {} replicas, which does not divide the {} replicas; use a span that "
        "does",
        span, replicas);
  return static_cast<std::int32_t>(span);
}

/// Borders of equal parts, one for each member of a group.
Borders member_borders(std::int64_t elements, std::int32_t members) {
  Borders borders;
  for (std::int32_t r = 0; r <= members; ++r) borders.push_back(elements / members * r);
  return borders;
}

/// The phase in which an action's kernels may have to wait for other replicas.
std::optional<Phase> exchanging_phase(ActionKind kind) {
  if (kind == ActionKind::Forward) return Phase::Forward;
  if (makes_input_gradient(kind)) return Phase::BackwardInput;
  return {};
}

}  // namespace

Executor::Executor(const Graph& graph, const PipelinePlan& plan, std::span<const Unit> units,
                   int rank)
    : plan_(&plan),
      training_(has_backward(plan.schedule)),
      micro_batches_(plan.schedule.micro_batches),
      span_(training_ ? span_among(graph, plan.ranks.replicas) : 1),
      channels_(channels(graph, plan.ranges)),
      squares_(training_ ? graph.parameters.size() : 0) {
  const std::vector<Slots> slots = slots_of(graph, plan);
  units_.reserve(units.size());
  for (const Unit& unit : units) {
    BoundProgram& program = training_ ? unit.run->training() : unit.run->evaluation();
    const Parameters& parameters = unit.run->parameters();
    units_.push_back({.unit = unit,
                      .program = &program,
                      .slots = slots[at(unit.stage)],
                      .reduction = reduction_of(parameters, unit, plan.ranks.replicas),
                      .weights = gather_of(parameters, unit)});
  }
  collect_entries(rank);
  for (const EntryOf& e : entries_) {
    const Action& action = plan.schedule.lists[at(e.entry.device)][at(e.entry.index)];
    instructions_.push_back({action, unit_of(e.replica, action.stage)});
  }
  records_.resize(entries_.size());
  measured_stash_.resize(units_.size());
  metrics_.resize(at(plan.ranks.replicas) * at(micro_batches_));
  make_ports();
}

void Executor::collect_entries(int rank) {
  // Replicas take turns entry by entry, so that the entries of a team are adjacent.
  for (const Entry& entry : event_order(plan_->schedule, links(channels_)))
    for (std::int32_t r = 0; r < plan_->ranks.replicas; ++r)
      if (plan_->ranks.rank_of(r, entry.device) == rank) entries_.push_back({r, entry});
}

int Executor::unit_of(std::int32_t replica, std::int32_t stage) const {
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (units_[u].unit.replica == replica && units_[u].unit.stage == stage)
      return static_cast<int>(u);
  return -1;
}

void Executor::make_ports() {
  for (UnitState& state : units_) {
    const StageProgram& program = state.program->program();
    for (const Channel& c : channels_) {
      if (c.gradient && !training_) continue;
      const bool sends = c.from == state.unit.stage;
      if (!sends && c.to != state.unit.stage) continue;
      // Inputs of a stage receive activations and send gradients; outputs do the opposite.
      const bool input = sends == c.gradient;
      Port port;
      port.here = crossing(input ? program.inputs : program.outputs, c.value, c.gradient);
      port.in_slot = state.program->region(port.here) != Region::Outbox;
      port.peer = sends ? c.to : c.from;
      if (plan_->schedule.device(c.from) == plan_->schedule.device(c.to)) {
        port.other = unit_of(state.unit.replica, port.peer);
        const StageProgram& other = units_[at(port.other)].program->program();
        port.there = crossing(input ? other.outputs : other.inputs, c.value, c.gradient);
      }
      auto& ports = c.gradient ? (sends ? state.gradients_out : state.gradients_in)
                               : (sends ? state.activations_out : state.activations_in);
      ports.push_back(std::move(port));
    }
  }
}

std::int64_t Executor::bytes() const {
  std::int64_t bytes = 0;
  for (const UnitState& state : units_) bytes += training_ ? state.reduction.bytes() : 0;
  return bytes;
}

void Executor::bind(std::byte* memory, comm::Transport& transport, const comm::World& world) {
  transport_ = &transport;
  world_ = &world;
  const RankMap& ranks = plan_->ranks;
  const auto tags_of_replica = static_cast<int>(channels_.size());
  prepare_messages(transport, tags_of_replica);
  if (!training_) return;
  for (UnitState& state : units_) {
    std::vector<int> rank_of;
    rank_of.reserve(static_cast<std::size_t>(ranks.replicas));
    for (std::int32_t r = 0; r < ranks.replicas; ++r)
      rank_of.push_back(ranks.rank_of(r, plan_->schedule.device(state.unit.stage)));
    const int tags = Reduction::tags(ranks.replicas) + ranks.replicas * ranks.replicas;
    Peers peers{&transport, rank_of, ranks.replicas * tags_of_replica + state.unit.stage * tags};
    const Parameters& parameters = state.unit.run->parameters();
    state.reduction.bind(parameters.accumulated(), memory, peers);
    memory += state.reduction.bytes();
    if (!state.weights) continue;
    peers.first_tag += Reduction::tags(ranks.replicas);
    const StoredValues masters = parameters.masters();
    state.weights->bind(masters.data, size_of(masters.type), peers);
  }
  const int tags = Reduction::tags(ranks.replicas) + ranks.replicas * ranks.replicas;
  prepare_exchanges(transport, ranks.replicas * tags_of_replica + plan_->schedule.stages * tags);
}

/// All exchanges of a stage use the same tags, because every process runs them in the same order.
void Executor::prepare_exchanges(comm::Transport& transport, int first_tag) {
  if (span_ == 1) return;
  const RankMap& ranks = plan_->ranks;
  constexpr auto kDouble = static_cast<std::int64_t>(sizeof(double));
  for (UnitState& state : units_) {
    const std::int32_t group = state.unit.replica / span_;
    std::vector<int> rank_of;
    rank_of.reserve(at(span_));
    for (std::int32_t r = 0; r < span_; ++r)
      rank_of.push_back(ranks.rank_of(group * span_ + r, plan_->schedule.device(state.unit.stage)));
    const int number = state.unit.stage * (ranks.replicas / span_) + group;
    const Peers peers{&transport, rank_of, first_tag + number * span_ * span_};
    const BoundProgram& program = *state.program;
    for (const Phase phase : {Phase::Forward, Phase::BackwardInput}) {
      for (std::size_t part = 1; part < program.parts(phase); ++part) {
        const BufferId buffer = program.exchanged(phase, part);
        MILLRACE_ASSERT(program.region(buffer) == Region::Transient);
        const std::int64_t elements = program.program().buffer(buffer).bytes / kDouble;
        state.exchanges[static_cast<std::size_t>(phase)]
            .emplace_back(member_borders(elements, span_), 0, state.unit.replica % span_)
            .bind(program.address(buffer, {}), kDouble, peers);
      }
    }
  }
}

void Executor::prepare_messages(comm::Transport& transport, int tags_of_replica) {
  for (UnitState& state : units_) {
    const auto prepare = [&](std::vector<Port>& ports, bool sends, bool gradient) {
      std::size_t i = 0;
      for (std::size_t c = 0; c < channels_.size(); ++c) {
        const Channel& channel = channels_[c];
        const bool mine = (sends ? channel.from : channel.to) == state.unit.stage;
        if (!mine || channel.gradient != gradient) continue;
        Port& port = ports[i++];
        if (port.other >= 0) continue;
        const int rank =
            plan_->ranks.rank_of(state.unit.replica, plan_->schedule.device(port.peer));
        const int tag = state.unit.replica * tags_of_replica + static_cast<int>(c);
        const std::int64_t bytes = state.program->program().buffer(port.here).bytes;
        const int slots = port.in_slot ? state.slots.stash : state.slots.outbox;
        for (int slot = 0; slot < slots; ++slot) {
          const RunContext where{.stash_slot = slot, .outbox_slot = slot};
          std::byte* place = state.program->address(port.here, where);
          port.message.push_back(sends ? transport.prepare_send(place, bytes, rank, tag)
                                       : transport.prepare_receive(place, bytes, rank, tag));
        }
      }
    };
    prepare(state.activations_in, false, false);
    prepare(state.activations_out, true, false);
    if (!training_) continue;
    prepare(state.gradients_in, false, true);
    prepare(state.gradients_out, true, true);
  }
}

bool Executor::reads_images(std::size_t unit) const {
  const std::vector<Crossing>& inputs = units_[unit].program->program().inputs;
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const Crossing& c) { return c.value == Graph::input(); });
}

bool Executor::reads_labels(std::size_t unit) const {
  return units_[unit].program->program().labels.valid();
}

RunContext Executor::context(const UnitState& state, std::int32_t m) const {
  return {.stash_slot = m % state.slots.stash,
          .weight_slot = m % state.slots.weight,
          .outbox_slot = state.slots.outbox > 0 ? m % state.slots.outbox : 0,
          .member = state.unit.replica % span_,
          .first = m == 0,
          .seed = seed_,
          .iteration = iteration_,
          .first_sample = (state.unit.replica + std::int64_t{plan_->ranks.replicas} * m) *
                          state.program->program().options.batch};
}

Standing Executor::standing() const {
  const std::int64_t entry = current_.load();
  if (entry < 0) return {};
  const auto i = static_cast<std::size_t>(entry);
  return {entries_[i].replica, instructions_[i].action, awaited_.load(), awaited_member_.load()};
}

void Executor::run(const device::ExecutionSpace& space, const StepSettings& settings,
                   std::span<io::Loader* const> feeds) {
  space_ = &space;
  seed_ = settings.seed;
  iteration_ = settings.iteration;
  std::fill(metrics_.begin(), metrics_.end(), MicroBatchMetrics{});
  std::fill(measured_stash_.begin(), measured_stash_.end(), 0);
  finite_ = true;
  skipped_ = false;
  for (UnitState& state : units_) {
    state.held = 0;
    state.program->begin_step(space, settings.loss_scaling);
    for (std::int32_t m = 0; m < std::min(state.slots.stash, micro_batches_); ++m)
      post_activations(state, m);
  }
  for (std::size_t i = 0; i < instructions_.size();) {
    const Team team = team_at(i);
    execute(team, settings, feeds);
    i += team.count;
  }
  if (training_) update_together(settings);
  ActionRecord leftover;
  for (const UnitState& state : units_) {
    const int most = std::max(state.slots.stash, state.slots.outbox);
    for (int m = 0; m < most; ++m) {
      await_sent(state.activations_out, m, Memory::Any, leftover);
      await_sent(state.gradients_out, m, Memory::Any, leftover);
    }
  }
  current_ = -1;
}

/// The entries of a group's replicas are adjacent; see collect_entries().
Executor::Team Executor::team_at(std::size_t entry) const {
  const auto& [action, unit] = instructions_[entry];
  const std::optional<Phase> phase = exchanging_phase(action.kind);
  if (!phase || units_[at(unit)].program->parts(*phase) == 1) return {entry, 1};
  Team team{entry, 1};
  const auto follows = [&](const EntryOf& next) {
    return next.entry == entries_[entry].entry &&
           next.replica / span_ == entries_[entry].replica / span_;
  };
  while (entry + team.count < entries_.size() && follows(entries_[entry + team.count]))
    ++team.count;
  return team;
}

/// Calls f(unit's state, entry) for all entries of the team and measures the time of each.
template <class F>
void Executor::for_team(Team team, F&& f) {
  for (std::size_t entry = team.first; entry < team.first + team.count; ++entry) {
    const std::int64_t begin = now();
    current_.store(static_cast<std::int64_t>(entry), std::memory_order_relaxed);
    UnitState& state = units_[at(instructions_[entry].unit)];
    f(state, entry);
    state.worked += now() - begin;
  }
}

void Executor::execute(Team team, const StepSettings& settings,
                       std::span<io::Loader* const> feeds) {
  const std::int64_t begin = now();
  for (std::size_t entry = team.first; entry < team.first + team.count; ++entry) {
    records_[entry] = {};
    records_[entry].begin = begin;
    progress_.fetch_add(1, std::memory_order_relaxed);
  }
  current_.store(static_cast<std::int64_t>(team.first), std::memory_order_relaxed);
  const auto& [action, unit] = instructions_[team.first];
  UnitState& state = units_[at(unit)];
  ActionRecord& record = records_[team.first];
  switch (action.kind) {
    case ActionKind::Forward:
    case ActionKind::Backward:
    case ActionKind::BackwardInput:
    case ActionKind::BackwardWeight:
      compute(team, settings, feeds);
      break;
    case ActionKind::SendActivation:
    case ActionKind::SendGradient:
      send(state, action, record);
      break;
    case ActionKind::ReceiveActivation:
    case ActionKind::ReceiveGradient:
      record.done = action;  // posted earlier
      break;
    case ActionKind::Reduce:
      state.reduction.start();
      ++reducing_;
      record.done = {.kind = ActionKind::Reduce, .stage = state.unit.stage};
      break;
    case ActionKind::Update:
      await_sums(state, settings, record);
      break;
  }
  if (reducing_ > 0) advance_reductions();
  const std::int64_t end = now();
  for (std::size_t entry = team.first; entry < team.first + team.count; ++entry)
    records_[entry].end = end;
}

void Executor::compute(Team team, const StepSettings& settings,
                       std::span<io::Loader* const> feeds) {
  const Action& action = instructions_[team.first].action;
  const std::int32_t m = action.micro_batch;
  const bool is_forward = action.kind == ActionKind::Forward;
  for_team(team, [&](UnitState& state, std::size_t entry) {
    state.worked = 0;
    if (is_forward)
      begin_forward(state, m, feeds[at(instructions_[entry].unit)], records_[entry]);
    else if (makes_input_gradient(action.kind))
      begin_backward(state, m, records_[entry]);
  });
  const std::optional<Phase> phase = exchanging_phase(action.kind);
  if (phase) run_together(team, *phase, settings);
  for_team(team, [&](UnitState& state, std::size_t entry) {
    if (is_forward)
      end_forward(state, m, records_[entry]);
    else
      end_backward(state, instructions_[entry].action, settings, records_[entry]);
  });
  if (!phase || units_[at(instructions_[team.first].unit)].program->parts(*phase) == 1) return;
  const std::int64_t end = now();
  for_team(team, [&](const UnitState& state, std::size_t entry) {
    records_[entry].receive_wait += end - records_[entry].begin - state.worked;
  });
}

void Executor::run_together(Team team, Phase phase, const StepSettings& settings) {
  const std::int32_t m = instructions_[team.first].action.micro_batch;
  const std::size_t parts = units_[at(instructions_[team.first].unit)].program->parts(phase);
  for (std::size_t part = 0; part < parts; ++part) {
    for_team(team, [&](UnitState& state, std::size_t) {
      run_part(state, phase, part, m, settings);
      if (part + 1 < parts) state.exchanges[static_cast<std::size_t>(phase)][part].start();
    });
    if (part + 1 < parts) await_members(team, phase, part);
  }
}

/// Waits until each replica of the team has the sums of its group, and the group has its sums.
void Executor::await_members(Team team, Phase phase, std::size_t part) {
  for (std::size_t entry = team.first; entry < team.first + team.count; ++entry) {
    current_.store(static_cast<std::int64_t>(entry), std::memory_order_relaxed);
    const UnitState& state = units_[at(instructions_[entry].unit)];
    const Gather& exchange = state.exchanges[static_cast<std::size_t>(phase)][part];
    const std::int32_t first = state.unit.replica / span_ * span_;
    for (std::int32_t member = exchange.awaited(); member >= 0; member = exchange.awaited()) {
      awaited_member_.store(first + member, std::memory_order_relaxed);
      if (reducing_ > 0) advance_reductions();
    }
    awaited_member_.store(-1, std::memory_order_relaxed);
  }
}

void Executor::run_part(UnitState& state, Phase phase, std::size_t part, std::int32_t m,
                        const StepSettings& settings) {
  const RunContext where = context(state, m);
  if (!settings.check_exceptions) return state.program->run_part(*space_, phase, part, where);
  const std::optional<Finding> found = run_checked(*state.program, *space_, phase, part, where);
  if (!found) return;
  fail(
      ErrorKind::Numeric,
      "op {} made a number that is not finite: {} of kernel {}, in the {} of micro-batch {}, stage "
      "{}, replica {}, iteration {}",
      found->op, found->result, found->kernel, name_of(phase), m, state.unit.stage,
      state.unit.replica, settings.iteration + 1);
}

void Executor::begin_forward(UnitState& state, std::int32_t m, io::Loader* feed,
                             ActionRecord& record) {
  const RunContext where = context(state, m);
  await_sent(state.activations_out, m, Memory::Slot, record);
  await_sent(state.gradients_out, m, Memory::Slot, record);
  receive(state.activations_in, m, record);
  copy_in(state.activations_in, state, m);
  if (feed != nullptr) load(state, where, *feed, record);
}

void Executor::end_forward(UnitState& state, std::int32_t m, ActionRecord& record) {
  record.done = {.kind = ActionKind::Forward, .stage = state.unit.stage, .micro_batch = m};
  const StageProgram& program = state.program->program();
  if (program.loss.valid()) {
    const std::size_t number = at(state.unit.replica + plan_->ranks.replicas * m);
    metrics_[number] = state.unit.run->metrics(*state.program, context(state, m));
  }
  const auto unit = static_cast<std::size_t>(&state - units_.data());
  measured_stash_[unit] = std::max(measured_stash_[unit], ++state.held);
  if (training_) {
    for (const Port& port : state.gradients_in)
      if (!port.message.empty()) transport_->start(port.message_of(m));
  } else {
    leave_slot(state, m);
  }
}

void Executor::load(UnitState& state, const RunContext& where, io::Loader& feed,
                    ActionRecord& record) {
  const std::int64_t begin = now();
  const io::Batch* batch = feed.next();
  record.load_wait += now() - begin;
  MILLRACE_ASSERT(batch != nullptr);
  Stage::load(*state.program, where, *batch);
}

void Executor::begin_backward(UnitState& state, std::int32_t m, ActionRecord& record) {
  // The gradient arrives after the sent activation was used, so the waits after it are short.
  receive(state.gradients_in, m, record);
  await_sent(state.activations_out, m, Memory::Any, record);
  await_sent(state.gradients_out, m, Memory::Any, record);
}

void Executor::end_backward(UnitState& state, const Action& action, const StepSettings& settings,
                            ActionRecord& record) {
  const std::int32_t m = action.micro_batch;
  if (makes_input_gradient(action.kind)) {
    copy_out(state.gradients_out, state, m);
    record.done = {.kind = ActionKind::BackwardInput, .stage = state.unit.stage, .micro_batch = m};
  }
  if (!ends_micro_batch(action.kind)) return;
  // For a joined backward this list is empty.
  run_part(state, Phase::BackwardWeight, 0, m, settings);
  const bool both = record.done.kind == ActionKind::BackwardInput;
  record.done = {.kind = both ? ActionKind::Backward : ActionKind::BackwardWeight,
                 .stage = state.unit.stage,
                 .micro_batch = m};
  leave_slot(state, m);
}

void Executor::leave_slot(UnitState& state, std::int32_t m) {
  --state.held;
  const std::int32_t next = m + state.slots.stash;
  if (next < micro_batches_) post_activations(state, next);
}

void Executor::post_activations(const UnitState& state, std::int32_t m) {
  for (const Port& port : state.activations_in)
    if (!port.message.empty()) transport_->start(port.message_of(m));
}

void Executor::send(const UnitState& state, const Action& action, ActionRecord& record) {
  const bool gradient = action.kind == ActionKind::SendGradient;
  for (const Port& port : gradient ? state.gradients_out : state.activations_out)
    if (port.peer == action.peer) {
      transport_->start(port.message_of(action.micro_batch));
      record.done = {.kind = action.kind,
                     .stage = state.unit.stage,
                     .micro_batch = action.micro_batch,
                     .peer = port.peer};
    }
}

void Executor::receive(std::span<const Port> ports, std::int32_t m, ActionRecord& record) {
  const std::int64_t begin = now();
  for (const Port& port : ports) {
    if (port.message.empty()) continue;
    awaited_.store(port.peer, std::memory_order_relaxed);
    const int message = port.message_of(m);
    while (reducing_ > 0 && !transport_->done(message)) advance_reductions();
    transport_->wait(message);
    awaited_.store(-1, std::memory_order_relaxed);
  }
  record.receive_wait += now() - begin;
}

void Executor::await_sent(std::span<const Port> ports, std::int32_t m, Memory memory,
                          ActionRecord& record) {
  const std::int64_t begin = now();
  for (const Port& port : ports) {
    if (port.message.empty() || (memory == Memory::Slot && !port.in_slot)) continue;
    awaited_.store(port.peer, std::memory_order_relaxed);
    transport_->wait(port.message_of(m));
    awaited_.store(-1, std::memory_order_relaxed);
  }
  record.send_wait += now() - begin;
}

void Executor::copy_in(std::span<const Port> ports, const UnitState& state, std::int32_t m) {
  for (const Port& port : ports) {
    if (port.other < 0) continue;
    const UnitState& maker = units_[at(port.other)];
    device::copy_within(state.program->address(port.here, context(state, m)),
                        maker.program->address(port.there, context(maker, m)),
                        state.program->program().buffer(port.here).bytes);
  }
}

void Executor::copy_out(std::span<const Port> ports, const UnitState& state, std::int32_t m) {
  for (const Port& port : ports) {
    if (port.other < 0) continue;
    const UnitState& reader = units_[at(port.other)];
    device::copy_within(reader.program->address(port.there, context(reader, m)),
                        state.program->address(port.here, context(state, m)),
                        state.program->program().buffer(port.here).bytes);
  }
}

void Executor::advance_reductions() {
  reducing_ = 0;
  for (UnitState& state : units_)
    if (!state.reduction.advance(*space_)) ++reducing_;
}

/// Waits for the sums of a stage and checks this replica's part of them. The weights are updated in
/// update_together().
void Executor::await_sums(UnitState& state, const StepSettings& settings, ActionRecord& record) {
  const std::int64_t begin = now();
  while (!state.reduction.advance(*space_)) {
    awaited_.store(state.reduction.awaited(), std::memory_order_relaxed);
    advance_reductions();
  }
  awaited_.store(-1, std::memory_order_relaxed);
  record.receive_wait += now() - begin;
  const Parameters& parameters = state.unit.run->parameters();
  float* const sums = parameters.accumulated().data() + state.reduction.first();
  const bool finite = parameters.finite(*space_, {reinterpret_cast<std::byte*>(sums), DType::F32},
                                        state.reduction.elements());
  finite_ &= finite;
  if (settings.check_exceptions && !finite) {
    // The sum overflowed: all numbers that were added are finite.
    fail(ErrorKind::Numeric,
         "the sum over replicas of the gradient or statistic of {} is not finite, stage {}, "
         "iteration {}; use a smaller --loss-scaling",
         first_not_finite_sum(state.program->graph(), parameters, *space_, state.reduction.first(),
                              state.reduction.elements()),
         state.unit.stage, settings.iteration + 1);
  }
  record.done = {.kind = ActionKind::Update, .stage = state.unit.stage};
}

/// Runs after all entries of this process, so that no process waits for a message from a process
/// that is waiting here. Its time counts for the last entry.
void Executor::update_together(const StepSettings& settings) {
  skipped_ = world_->maximum(finite_ ? 0 : 1) != 0;
  if (!skipped_) {
    const std::int32_t total = micro_batches_ * plan_->ranks.replicas;
    ops::Update update = settings.update;
    update.step = static_cast<std::uint64_t>(settings.iteration);
    // The product may not fit in float.
    const double scale =
        1.0 / (static_cast<double>(settings.loss_scaling) * static_cast<double>(total));
    update.gradient_scale = static_cast<float>(scale * clipping(settings.clip_norm, scale));
    for (UnitState& state : units_) state.unit.run->parameters().update(*space_, update, total);
    device::fence(*space_);
    share_weights();
  }
  records_.back().end = now();
}

/// The factor that brings the norm of all gradients, times `scale`, down to `clip_norm`; 1 if it is
/// not larger. Every gradient is squared by one replica, and all ranks add the squares in the order
/// of the parameters, so that the factor has the same bits everywhere and in every layout.
double Executor::clipping(double clip_norm, double scale) {
  if (clip_norm <= 0.0) return 1.0;
  std::fill(squares_.begin(), squares_.end(), 0.0);
  for (UnitState& state : units_) {
    Parameters& parameters = state.unit.run->parameters();
    if (shared_out(parameters) || state.unit.replica == 0)
      parameters.square_gradients(*space_, squares_);
  }
  world_->add(squares_);
  const double norm = scale * std::sqrt(std::accumulate(squares_.begin(), squares_.end(), 0.0));
  return norm > clip_norm ? clip_norm / norm : 1.0;
}

/// If the update is divided, each replica sends the weights that it updated to the others.
void Executor::share_weights() {
  for (UnitState& state : units_)
    if (state.weights) state.weights->start();
  for (UnitState& state : units_) {
    if (!state.weights) continue;
    while (!state.weights->done())
      awaited_.store(state.weights->awaited(), std::memory_order_relaxed);
    awaited_.store(-1, std::memory_order_relaxed);
    state.unit.run->parameters().refresh_copies(*space_);
  }
  device::fence(*space_);
}

}  // namespace millrace::pipeline
