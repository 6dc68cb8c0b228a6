// SPDX-License-Identifier: Apache-2.0
#include "pipeline/bound_program.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "device/arena.hpp"
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
      label_smoothing_(label_smoothing) {
  divide();
  prepare_weighted(backend);
  place_workspace();
}

void BoundProgram::divide() {
  for (std::size_t p = 0; p < kPhases; ++p) {
    const std::vector<Call>& calls = program_.calls[p];
    parts_[p].emplace_back();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (exchanges_before(calls[i].kind)) parts_[p].push_back({i, i});
      ++parts_[p].back().last;
    }
  }
}

BufferId BoundProgram::exchanged(Phase phase, std::size_t part) const {
  return program_.phase(phase)[parts_of(phase)[part].first].at(Role::Exchange);
}

bool BoundProgram::calls(KernelKind kind, OpId op) const {
  return std::any_of(program_.calls.begin(), program_.calls.end(), [&](const auto& phase) {
    return std::any_of(phase.begin(), phase.end(),
                       [&](const Call& call) { return call.kind == kind && call.op == op; });
  });
}

void BoundProgram::prepare_weighted(ops::Backend& backend) {
  const std::int64_t batch = program_.options.batch;
  const DType type = program_.options.type;
  for (const Call& call : program_.phase(Phase::Forward)) {
    if (call.kind != KernelKind::WeightedForward) continue;
    const ops::Passes passes{calls(KernelKind::WeightedBackwardInput, call.op),
                             calls(KernelKind::WeightedBackwardWeight, call.op)};
    const bool conv = std::holds_alternative<models::Conv>(graph_->op(call.op).kind);
    weighted_.push_back(
        {call.op,
         conv ? backend.convolution(conv_shape(*graph_, call.op, batch), type, passes)
              : backend.dense(dense_shape(*graph_, call.op, batch), type, passes),
         0, 0});
  }
}

std::int64_t BoundProgram::scratch_floats_of_norms() const {
  std::int64_t floats = 0;
  for (const auto& calls : program_.calls) {
    for (const Call& call : calls) {
      if (!is_norm(call.kind)) continue;
      const ops::NormShape shape = norm_shape(*graph_, call.op, program_.options.batch);
      floats = std::max(floats, shape.scratch_floats());
    }
  }
  return floats;
}

void BoundProgram::place_workspace() {
  std::int64_t end = 0;
  std::int64_t scratch = scratch_floats_of_norms() * static_cast<std::int64_t>(sizeof(float));
  for (Weighted& w : weighted_) {
    const ops::WeightedBytes bytes = w.kernel->bytes();
    w.packed_forward = end;
    end += aligned(bytes.packed_forward);
    w.packed_backward = end;
    end += aligned(bytes.packed_backward);
    scratch = std::max(scratch, bytes.scratch);
  }
  stash_offset_ = end;
  end += plan_.slots.stash * plan_.stash_slot_bytes;
  weight_offset_ = end;
  end += plan_.slots.weight * plan_.weight_slot_bytes;
  outbox_offset_ = end;
  end += plan_.slots.outbox * plan_.outbox_slot_bytes;
  transient_offset_ = end;
  end += aligned(plan_.transient_bytes);
  scratch_offset_ = end;
  bytes_ = end + aligned(scratch);
}

ops::WeightedOp& BoundProgram::weighted(OpId op) const {
  const auto found = std::find_if(weighted_.begin(), weighted_.end(),
                                  [&](const Weighted& w) { return w.op == op; });
  MILLRACE_ASSERT(found != weighted_.end());
  return *found->kernel;
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
  for (const Weighted& w : weighted_) {
    ops::WeightedMemory memory;
    const auto kernel = parameter_of(*graph_, w.op, ParameterRole::Kernel);
    memory.kernel = parameters_->kernel(kernel);
    memory.dkernel = parameters_->gradient(kernel);
    if (const auto bias = parameter_of(*graph_, w.op, ParameterRole::Bias); bias.valid()) {
      memory.bias = parameters_->value(bias);
      memory.dbias = parameters_->gradient(bias);
    }
    memory.packed_forward = workspace + w.packed_forward;
    memory.packed_backward = workspace + w.packed_backward;
    memory.scratch = workspace + scratch_offset_;
    w.kernel->bind(memory);
  }
  for (std::size_t p = 0; p < kPhases; ++p) {
    kernels_[p].clear();
    for (const Call& call : program_.calls[p]) {
      kernels_[p].push_back(is_weighted(call.kind) ? make_weighted(call) : make_unweighted(call));
    }
  }
}

