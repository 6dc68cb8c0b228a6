// SPDX-License-Identifier: Apache-2.0
#include "pipeline/bound_program.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "device/arena.hpp"
#include "device/queues.hpp"
#include "pipeline/op_shapes.hpp"

namespace millrace::pipeline {
namespace {

using device::aligned;
using device::ExecutionSpace;
using models::ParameterRole;

}  // namespace

BoundProgram::BoundProgram(const Graph& graph, StageProgram program, Slots slots,
                           ops::Backend& backend, const Parameters& parameters,
                           LabelSmoothing label_smoothing)
    : graph_(&graph),
      program_(std::move(program)),
      plan_(plan_memory(program_, slots, device::kAlignment)),
      parameters_(&parameters),
      label_smoothing_(label_smoothing),
      claimed_(graph, program_, backend) {
  prepare_linear(backend);
  place_workspace();
  divide();
}

void BoundProgram::divide() {
  if (program_.options.mode == Mode::Training && parameters_->reduce().replicas > 1) fill_buckets();
  std::size_t backward = 0;
  for (const Phase phase : {Phase::Forward, Phase::BackwardInput, Phase::BackwardWeight}) {
    const std::vector<Call>& calls = program_.phase(phase);
    std::vector<Part>& parts = parts_[static_cast<std::size_t>(phase)];
    parts.emplace_back();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const bool begins_bucket =
          i > 0 && phase != Phase::Forward &&
          std::ranges::find(buckets_, backward + i, &Bucket::calls) != buckets_.end();
      if (exchanges_before(calls[i].kind) || begins_bucket) parts.push_back({i, i});
      ++parts.back().last;
    }
    if (phase != Phase::Forward) backward += calls.size();
  }
}

std::vector<std::size_t> BoundProgram::calls_for_gradients() const {
  std::vector<std::size_t> needed(graph_->ops.size());
  std::vector<OpId> left;  // ops whose gradients a later call adds
  std::size_t calls = 0;
  for (const Phase phase : {Phase::BackwardInput, Phase::BackwardWeight}) {
    const auto p = static_cast<std::size_t>(phase);
    for (std::size_t i = 0; i < program_.calls[p].size(); ++i) {
      needed[program_.calls[p][i].op.at()] = ++calls;
      if (!left_[p][i]) continue;
      left.push_back(program_.calls[p][i].op);
      if (left_[p][i]->added == 0) continue;
      for (const OpId op : left) needed[op.at()] = calls;
      left.clear();
    }
  }
  return needed;
}

/// A backward pass completes gradients from the last op on, so a bucket has neighbors in the order
/// of the graph, and is complete when they are and all behind them.
void BoundProgram::fill_buckets() {
  const std::vector<std::size_t> needed = calls_for_gradients();
  const std::vector<models::ParameterId>& ids = parameters_->ids();
  Bucket bucket{.first = ids.size(), .last = ids.size()};
  const std::int64_t most = parameters_->reduce().most(parameters_->learning_elements());
  std::int64_t elements = 0;
  for (std::size_t place = ids.size(); place-- > 0;) {
    const models::Parameter& parameter = graph_->parameter(ids[place]);
    if (!parameter.learns()) continue;
    const std::size_t calls = needed[parameter.op.at()];
    const bool fits = elements + parameter.elements() <= most;
    if (!fits && elements > 0 && calls > bucket.calls) {
      buckets_.push_back(std::exchange(bucket, {.first = bucket.first, .last = bucket.first}));
      bucket.calls = buckets_.back().calls;
      elements = 0;
    }
    bucket.calls = std::max(bucket.calls, calls);
    bucket.first = place;
    elements += parameter.elements();
  }
  bucket.first = 0;
  buckets_.push_back(bucket);
}

BufferId BoundProgram::exchanged(Phase phase, std::size_t part) const {
  const Call& first = program_.phase(phase)[parts_of(phase)[part].first];
  return exchanges_before(first.kind) ? first.at(Role::Exchange) : BufferId{};
}

std::size_t BoundProgram::backward_calls(Phase phase, std::size_t part) const {
  const std::size_t before =
      phase == Phase::BackwardWeight ? program_.phase(Phase::BackwardInput).size() : 0;
  return before + parts_of(phase)[part].last;
}

