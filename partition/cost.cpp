// SPDX-License-Identifier: Apache-2.0
#include "partition/cost.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "pipeline/memory_plan.hpp"

namespace millrace::partition {
namespace {

using models::OpId;
using models::ValueId;
using pipeline::BufferId;
using pipeline::Call;
using pipeline::Phase;
using pipeline::StageProgram;

constexpr std::int64_t kFloat = sizeof(float);
/// Cost of one random number, in flops of a convolution.
constexpr double kFlopsOfDraw = 200.0;
constexpr std::int64_t kAlignment = 64;  ///< of a tensor in the flat arrays of parameters

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool is_depthwise(const models::Op& op) {
  const auto* conv = std::get_if<models::Conv>(&op.kind);
  return conv != nullptr && conv->groups > 1 && conv->groups == conv->out_channels;
}

std::int64_t last_reader(const Graph& graph, ValueId value) {
  std::int64_t last = -1;
  for (const OpId reader : graph.consumers(value))
    last = std::max<std::int64_t>(last, reader.value);
  return last;
}

double flops(const Graph& graph, std::int64_t batch, const Call& call) {
  const models::Op& op = graph.op(call.op);
  switch (row_of(call.kind).work) {
    case Work::Draws:
      return kFlopsOfDraw * static_cast<double>(batch * graph.value(op.output).shape.elements());
    case Work::Products:
      return 2.0 * static_cast<double>(batch * models::infer(graph, op).macs);
    case Work::Bytes:
    case Work::Slice:
      break;
  }
  return 0.0;
}

/// The operand and an equal part of the whole.
std::int64_t slice_bytes(const StageProgram& program, const Call& call) {
  const bool forward = call.has(Role::X);
  const std::int64_t operand = program.buffer(call.at(forward ? Role::X : Role::Dx)).bytes;
  return (!forward && call.has(Role::Y) ? 3 : 2) * operand;
}

/// Bytes read (each buffer once) and written, and the kernel in the compute type.
std::int64_t bytes(const Graph& graph, const StageProgram& program, const Call& call) {
  if (row_of(call.kind).work == Work::Slice) return slice_bytes(program, call);
  std::int64_t sum = 0;
  for (std::size_t role = 0; role < call.buffers.size(); ++role) {
    const BufferId buffer = call.buffers[role];
    if (!buffer.valid()) continue;
    const auto here = call.buffers.begin() + static_cast<std::ptrdiff_t>(role);
    const bool again = std::find(call.buffers.begin(), here, buffer) != here;
    // A gradient may be written in place of one that the call reads.
    const bool written =
        std::ranges::find(kResultRoles, static_cast<Role>(role)) != kResultRoles.end();
    if (!again || written) sum += program.buffer(buffer).bytes;
  }
  if (!is_linear(call.kind)) return sum;
  for (const models::ParameterId p : graph.op(call.op).parameters)
    sum += graph.parameter(p).elements() * size_of(program.options.type);
  return sum;
}

class Estimate {
 public:
  Estimate(const Graph& graph, std::int64_t batch, DType type)
      : graph_(graph),
        batch_(batch),
        type_(type),
        program_(pipeline::compile(graph, pipeline::whole(graph),
                                   {.batch = batch,
                                    .type = type,
                                    .mode = pipeline::Mode::Training,
                                    .recompute = Recompute::None,
                                    .backward = pipeline::Backward::Split})),
        costs_(graph.ops.size()),
        stored_(graph.values.size(), false) {}

  std::vector<OpCost> run(const DeviceModel& device) && {
    for (const Call& call : program_.phase(Phase::Forward))
      of(call).forward += seconds_of(call_work(graph_, program_, call), device);
    for (const Call& call : program_.phase(Phase::BackwardInput))
      of(call).backward_input += seconds_of(call_work(graph_, program_, call), device);
    for (const Call& call : program_.phase(Phase::BackwardWeight))
      of(call).backward_weight += seconds_of(call_work(graph_, program_, call), device);
    add_stash();
    add_kept();
    add_parameters();
    add_boundaries();
    return std::move(costs_);
  }

  [[nodiscard]] std::vector<OpWork> work_of(Phase phase) const {
    std::vector<OpWork> sums(graph_.ops.size());
    for (const Call& call : program_.phase(phase))
      sums.at(call.op.at()) += call_work(graph_, program_, call);
    return sums;
  }

 private:
  [[nodiscard]] OpCost& of(const Call& call) { return costs_.at(call.op.at()); }

  /// Marks all buffers that a phase uses.
  void mark(std::vector<bool>& buffers, Phase phase, bool as) const {
    for (const Call& call : program_.phase(phase))
      for (const BufferId b : call.buffers)
        if (b.valid()) buffers[b.at()] = as;
  }