void BoundProgram::begin_step(const ExecutionSpace& space, float loss_scaling) {
  loss_scaling_ = loss_scaling;
  const bool backward = program_.options.mode == Mode::Training;
  for (const Weighted& w : weighted_) w.kernel->pack(space, backward);
}

void BoundProgram::run(const ExecutionSpace& space, Phase phase, const RunContext& context) {
  MILLRACE_ASSERT(parts(phase) == 1);
  run_part(space, phase, 0, context);
}

void BoundProgram::run_part(const ExecutionSpace& space, Phase phase, std::size_t part,
                            const RunContext& context) {
  const std::vector<Kernel>& kernels = kernels_[static_cast<std::size_t>(phase)];
  const auto [first, last] = parts_of(phase)[part];
  for (std::size_t i = first; i < last; ++i) kernels[i](space, context);
  device::fence(space);
}

void BoundProgram::run_part(const ExecutionSpace& space, Phase phase, std::size_t part,
                            const RunContext& context,
                            const std::function<void(const Call&)>& after) {
  const std::vector<Kernel>& kernels = kernels_[static_cast<std::size_t>(phase)];
  const auto [first, last] = parts_of(phase)[part];
  for (std::size_t i = first; i < last; ++i) {
    kernels[i](space, context);
    device::fence(space);
    after(program_.phase(phase)[i]);
  }
}

void BoundProgram::profile(const ExecutionSpace& space, Phase phase, const RunContext& context,
                           std::span<double> seconds_by_op) {
  MILLRACE_ASSERT(parts(phase) == 1);
  using Clock = std::chrono::steady_clock;
  const auto p = static_cast<std::size_t>(phase);
  for (std::size_t i = 0; i < kernels_[p].size(); ++i) {
    const Clock::time_point begin = Clock::now();
    kernels_[p][i](space, context);
    device::fence(space);
    seconds_by_op[program_.calls[p][i].op.at()] +=
        std::chrono::duration<double>(Clock::now() - begin).count();
  }
}

Kernel BoundProgram::make_unweighted(const Call& call) const {
  const std::function<Place(BufferId)> place_of = [this](BufferId buffer) { return place(buffer); };
  const Binding binding{.graph = *graph_,
                        .call = call,
                        .batch = program_.options.batch,
                        .images = image_type(program_.options),
                        .parameters = *parameters_,
                        .scratch = reinterpret_cast<float*>(workspace_ + scratch_offset_),
                        .label_smoothing = label_smoothing_,
                        .loss_scaling = &loss_scaling_,
                        .place = place_of};
  return make_kernel(binding, program_.options.type);
}

Kernel BoundProgram::make_weighted(const Call& call) const {
  ops::WeightedOp* op = &weighted(call.op);
  const Place x = place(call.at(Role::X));
  const Place y = place(call.at(Role::Y));
  const Place dy = place(call.at(Role::Dy));
  const Place dx = place(call.at(Role::Dx));
  if (call.kind == KernelKind::WeightedForward) {
    return [=](const ExecutionSpace& space, const RunContext& c) {
      op->forward(space, y.at(c), x.at(c));
    };
  }
  if (call.kind == KernelKind::WeightedBackwardInput) {
    return [=](const ExecutionSpace& space, const RunContext& c) {
      op->backward_input(space, dx.at(c), dy.at(c));
    };
  }
  return [=](const ExecutionSpace& space, const RunContext& c) {
    op->backward_weight(space, dy.at(c), x.at(c), c.first);
  };
}

}  // namespace millrace::pipeline
