// SPDX-License-Identifier: Apache-2.0
#include "pipeline/stage.hpp"

#include <algorithm>
#include <cmath>

#include "pipeline/segments.hpp"

namespace millrace::pipeline {
namespace {

using Copy = void(std::byte* to, const std::byte* from, std::int64_t bytes);

void copy_to(const BoundProgram& program, BufferId buffer, const RunContext& context,
             std::span<const std::byte> from, Copy* copy = device::copy_to_device) {
  if (!buffer.valid()) return;
  MILLRACE_ASSERT(std::ssize(from) == program.program().buffer(buffer).bytes);
  copy(program.address(buffer, context), from.data(), std::ssize(from));
}

/// The nearest multiple of 2^-24.
double on_grid(double loss) {
  constexpr double kSteps = 0x1p24;
  return std::nearbyint(loss * kSteps) / kSteps;
}

}  // namespace

MicroBatchMetrics& MicroBatchMetrics::operator+=(const MicroBatchMetrics& other) {
  loss += other.loss;
  top1 += other.top1;
  top5 += other.top5;
  samples += other.samples;
  return *this;
}

namespace {

ParameterOptions parameter_options(const StageOptions& options) {
  ParameterOptions parameters = options.parameters;
  parameters.precision.activations = options.type;
  return parameters;
}

}  // namespace

Stage::Stage(const Graph& graph, OpRange range, const StageOptions& options, ops::Backend& backend)
    : parameters_(graph, range, parameter_options(options)),
      logits_(graph.value(graph.ops.back().inputs.front()).shape.c) {
  const auto largest = static_cast<std::size_t>(std::max(options.batch, options.evaluation_batch));
  host_loss_.resize(largest);
  host_rank_.resize(largest);
  host_label_.resize(static_cast<std::size_t>(options.evaluation_batch));
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

void Stage::load(BoundProgram& program, const RunContext& context, const io::Batch& batch) {
  const StageProgram& p = program.program();
  for (const Crossing& input : p.inputs)
    if (input.value == Graph::input())
      copy_to(program, input.activation, context, batch.images,
              batch.on_device ? device::copy_within : device::copy_to_device);
  copy_to(program, p.scaling, context, std::as_bytes(batch.scaling));
  copy_to(program, p.mixing, context, std::as_bytes(batch.mixing));
  copy_to(program, p.labels, context, std::as_bytes(batch.labels));
}

MicroBatchMetrics Stage::metrics(const BoundProgram& program, const RunContext& context,
                                 std::span<ClassCounts> by_class) {
  const StageProgram& p = program.program();
  MILLRACE_ASSERT(p.loss.valid());
  const std::int64_t batch = p.options.batch;
  const bool evaluates = p.options.mode == Mode::Evaluation;
  device::copy_to_host(reinterpret_cast<std::byte*>(host_loss_.data()),
                       program.address(p.loss, context), p.buffer(p.loss).bytes);
  device::copy_to_host(reinterpret_cast<std::byte*>(host_rank_.data()),
                       program.address(p.rank, context), p.buffer(p.rank).bytes);
  if (!by_class.empty())
    device::copy_to_host(reinterpret_cast<std::byte*>(host_label_.data()),
                         program.address(p.labels, context), p.buffer(p.labels).bytes);
  MicroBatchMetrics m;
  for (std::size_t n = 0; n < static_cast<std::size_t>(batch); ++n) {
    const std::int32_t rank = host_rank_[n];
    if (rank >= logits_) continue;  // padding
    const auto loss = static_cast<double>(host_loss_[n]);
    const std::int64_t top1 = rank == 0 ? 1 : 0;
    const std::int64_t top5 = rank < 5 ? 1 : 0;
    m.loss += evaluates ? on_grid(loss) : loss;
    m.top1 += top1;
    m.top5 += top5;
    ++m.samples;
    if (by_class.empty()) continue;
    ClassCounts& own = by_class[static_cast<std::size_t>(host_label_[n])];
    ++own.images;
    own.top1 += top1;
    own.top5 += top5;
  }
  return m;
}

namespace {

/// Copies values of type T from the device.
template <class T>
void copy_widened(std::span<float> to, const std::byte* from) {
  std::vector<T> stored(to.size());
  device::copy_to_host(reinterpret_cast<std::byte*>(stored.data()), from,
                       std::ssize(stored) * static_cast<std::int64_t>(sizeof(T)));
  std::transform(stored.begin(), stored.end(), to.begin(), [](T x) { return to_float(x); });
}

}  // namespace

std::span<const float> Stage::logits(const BoundProgram& program, const RunContext& context) {
  const StageProgram& p = program.program();
  const Call& loss = p.phase(Phase::Forward).back();
  MILLRACE_ASSERT(loss.kind == KernelKind::LossForward);
  host_logits_.resize(static_cast<std::size_t>(p.options.batch * logits_));
  const std::byte* const from = program.address(loss.at(Role::X), context);
  if (p.options.type == DType::F16)
    copy_widened<float16>(host_logits_, from);
  else if (p.options.type == DType::BF16)
    copy_widened<bfloat16>(host_logits_, from);
  else
    copy_widened<float>(host_logits_, from);
  return host_logits_;
}

}  // namespace millrace::pipeline