  /// A buffer that a later phase uses is stashed by the first forward call that uses it. A value is
  /// stashed by the op that makes it, even if the kernel of an earlier op writes it.
  void add_stash() {
    std::vector<bool> later(program_.buffers.size(), false);
    mark(later, Phase::BackwardInput, true);
    mark(later, Phase::BackwardWeight, true);
    for (const Call& call : program_.phase(Phase::Forward)) {
      for (const BufferId b : call.buffers) {
        if (!b.valid() || !later[b.at()]) continue;
        const bool is_value = b == call.at(Role::Y);
        const OpId op = is_value ? graph_.find(program_.buffer(b).name) : OpId{};
        const OpId maker = op.valid() ? op : call.op;  // prepared images are no op's value
        costs_.at(maker.at()).stash_bytes += aligned(program_.buffer(b).bytes);
        if (op.valid()) stored_.at(graph_.op(op).output.at()) = true;
        later[b.at()] = false;
      }
    }
  }

  /// What the backward pass of inputs makes for that of weights.
  void add_kept() {
    std::vector<bool> later(program_.buffers.size(), false);
    mark(later, Phase::BackwardWeight, true);
    mark(later, Phase::Forward, false);
    for (const Call& call : program_.phase(Phase::BackwardInput))
      for (const BufferId b : call.buffers) {
        if (!b.valid() || !later[b.at()]) continue;
        of(call).kept_bytes += aligned(program_.buffer(b).bytes);
        later[b.at()] = false;
      }
  }

  void add_parameters() {
    for (const models::Parameter& p : graph_.parameters)
      costs_.at(p.op.at()).parameter_bytes += p.elements() * kFloat;
  }

  void add_boundaries() {
    const std::vector<bool> wanted = models::wanted_gradients(graph_);
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      const ValueId value{static_cast<std::int32_t>(i)};
      const std::int64_t maker = graph_.value(value).producer.value;  // -1: the images
      const std::int64_t last = last_reader(graph_, value);
      // Every stage reads the images it needs; they are never sent.
      const std::int64_t end = maker < 0 ? 0 : last;
      const std::int64_t bytes = batch_ * graph_.value(value).shape.elements() * size_of(type_);
      for (std::int64_t op = maker + 1; op <= end; ++op) {
        OpCost& cost = costs_.at(static_cast<std::size_t>(op));
        cost.boundary_bytes += bytes;
        if (!stored_[i]) cost.unstored_bytes += bytes;
        if (wanted[i]) cost.gradient_bytes += bytes;
      }
    }
  }

  const Graph& graph_;
  std::int64_t batch_;
  DType type_;
  StageProgram program_;
  std::vector<OpCost> costs_;
  std::vector<bool> stored_;  ///< by value: in the stash of the op that makes it
};

}  // namespace

OpWork& OpWork::operator+=(const OpWork& other) {
  flops += other.flops;
  depthwise_flops += other.depthwise_flops;
  bytes += other.bytes;
  kernels += other.kernels;
  return *this;
}

OpWork call_work(const Graph& graph, const StageProgram& program, const Call& call) {
  const bool narrow = is_depthwise(graph.op(call.op));
  const double products = flops(graph, program.options.batch, call);
  return {.flops = narrow ? 0.0 : products,
          .depthwise_flops = narrow ? products : 0.0,
          .bytes = static_cast<double>(bytes(graph, program, call)),
          .kernels = 1.0};
}

double seconds_of(const OpWork& work, const DeviceModel& device) {
  const double depthwise = device.depthwise_flops_per_second > 0.0
                               ? device.depthwise_flops_per_second
                               : device.flops_per_second;
  const double products = work.flops / device.flops_per_second + work.depthwise_flops / depthwise;
  return std::max(products, work.bytes / device.bytes_per_second) +
         work.kernels * device.seconds_per_kernel;
}

DeviceModel cpu_model(DType type) {
  constexpr double kMemory = 15e9;
  constexpr double kCall = 5e-6;
  const double rate = type == DType::F32 ? 130e9 : 450e9;
  return {type == DType::F32 ? "CPU core, float32" : "CPU core, 16 bits", rate, kMemory, kCall};
}

pipeline::LinkModel local_link() {
  return {.latency = 2e-6, .bytes_per_second = 5e9, .receiver_copies = true};
}

std::vector<OpCost> analytic_costs(const Graph& graph, std::int64_t batch, DType type,
                                   const DeviceModel& device) {
  return Estimate(graph, batch, type).run(device);
}

