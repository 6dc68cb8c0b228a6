// SPDX-License-Identifier: Apache-2.0
#include "pipeline/stage_run.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "device/queues.hpp"

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
  program.run_part(space, phase, part, where, [&](const Call& call, bool) {
    recording.add_kernel(phase, static_cast<std::size_t>(&call - first), begin,
                         steady_nanoseconds());
    begin = steady_nanoseconds();
  });
}

// Finds the first kernel whose result has a number that is not finite. Only elements of tensors
// that a call wrote are checked; scratch, packed kernels and gaps between tensors may have any
// content.

/// The first result of a phase with an infinity or NaN.
struct Finding {
  std::string op;
  std::string kernel;
  std::string result;  ///< a role of the call's buffers, or the sum of a parameter
};

/// Roles of float32 results. If a call only reads such a buffer, it was checked after an earlier
/// call.
constexpr std::array kFloats = {Role::Statistics, Role::Coefficients, Role::Sums, Role::Loss};

class Search {
 public:
  Search(const BoundProgram& program, const device::ExecutionSpace& space,
         const RunContext& context)
      : program_(program), space_(space), context_(context) {}

  /// The first result of `call` that is not finite. Buffers are left out if they are not `stored`.
  [[nodiscard]] std::optional<Finding> look(const Call& call, bool stored) const {
    if (half_written(call)) return {};
    for (const Role role : kResultRoles)
      if (stored && call.has(role) && !finite(call.at(role), program_.program().options.type))
        return finding(call, std::string(name_of(role)));
    for (const Role role : kFloats)
      if (stored && call.has(role) && !finite(call.at(role), DType::F32))
        return finding(call, std::string(name_of(role)));
    // A variance above the range of float32 gives finite statistics (one over its root is 0), so
    // the running sums are checked too.
    const StepSums sums = row_of(call.kind).adds_to;
    return sums != StepSums::None ? look_at_sums(call, sums == StepSums::Gradients) : std::nullopt;
  }

 private:
  /// A joined output before its last operand: the rest is not written yet.
  [[nodiscard]] bool half_written(const Call& call) const {
    const auto parts = static_cast<std::int32_t>(program_.graph().op(call.op).inputs.size());
    return row_of(call.kind).work == Work::Slice && call.has(Role::X) && call.part + 1 < parts;
  }
  [[nodiscard]] bool finite(BufferId buffer, DType type) const {
    const std::int64_t elements = program_.program().buffer(buffer).bytes / size_of(type);
    return program_.parameters().finite(space_, {program_.address(buffer, context_), type},
                                        elements);
  }
  /// Checks the sums of the call's op over an iteration: gradients of parameters that learn, or
  /// running sums of statistics.
  [[nodiscard]] std::optional<Finding> look_at_sums(const Call& call, bool gradients) const {
    const Parameters& parameters = program_.parameters();
    for (const models::ParameterId id : parameters.ids()) {
      const models::Parameter& parameter = program_.graph().parameter(id);
      if (parameter.op != call.op || (gradients ? !parameter.learns() : parameter.trainable()))
        continue;
      float* const sum = gradients ? parameters.gradient(id) : parameters.running_sum(id);
      if (!parameters.finite(space_, {reinterpret_cast<std::byte*>(sum), DType::F32},
                             parameter.elements()))
        return finding(call,
                       (gradients ? "the gradient of " : "the running sum of ") + parameter.name);
    }
    return {};
  }
  [[nodiscard]] Finding finding(const Call& call, std::string result) const {
    return {program_.graph().op(call.op).name, std::string(name_of(call.kind)), std::move(result)};
  }

  const BoundProgram& program_;
  const device::ExecutionSpace& space_;
  const RunContext& context_;
};

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, kPhases> kNames = {"forward", "backward input",
                                                            "backward weight"};
  return kNames.at(static_cast<std::size_t>(phase));
}

/// Runs a part of a phase and checks the results after every call. Returns the first one that is
/// not finite.
std::optional<Finding> run_checked(BoundProgram& program, const device::ExecutionSpace& space,
                                   Phase phase, std::size_t part, const RunContext& context) {
  const Search search(program, space, context);
  std::optional<Finding> first;
  program.run_part(space, phase, part, context, [&](const Call& call, bool stored) {
    if (!first) first = search.look(call, stored);
  });
  return first;
}

bool has_loss(const StageRun& run) { return run.program->program().loss.valid(); }

}  // namespace

std::optional<Phase> exchanging_phase(ActionKind kind) {
  if (kind == ActionKind::Forward) return Phase::Forward;
  if (makes_input_gradient(kind)) return Phase::BackwardInput;
  return {};
}

std::size_t StageRun::parts(ActionKind kind) const {
  const std::optional<Phase> phase = exchanging_phase(kind);
  const bool weights = is_compute(kind) && kind != ActionKind::Forward && ends_micro_batch(kind);
  return (phase ? program->parts(*phase) : 0) +
         (weights ? program->parts(Phase::BackwardWeight) : 0);
}

RunContext StageRun::context(std::int32_t micro_batch) const {
  std::span<const float> gradient;
  if (micro_batch < std::ssize(own_losses))
    gradient = own_losses[static_cast<std::size_t>(micro_batch)].gradient;
  return {.stash_slot = micro_batch % slots.stash,
          .weight_slot = micro_batch % slots.weight,
          .outbox_slot = slots.outbox > 0 ? micro_batch % slots.outbox : 0,
          .member = unit.replica % span,
          .first = micro_batch == 0,
          .seed = seed,
          .first_sample = (unit.replica + std::int64_t{replicas} * micro_batch) *
                          program->program().options.batch,
          .logit_gradient = gradient};
}

void StageRun::begin_step(const device::ExecutionSpace& space, const StepSettings& settings) {
  seed = settings.seed;
  iteration = settings.iteration;
  if (!settings.weights_packed) program->begin_step(space);
  own_losses.clear();
}

void StageRun::ask_for_loss(const StepSettings& settings, const io::Batch& batch,
                            std::int32_t micro_batch) {
  const StageProgram& p = program->program();
  const auto count = static_cast<std::size_t>(batch.count);
  const std::span<const float> logits = unit.state->logits(*program, context(micro_batch));
  const std::size_t row = logits.size() / static_cast<std::size_t>(p.options.batch);
  if (std::ssize(own_losses) <= micro_batch)
    own_losses.resize(static_cast<std::size_t>(micro_batch) + 1);
  OwnLoss& own = own_losses[static_cast<std::size_t>(micro_batch)];
  if (p.options.mode == Mode::Training) own.gradient.resize(logits.size());
  if (count > 0)
    own.value = (*settings.loss)(
        {logits.first(count * row), batch.labels.first(count), batch.indices.first(count)},
        own.gradient);
  for (float& gradient : own.gradient) gradient *= settings.loss_scaling;
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

HostPlaces::HostPlaces(const StageRun& run, std::int32_t micro_batches)
    : small_bytes_(device::kHasQueues ? Stage::small_bytes(*run.program) : 0),
      loss_bytes_(has_loss(run) ? Stage::loss_bytes(*run.program) : 0),
      losses_at_(micro_batches * small_bytes_) {
  const std::int64_t bytes = losses_at_ + micro_batches * loss_bytes_;
  if (bytes > 0) memory_ = device::host_buffer(static_cast<std::size_t>(bytes));
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
                    .slots = slots[static_cast<std::size_t>(plan.unit(unit.replica, unit.stage))],
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
