// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "device/arena.hpp"
#include "pipeline/bound_program.hpp"
#include "pipeline/op_shapes.hpp"

namespace millrace::pipeline {
namespace {

using device::aligned;
using models::ParameterRole;

/// The call as a vendor sees it. Only linear ops, norms and activations are offered.
std::optional<ops::OfferedCall> offer(const Graph& graph, const Call& call, std::int64_t batch) {
  ops::OfferedCall offered;
  if (is_norm(call.kind)) {
    offered.shape = norm_shape(graph, call.op, batch);
    offered.epsilon = norm_epsilon(graph, call.op);
  } else if (is_linear(call.kind)) {
    if (std::holds_alternative<models::Conv>(graph.op(call.op).kind))
      offered.shape = conv_shape(graph, call.op, batch);
    else
      offered.shape = dense_shape(graph, call.op, batch);
  } else if (call.kind != KernelKind::ActivationForward &&
             call.kind != KernelKind::ActivationBackward) {
    return {};
  }
  offered.kind = call.kind;
  offered.fn = call.fn;
  offered.with_skip = call.with_skip;
  for (std::size_t role = 0; role < kRoles; ++role)
    offered.buffers[role] = call.buffers[role].value;
  return offered;
}

/// The calls from `first` to the end of their run.
std::vector<ops::OfferedCall> run_from(const Graph& graph, const StageProgram& program,
                                       const std::vector<Call>& calls, std::size_t first) {
  std::vector<ops::OfferedCall> run;
  for (std::size_t i = first; i < calls.size(); ++i) {
    if (i > first && exchanges_before(calls[i].kind)) break;
    const auto offered = offer(graph, calls[i], program.options.batch);
    if (!offered) break;
    run.push_back(*offered);
  }
  return run;
}

ops::CallParameters parameters_of(const Graph& graph, const Call& call,
                                  const Parameters& parameters) {
  ops::CallParameters p;
  const auto find = [&](ParameterRole role) { return parameter_of(graph, call.op, role); };
  const auto bind = [&](ParameterRole role, const float*& value, float*& gradient) {
    if (const auto id = find(role); id.valid()) {
      value = parameters.value(id);
      gradient = parameters.gradient(id);
    }
  };
  if (const auto kernel = find(ParameterRole::Kernel); kernel.valid()) {
    p.kernel = parameters.kernel(kernel);
    p.dkernel = parameters.gradient(kernel);
  }
  bind(ParameterRole::Bias, p.bias, p.dbias);
  bind(ParameterRole::Gamma, p.gamma, p.dgamma);
  bind(ParameterRole::Beta, p.beta, p.dbeta);
  p.running = running_sums(graph, call, parameters);
  return p;
}

}  // namespace

ClaimedRuns::ClaimedRuns(const Graph& graph, const StageProgram& program,
                         const ops::Backend& backend) {
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    const std::vector<Call>& calls = program.calls[phase];
    for (std::size_t i = 0; i < calls.size();) {
      const std::vector<ops::OfferedCall> run = run_from(graph, program, calls, i);
      ops::RunClaim claim =
          run.empty() ? ops::RunClaim{} : backend.claim(run, program.options.type);
      const std::size_t claimed = claim.calls;
      MILLRACE_ASSERT(claimed <= run.size());
      if (claimed > 0) {
        packed_bytes_ += aligned(claim.run->bytes().packed);
        scratch_bytes_ = std::max(scratch_bytes_, claim.run->bytes().scratch);
        runs_.push_back({phase, i, std::move(claim)});
      }
      i += std::max<std::size_t>(claimed, 1);
    }
  }
}

const ClaimedRuns::Run* ClaimedRuns::find(std::size_t phase, std::size_t call) const {
  const auto run = std::find_if(runs_.begin(), runs_.end(), [&](const Run& r) {
    return r.phase == phase && r.first <= call && call < r.first + r.claim.calls;
  });
  return run != runs_.end() ? &*run : nullptr;
}

bool ClaimedRuns::is_within(std::size_t phase, std::size_t call) const {
  const Run* const run = find(phase, call);
  return run != nullptr && call + 1 < run->first + run->claim.calls;
}

void ClaimedRuns::bind(const Graph& graph, const StageProgram& program,
                       const Parameters& parameters, std::byte* packed, std::byte* scratch) {
  for (const Run& run : runs_) {
    std::vector<ops::CallParameters> calls;
    for (std::size_t i = 0; i < run.claim.calls; ++i)
      calls.push_back(parameters_of(graph, program.calls[run.phase][run.first + i], parameters));
    run.claim.run->bind(calls, packed, scratch);
    packed += aligned(run.claim.run->bytes().packed);
  }
}

void ClaimedRuns::pack(const device::ExecutionSpace& space) {
  for (const Run& run : runs_) run.claim.run->pack(space);
}

Kernel ClaimedRuns::kernel(const StageProgram& program, std::size_t phase, std::size_t call,
                           const std::function<Place(BufferId)>& place) const {
  const Run* run = find(phase, call);
  MILLRACE_ASSERT(run != nullptr);
  if (call != run->first) return [](const device::ExecutionSpace&, const RunContext&) {};
  std::vector<std::array<Place, kRoles>> places(run->claim.calls);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Call& at = program.calls[phase][run->first + i];
    std::transform(at.buffers.begin(), at.buffers.end(), places[i].begin(), place);
  }
  return [claimed = run->claim.run.get(), places,
          buffers = std::vector<ops::CallBuffers>(places.size())](
             const device::ExecutionSpace& space, const RunContext& c) mutable {
    for (std::size_t i = 0; i < places.size(); ++i)
      std::transform(places[i].begin(), places[i].end(), buffers[i].begin(),
                     [&](const Place& p) { return p.at(c); });
    claimed->run(space, buffers, c.first);
  };
}

}  // namespace millrace::pipeline