std::array<std::vector<OpWork>, 3> op_work(const Graph& graph, std::int64_t batch, DType type) {
  const Estimate estimate(graph, batch, type);
  return {estimate.work_of(Phase::Forward), estimate.work_of(Phase::BackwardInput),
          estimate.work_of(Phase::BackwardWeight)};
}

std::vector<OpCost> recomputing(const Graph& graph, std::vector<OpCost> costs,
                                std::span<const std::string> layers) {
  for (std::size_t op = 0; op < costs.size(); ++op) {
    if (!pipeline::names_layer(layers, graph.layers[graph.ops[op].layer.at()].name)) continue;
    costs[op].backward_input += costs[op].forward;
    costs[op].stash_bytes = 0;
  }
  return costs;
}

std::int64_t border_bytes(std::span<const OpCost> costs, OpRange range, Recompute recompute) {
  const auto last = static_cast<std::size_t>(range.last);
  const std::int64_t in = costs[static_cast<std::size_t>(range.first)].boundary_bytes;
  const OpCost out = last < costs.size() ? costs[last] : OpCost{};
  if (recompute == Recompute::Stage) return in + out.boundary_bytes + out.gradient_bytes;
  // The images are in the stash of the op that reads them.
  return (range.first > 0 ? in : 0) + out.unstored_bytes + out.gradient_bytes;
}

pipeline::StageCost stage_cost(std::span<const OpCost> costs, OpRange range, Recompute recompute) {
  pipeline::ProgramOptions options;
  options.recompute = recompute;
  return stage_cost(costs, range, options);
}

pipeline::StageCost stage_cost(std::span<const OpCost> costs, OpRange range,
                               const pipeline::ProgramOptions& options) {
  const auto first = static_cast<std::size_t>(range.first);
  const auto last = static_cast<std::size_t>(range.last);
  MILLRACE_ASSERT(first < last && last <= costs.size());
  pipeline::StageCost sum;
  for (const OpCost& cost : costs.subspan(first, last - first)) {
    sum.forward += cost.forward;
    sum.backward_input += cost.backward_input;
    sum.backward_weight += cost.backward_weight;
    sum.stash_bytes += static_cast<double>(cost.stash_bytes);
  }
  for (const OpRange again : pipeline::repeated_segments(range, options)) {
    const auto begin = static_cast<std::size_t>(again.first);
    for (auto op = begin; op < static_cast<std::size_t>(again.last); ++op) {
      sum.backward_input += costs[op].forward;
      sum.stash_bytes -= static_cast<double>(costs[op].stash_bytes);
    }
    if (begin > first) sum.stash_bytes += static_cast<double>(costs[begin].boundary_bytes);
  }
  sum.stash_bytes += static_cast<double>(border_bytes(costs, range, options.recompute));
  return sum;
}

namespace {

/// Bytes of one parameter with its copies, gradient and optimizer state.
std::int64_t held_bytes(const Graph& graph, const models::Parameter& p, const UpdateMemory& u) {
  const std::int64_t smallest = size_of(u.precision.activations);
  const std::int64_t padded = aligned(p.elements() * smallest) / smallest;
  if (!p.trainable()) return 2 * kFloat * padded;
  const std::int64_t master = size_of(u.precision.master);
  const bool narrow = master < kFloat;
  std::int64_t each = master;
  if (!narrow && u.precision.activations != DType::F32) each += smallest;
  if (narrow && p.role != models::ParameterRole::Kernel) each += kFloat;
  // A frozen parameter has an unused gradient if another parameter of its op learns.
  if (p.learns() || models::learns(graph, p.op)) each += kFloat;
  const std::int64_t slots = p.learns() ? std::ssize(update_slots(u.rule)) * master * padded : 0;
  return each * padded + (slots + u.shares - 1) / u.shares;
}

}  // namespace

std::int64_t parameter_state_bytes(const Graph& graph, OpRange range, const UpdateMemory& update) {
  std::int64_t bytes = 0;
  for (const models::Parameter& p : graph.parameters)
    if (range.contains(p.op)) bytes += held_bytes(graph, p, update);
  return bytes;
}

std::int64_t stage_bytes(const Graph& graph, OpRange range, const pipeline::ProgramOptions& options,
                         pipeline::Slots slots, const UpdateMemory& update) {
  return parameter_state_bytes(graph, range, update) + program_bytes(graph, range, options, slots);
}

std::int64_t program_bytes(const Graph& graph, OpRange range,
                           const pipeline::ProgramOptions& options, pipeline::Slots slots) {
  return pipeline::plan_memory(pipeline::compile(graph, range, options), slots).bytes();
}

}  // namespace millrace::partition