bool BoundProgram::calls(KernelKind kind, OpId op) const {
  for (std::size_t p = 0; p < kPhases; ++p) {
    const std::vector<Call>& calls = program_.calls[p];
    for (std::size_t i = 0; i < calls.size(); ++i)
      if (calls[i].kind == kind && calls[i].op == op && !claimed_.contains(p, i)) return true;
  }
  return false;
}

void BoundProgram::prepare_linear(const ops::Backend& backend) {
  const std::int64_t batch = program_.options.batch;
  const DType type = program_.options.type;
  for (const Call& call : program_.phase(Phase::Forward)) {
    if (call.kind != KernelKind::LinearForward) continue;
    const ops::Passes passes{calls(KernelKind::LinearBackwardInput, call.op),
                             calls(KernelKind::LinearBackwardWeight, call.op),
                             calls(KernelKind::LinearForward, call.op)};
    if (passes == ops::Passes{false, false, false}) continue;
    const bool conv = std::holds_alternative<models::Conv>(graph_->op(call.op).kind);
    linear_.push_back({call.op,
                       conv ? backend.convolution(conv_shape(*graph_, call.op, batch), type, passes)
                            : backend.dense(dense_shape(*graph_, call.op, batch), type, passes),
                       0, 0});
  }
}

BoundProgram::NormNeeds BoundProgram::needs_of_norms() const {
  NormNeeds needs;
  for (const auto& calls : program_.calls) {
    for (const Call& call : calls) {
      if (!is_norm(call.kind)) continue;
      const ops::NormShape shape = norm_shape(*graph_, call.op, program_.options.batch);
      needs.floats = std::max(needs.floats, shape.scratch_floats());
      needs.counters = std::max(needs.counters, shape.counters());
    }
  }
  return needs;
}

bool BoundProgram::adds_gradients(OpId norm) const {
  return !device::kOnCores && calls(KernelKind::NormBackwardWeight, norm) &&
         (calls(KernelKind::NormBackwardReduce, norm) || calls(KernelKind::NormBackwardSums, norm));
}

void BoundProgram::place_workspace() {
  std::int64_t end = 0;
  const NormNeeds norms = needs_of_norms();
  std::int64_t scratch =
      std::max(norms.floats * static_cast<std::int64_t>(sizeof(float)), claimed_.scratch_bytes());
  for (Linear& linear : linear_) {
    const ops::LinearBytes bytes = linear.kernel->bytes();
    linear.packed_forward = end;
    end += aligned(bytes.packed_forward);
    linear.packed_backward = end;
    end += aligned(bytes.packed_backward);
    scratch = std::max(scratch, bytes.scratch);
  }
  claimed_offset_ = end;
  end += claimed_.packed_bytes();
  counters_offset_ = end;
  counters_ = norms.counters;
  end += aligned(counters_ * static_cast<std::int64_t>(sizeof(std::uint32_t)));
  gradients_offset_ = end;
  end += place_gradients();
  stash_offset_ = end;
  end += plan_.slots.stash * plan_.stash_slot_bytes;
  weight_offset_ = end;
  end += plan_.slots.weight * plan_.weight_slot_bytes;
  outbox_offset_ = end;
  end += plan_.slots.outbox * plan_.outbox_slot_bytes;
  transient_offset_ = end;
  end += aligned(plan_.transient_bytes);
  values_offset_ = end;
  end += aligned(sizeof(ops::CallValues));
  scratch_offset_ = end;
  bytes_ = end + aligned(scratch);
}

