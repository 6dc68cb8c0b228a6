// SPDX-License-Identifier: Apache-2.0
#include "pipeline/stage.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "device/arena.hpp"
#include "device/queues.hpp"

namespace millrace::pipeline {
namespace {

using device::Direction;
using device::ExecutionSpace;

/// What a program reads with its images, which is small.
std::array<BufferId, 4> small_inputs(const StageProgram& program) {
  return {program.scaling, program.mixing, program.labels, program.weights};
}

/// The same in a batch.
std::array<std::span<const std::byte>, 4> small_of(const io::Batch& batch) {
  return {std::as_bytes(batch.scaling), std::as_bytes(batch.mixing), std::as_bytes(batch.labels),
          std::as_bytes(batch.weights)};
}

/// Bytes of a buffer, in whole words; 0 if there is none.
std::int64_t bytes_of(const StageProgram& program, BufferId buffer) {
  return buffer.valid() ? device::aligned(program.buffer(buffer).bytes) : 0;
}

/// Where the results for each sample of a micro-batch lie among its losses.
struct Losses {
  BufferId loss = {};
  BufferId rank = {};
  BufferId labels = {};
  std::int64_t rank_at = 0;
  std::int64_t labels_at = 0;
  std::int64_t bytes = 0;
};

/// Labels are needed for counts by class, which evaluations have.
Losses losses_of(const StageProgram& p) {
  Losses losses{.loss = p.loss, .rank = p.rank};
  if (p.options.mode == Mode::Evaluation) losses.labels = p.labels;
  losses.rank_at = bytes_of(p, losses.loss);
  losses.labels_at = losses.rank_at + bytes_of(p, losses.rank);
  losses.bytes = losses.labels_at + bytes_of(p, losses.labels);
  return losses;
}

/// The nearest multiple of 2^-24.
double on_grid(double loss) {
  constexpr double kSteps = 0x1p24;
  return std::nearbyint(loss * kSteps) / kSteps;
}

ParameterOptions parameter_options(const StageOptions& options) {
  ParameterOptions parameters = options.parameters;
  parameters.precision.activations = options.type;
  return parameters;
}

}  // namespace

MicroBatchMetrics& MicroBatchMetrics::operator+=(const MicroBatchMetrics& other) {
  loss += other.loss;
  top1 += other.top1;
  top5 += other.top5;
  samples += other.samples;
  return *this;
}

Stage::Stage(const Graph& graph, OpRange range, const StageOptions& options, ops::Backend& backend)
    : parameters_(graph, range, parameter_options(options)), logits_(graph.logits()) {
  if (options.batch > 0) {
    const ProgramOptions training =
        with_segments(graph, range, static_cast<const ProgramOptions&>(options), options.slots);
    training_.emplace(graph, compile(graph, range, training), options.slots, backend, parameters_,
                      options.label_smoothing);
  }
  if (options.evaluation_batch > 0) {
    const ProgramOptions evaluation{.batch = options.evaluation_batch,
                                    .type = options.type,
                                    .mode = Mode::Evaluation,
                                    .images = options.images};
    // Validation reports the cross-entropy without the label smoothing of the training.
    evaluation_.emplace(graph, compile(graph, range, evaluation), options.evaluation_slots, backend,
                        parameters_, LabelSmoothing{});
  }
}

/// Training and evaluation share one workspace, so the larger one counts.
StageSize Stage::size() const {
  const BoundProgram* larger = nullptr;
  for (const auto* program : {&training_, &evaluation_})
    if (*program && (larger == nullptr || (*program)->bytes() > larger->bytes()))
      larger = &**program;
  StageSize size{.state = device::aligned(parameters_.bytes())};
  if (larger == nullptr) return size;
  size.kernels = larger->kernel_bytes();
  size.scratch = larger->scratch_bytes();
  size.activations = larger->bytes() - size.kernels;
  return size;
}

void Stage::bind(std::byte* memory) {
  parameters_.bind(memory);
  std::byte* workspace = memory + device::aligned(parameters_.bytes());
  if (training_) training_->bind(workspace);
  if (evaluation_) evaluation_->bind(workspace);
}

std::int64_t Stage::small_bytes(const BoundProgram& program) {
  std::int64_t bytes = 0;
  for (const BufferId buffer : small_inputs(program.program()))
    bytes += bytes_of(program.program(), buffer);
  return bytes;
}

void Stage::load(const ExecutionSpace& space, const BoundProgram& program,
                 const RunContext& context, const io::Batch& batch, std::byte* small) {
  keep_small(program, batch, small);
  queue_load(space, program, context, batch, small);
}

void Stage::keep_small(const BoundProgram& program, const io::Batch& batch, std::byte* small) {
  if constexpr (!device::kHasQueues) return;
  const std::array from = small_of(batch);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const BufferId buffer = small_inputs(program.program())[i];
    if (!buffer.valid()) continue;
    std::memcpy(small, from[i].data(), from[i].size());
    small += bytes_of(program.program(), buffer);
  }
}

