// SPDX-License-Identifier: Apache-2.0
#include "pipeline/stage_run.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "pipeline/exceptions.hpp"

namespace millrace::pipeline {
namespace {

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

void run_timed(BoundProgram& program, const device::ExecutionSpace& space, Phase phase,
               std::size_t part, const RunContext& where, Recording& recording) {
  const Call* const first = program.program().phase(phase).data();
  device::fence(space);  // what came before is no part of a kernel
  std::int64_t begin = steady_nanoseconds();
  program.run_part(space, phase, part, where, [&](const Call& call) {
    recording.add_kernel(phase, static_cast<std::size_t>(&call - first), begin,
                         steady_nanoseconds());
    begin = steady_nanoseconds();
  });
}

}  // namespace

RunContext StageRun::context(std::int32_t micro_batch) const {
  return {.stash_slot = micro_batch % slots.stash,
          .weight_slot = micro_batch % slots.weight,
          .outbox_slot = slots.outbox > 0 ? micro_batch % slots.outbox : 0,
          .member = unit.replica % span,
          .first = micro_batch == 0,
          .seed = seed,
          .iteration = iteration,
          .first_sample = (unit.replica + std::int64_t{replicas} * micro_batch) *
                          program->program().options.batch};
}

void StageRun::begin_step(const device::ExecutionSpace& space, const StepSettings& settings) {
  seed = settings.seed;
  iteration = settings.iteration;
  if (!settings.weights_packed) program->begin_step(space, settings.loss_scaling);
}

void StageRun::run_part(const device::ExecutionSpace& space, Phase phase, std::size_t part,
                        std::int32_t micro_batch, const StepSettings& settings,
                        Recording& recording) const {
  const RunContext where = context(micro_batch);
  if (settings.time_kernels) return run_timed(*program, space, phase, part, where, recording);
  if (!settings.check_exceptions) return program->run_part(space, phase, part, where);
  const std::optional<Finding> found = run_checked(*program, space, phase, part, where);
  if (!found) return;
  fail(
      ErrorKind::Numeric,
      "op {} made a number that is not finite: {} of kernel {}, in the {} of micro-batch {}, stage "
      "{}, replica {}, update {}",
      found->op, found->result, found->kernel, name_of(phase), micro_batch, unit.stage,
      unit.replica, iteration + 1);
}

std::vector<StageRun> stage_runs(const Graph& graph, const PipelinePlan& plan,
                                 std::span<const LocalStage> units) {
  const bool training = has_backward(plan.schedule);
  const std::int32_t replicas = plan.ranks.replicas;
  const std::int32_t span = training ? span_among(graph, replicas) : 1;
  const std::vector<Slots> slots = slots_of(graph, plan);
  std::vector<StageRun> runs;
  runs.reserve(units.size());
  for (const LocalStage& unit : units)
    runs.push_back({.unit = unit,
                    .program = training ? &unit.state->training() : &unit.state->evaluation(),
                    .slots = slots[static_cast<std::size_t>(unit.stage)],
                    .replicas = replicas,
                    .span = span});
  return runs;
}

std::size_t find_run(std::span<const StageRun> runs, std::int32_t replica, std::int32_t stage) {
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const StageRun& run) {
    return run.unit.replica == replica && run.unit.stage == stage;
  });
  MILLRACE_ASSERT(found != runs.end());
  return static_cast<std::size_t>(found - runs.begin());
}

}  // namespace millrace::pipeline