/// Returns the bytes of the gradients that ops leave. One without room behind those before it is
/// placed at the beginning, and those are added before.
std::int64_t BoundProgram::place_gradients() {
  std::size_t count = 0;
  std::int64_t most = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    left_[p].resize(program_.calls[p].size());
    Left* last = nullptr;
    std::int64_t end = 0;
    for (std::size_t i = 0; i < left_[p].size(); ++i) {
      const Call& call = program_.calls[p][i];
      if (call.kind != KernelKind::LinearBackwardWeight || claimed_.contains(p, i)) continue;
      Linear& linear = *linear_of(call);
      const std::int64_t bytes = aligned(linear.kernel->bytes().left_gradient);
      if (bytes == 0 || bytes > kMostLeft) continue;
      const bool joins = last != nullptr && end + bytes <= kMostLeft;
      if (!joins) end = 0;
      Left& left = left_[p][i].emplace(Left{.place = count++, .offset = end});
      if (joins) left.added += std::exchange(last->added, 0);
      linear.left = left;
      last = &left;
      end += bytes;
      most = std::max(most, end);
    }
  }
  left_gradients_.resize(count);
  return most;
}

BoundProgram::Linear* BoundProgram::linear_of(const Call& call) {
  if (!is_linear(call.kind)) return nullptr;
  const auto found = std::find_if(linear_.begin(), linear_.end(),
                                  [&](const Linear& linear) { return linear.op == call.op; });
  MILLRACE_ASSERT(found != linear_.end());
  return &*found;
}

Place BoundProgram::place(BufferId buffer) const {
  if (!buffer.valid()) return {};
  const Placement& p = plan_.placements.at(buffer.at());
  switch (p.region) {
    case Region::Stash:
      return {.base = workspace_ + stash_offset_ + p.offset,
              .stash_stride = plan_.stash_slot_bytes};
    case Region::Weight:
      return {.base = workspace_ + weight_offset_ + p.offset,
              .weight_stride = plan_.weight_slot_bytes};
    case Region::Outbox:
      return {.base = workspace_ + outbox_offset_ + p.offset,
              .outbox_stride = plan_.outbox_slot_bytes};
    case Region::Transient:
      return {.base = workspace_ + transient_offset_ + p.offset};
    case Region::Unused:
      break;
  }
  return {};
}

std::byte* BoundProgram::address(BufferId buffer, const RunContext& context) const {
  return place(buffer).at(context);
}

void BoundProgram::bind(std::byte* workspace) {
  workspace_ = workspace;
  kept_.clear();
  bind_linear();
  claimed_.bind(*graph_, program_, *parameters_, workspace_ + claimed_offset_,
                workspace_ + scratch_offset_);
  make_kernels();
}

void BoundProgram::bind_linear() {
  for (const Linear& linear : linear_) {
    ops::LinearMemory memory;
    const auto kernel = parameter_of(*graph_, linear.op, ParameterRole::Kernel);
    memory.kernel = parameters_->kernel(kernel);
    memory.dkernel = parameters_->gradient(kernel);
    if (const auto bias = parameter_of(*graph_, linear.op, ParameterRole::Bias); bias.valid()) {
      memory.bias = parameters_->value(bias);
      memory.dbias = parameters_->gradient(bias);
    }
    memory.packed_forward = workspace_ + linear.packed_forward;
    memory.packed_backward = workspace_ + linear.packed_backward;
    memory.scratch = workspace_ + scratch_offset_;
    if (linear.left) {
      memory.left_gradient = workspace_ + gradients_offset_ + linear.left->offset;
      left_gradients_[linear.left->place] = {memory.dkernel, memory.left_gradient,
                                             graph_->parameter(kernel).elements()};
    }
    linear.kernel->bind(memory);
  }
}

void BoundProgram::make_kernels() {
  const std::function<Place(BufferId)> place_of = [this](BufferId buffer) { return place(buffer); };
  for (std::size_t p = 0; p < kPhases; ++p) {
    kernels_[p].clear();
    for (std::size_t i = 0; i < program_.calls[p].size(); ++i) {
      const Call& call = program_.calls[p][i];
      if (claimed_.contains(p, i)) {
        kernels_[p].push_back(claimed_.kernel(program_, p, i, place_of));
        continue;
      }
      const Linear* const linear = linear_of(call);
      kernels_[p].push_back(make_kernel(
          {.graph = *graph_,
           .call = call,
           .batch = program_.options.batch,
           .type = program_.options.type,
           .images = image_type(program_.options),
           .parameters = *parameters_,
           .norm_scratch = {reinterpret_cast<float*>(workspace_ + scratch_offset_), counters()},
           .adds_gradients = is_norm(call.kind) && adds_gradients(call.op),
           .label_smoothing = label_smoothing_,
           .values = values(),
           .linear = linear != nullptr ? linear->kernel.get() : nullptr,
           .place = place_of}));
    }
  }
}