void Stage::queue_load(const ExecutionSpace& space, const BoundProgram& program,
                       const RunContext& context, const io::Batch& batch, const std::byte* small) {
  const StageProgram& p = program.program();
  for (const Crossing& input : p.inputs) {
    if (input.value != Graph::input()) continue;
    std::byte* const to = program.address(input.activation, context);
    MILLRACE_ASSERT(std::ssize(batch.images) == p.buffer(input.activation).bytes);
    if (batch.on_device)
      device::queue_copy(space, Direction::Within, to, batch.images.data(),
                         std::ssize(batch.images));
    else
      device::copy_to_device(to, batch.images.data(), std::ssize(batch.images));
  }
  const std::array from = small_of(batch);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const BufferId buffer = small_inputs(p)[i];
    if (!buffer.valid()) continue;
    MILLRACE_ASSERT(std::ssize(from[i]) == p.buffer(buffer).bytes);
    const std::byte* host = from[i].data();
    if constexpr (device::kHasQueues) host = std::exchange(small, small + bytes_of(p, buffer));
    device::queue_copy(space, Direction::ToDevice, program.address(buffer, context), host,
                       std::ssize(from[i]));
  }
}

std::int64_t Stage::loss_bytes(const BoundProgram& program) {
  return losses_of(program.program()).bytes;
}

void Stage::queue_losses(const ExecutionSpace& space, const BoundProgram& program,
                         const RunContext& context, std::byte* losses) {
  const Losses at = losses_of(program.program());
  MILLRACE_ASSERT(at.loss.valid());
  const auto copy = [&](BufferId buffer, std::int64_t place) {
    if (buffer.valid())
      device::queue_copy(space, Direction::ToHost, losses + place, program.address(buffer, context),
                         program.program().buffer(buffer).bytes);
  };
  copy(at.loss, 0);
  copy(at.rank, at.rank_at);
  copy(at.labels, at.labels_at);
}

MicroBatchMetrics Stage::metrics(const BoundProgram& program, const std::byte* losses,
                                 std::span<ClassCounts> by_class) const {
  const StageProgram& p = program.program();
  const Losses at = losses_of(p);
  const auto batch = static_cast<std::size_t>(p.options.batch);
  const bool evaluates = p.options.mode == Mode::Evaluation;
  const std::span loss_of(reinterpret_cast<const float*>(losses), batch);
  const std::span rank_of(reinterpret_cast<const std::int32_t*>(losses + at.rank_at), batch);
  const std::span label_of(reinterpret_cast<const std::int32_t*>(losses + at.labels_at), batch);
  MicroBatchMetrics m;
  for (std::size_t n = 0; n < batch; ++n) {
    const std::int32_t rank = rank_of[n];
    if (rank >= logits_) continue;  // padding
    const auto loss = static_cast<double>(loss_of[n]);
    const std::int64_t top1 = rank == 0 ? 1 : 0;
    const std::int64_t top5 = rank < 5 ? 1 : 0;
    m.loss += evaluates ? on_grid(loss) : loss;
    m.top1 += top1;
    m.top5 += top5;
    ++m.samples;
    if (by_class.empty()) continue;
    ClassCounts& own = by_class[static_cast<std::size_t>(label_of[n])];
    ++own.images;
    own.top1 += top1;
    own.top5 += top5;
  }
  return m;
}

std::span<const float> Stage::logits(const BoundProgram& program, const RunContext& context) {
  const StageProgram& p = program.program();
  const Call& loss = p.phase(Phase::Forward).back();
  MILLRACE_ASSERT(loss.kind == KernelKind::LossForward);
  host_logits_.resize(static_cast<std::size_t>(p.options.batch * logits_));
  read_values({program.address(loss.at(Role::X), context), p.options.type}, host_logits_);
  return host_logits_;
}

}  // namespace millrace::pipeline