void BoundProgram::begin_step(const ExecutionSpace& space) {
  const bool backward = program_.options.mode == Mode::Training;
  for (const Linear& linear : linear_) linear.kernel->pack(space, backward);
  claimed_.pack(space);
  ops::clear_counters(space, counters(), counters_);
}

void BoundProgram::set_values(const ExecutionSpace& space, Phase phase, const Part& part,
                              const RunContext& context) const {
  const std::span calls =
      std::span(program_.phase(phase)).subspan(part.first, part.last - part.first);
  if (std::ranges::any_of(calls, [](const Call& call) { return reads_values(call.kind); }))
    ops::set_values(space, values(), parameters_->step(), context.first_sample);
}

void BoundProgram::queue_call(const ExecutionSpace& space, Phase phase, std::size_t call,
                              const RunContext& context, bool apart) const {
  const auto p = static_cast<std::size_t>(phase);
  kernels_[p][call](space, context);
  const Call& made = program_.calls[p][call];
  if (made.kind == KernelKind::LossBackward && !context.logit_gradient.empty()) {
    device::fence(space);
    write_values({address(made.at(Role::Dx), context), program_.options.type},
                 context.logit_gradient);
  }
  const auto& left = left_[p][call];
  if (!left || (left->added == 0 && !apart)) return;
  const std::size_t added = apart ? 1 : left->added;
  const auto gradients = std::span(left_gradients_).subspan(left->place + 1 - added, added);
  device::dispatch(program_.options.type,
                   [&]<class T>() { ops::accumulate_parts<T>(space, gradients, context.first); });
}

void BoundProgram::queue_calls(const ExecutionSpace& space, Phase phase, std::size_t part,
                               const RunContext& context) const {
  const Part& calls = parts_of(phase)[part];
  for (std::size_t i = calls.first; i < calls.last; ++i)
    queue_call(space, phase, i, context, false);
}

void BoundProgram::queue_part(const ExecutionSpace& space, Phase phase, std::size_t part,
                              const RunContext& context) const {
  set_values(space, phase, parts_of(phase)[part], context);
  queue_calls(space, phase, part, context);
}

void BoundProgram::run_part(const ExecutionSpace& space, Phase phase, std::size_t part,
                            const RunContext& context) {
  const PartKey key{
      phase,          part,          context.stash_slot, context.weight_slot, context.outbox_slot,
      context.member, context.first, context.seed};
  set_values(space, phase, parts_of(phase)[part], context);
  if (context.logit_gradient.empty())
    kept_.run(space, key, [&] { queue_calls(space, phase, part, context); });
  else
    queue_calls(space, phase, part, context);
  device::settle(space);
}

void BoundProgram::run_part(const ExecutionSpace& space, Phase phase, std::size_t part,
                            const RunContext& context,
                            const std::function<void(const Call&, bool)>& after) {
  const Part& calls = parts_of(phase)[part];
  set_values(space, phase, calls, context);
  for (std::size_t i = calls.first; i < calls.last; ++i) {
    queue_call(space, phase, i, context, true);
    device::fence(space);
    after(program_.phase(phase)[i], !claimed_.is_within(static_cast<std::size_t>(phase), i));
  }
}

void BoundProgram::profile(const ExecutionSpace& space, Phase phase, const RunContext& context,
                           std::span<double> seconds_by_op) {
  MILLRACE_ASSERT(parts(phase) == 1);
  set_values(space, phase, parts_of(phase).front(), context);
  using Clock = std::chrono::steady_clock;
  const auto p = static_cast<std::size_t>(phase);
  for (std::size_t i = 0; i < kernels_[p].size(); ++i) {
    const Clock::time_point begin = Clock::now();
    queue_call(space, phase, i, context, true);
    device::fence(space);
    seconds_by_op[program_.calls[p][i].op.at()] +=
        std::chrono::duration<double>(Clock::now() - begin).count();
  }
}

}  // namespace millrace::pipeline
