// SPDX-License-Identifier: Apache-2.0
#include "pipeline/bound_program.hpp"

#include <algorithm>
#include <utility>

#include "device/arena.hpp"
#include "ops/elementwise.hpp"
#include "ops/pool.hpp"
#include "ops/softmax_loss.hpp"
#include "pipeline/op_shapes.hpp"

namespace millrace::pipeline {
namespace {

using device::aligned;
using device::ExecutionSpace;
using models::ParameterRole;

ops::Fn to_fn(FusedFn fn) {
  switch (fn) {
    case FusedFn::None:
      return ops::Fn::None;
    case FusedFn::Relu:
      return ops::Fn::Relu;
    case FusedFn::Swish:
      return ops::Fn::Swish;
    case FusedFn::Sigmoid:
      return ops::Fn::Sigmoid;
  }
  return ops::Fn::None;
}

template <class T>
T* as(std::byte* p) {
  return reinterpret_cast<T*>(p);
}

bool is_norm_call(KernelKind kind) {
  return kind >= KernelKind::NormStatistics && kind <= KernelKind::NormBackwardWeight;
}

bool is_weighted_call(KernelKind kind) { return kind <= KernelKind::WeightedBackwardWeight; }

}  // namespace

BoundProgram::BoundProgram(const Graph& graph, StageProgram program, Slots slots,
                           ops::Backend& backend, const Parameters& parameters,
                           float label_smoothing)
    : graph_(&graph),
      program_(std::move(program)),
      plan_(plan_memory(program_, slots, device::kAlignment)),
      parameters_(&parameters),
      label_smoothing_(label_smoothing) {
  prepare_weighted(backend);
  place_workspace();
}

void BoundProgram::prepare_weighted(ops::Backend& backend) {
  const std::int64_t batch = program_.options.batch;
  const DType type = program_.options.type;
  for (const Call& call : program_.phase(Phase::Forward)) {
    if (call.kind != KernelKind::WeightedForward) continue;
    const bool training = program_.options.mode == Mode::Training;
    const bool from_images = graph_->op(call.op).inputs.front() == Graph::input();
    const ops::Passes passes{training && !from_images, training};
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
      if (!is_norm_call(call.kind)) continue;
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

BoundProgram::Place BoundProgram::place(BufferId buffer) const {
  if (!buffer.valid()) return {};
  const Placement& p = plan_.placements.at(buffer.at());
  switch (p.region) {
    case Region::Stash:
      return {workspace_ + stash_offset_ + p.offset, plan_.stash_slot_bytes, 0};
    case Region::Weight:
      return {workspace_ + weight_offset_ + p.offset, 0, plan_.weight_slot_bytes};
    case Region::Transient:
      return {workspace_ + transient_offset_ + p.offset, 0, 0};
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
    memory.kernel = parameters_->value(kernel);
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
      kernels_[p].push_back(device::dispatch(
          program_.options.type, [&]<class T>() -> Kernel { return make_kernel<T>(call); }));
    }
  }
}

void BoundProgram::begin_step(const ExecutionSpace& space, float loss_scaling) {
  loss_scaling_ = loss_scaling;
  const bool backward = program_.options.mode == Mode::Training;
  for (const Weighted& w : weighted_) w.kernel->pack(space, backward);
}

void BoundProgram::run(const ExecutionSpace& space, Phase phase, const RunContext& context) {
  for (const Kernel& kernel : kernels_[static_cast<std::size_t>(phase)]) kernel(space, context);
  device::fence(space);
}

// ---- kernels
// --------------------------------------------------------------------------------------

BoundProgram::Kernel BoundProgram::make_weighted(const Call& call) const {
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

template <class T>
BoundProgram::Kernel BoundProgram::make_norm(const Call& call) const {
  const ops::NormShape shape = norm_shape(*graph_, call.op, program_.options.batch);
  const float epsilon = norm_epsilon(*graph_, call.op);
  const auto parameter = [&](ParameterRole role) { return parameter_of(*graph_, call.op, role); };
  const float* gamma = parameters_->value(parameter(ParameterRole::Gamma));
  const float* beta = parameters_->value(parameter(ParameterRole::Beta));
  const auto moving_mean = parameter(ParameterRole::MovingMean);
  const auto moving_variance = parameter(ParameterRole::MovingVariance);
  auto* scratch = reinterpret_cast<float*>(workspace_ + scratch_offset_);
  const Place x = place(call.at(Role::X));
  const Place y = place(call.at(Role::Y));
  const Place skip = place(call.at(Role::Skip));
  const Place dy = place(call.at(Role::Dy));
  const Place dy2 = place(call.at(Role::Dy2));
  const Place dz = place(call.at(Role::Dz));
  const Place dx = place(call.at(Role::Dx));
  const Place statistics = place(call.at(Role::Statistics));
  const Place coefficients = place(call.at(Role::Coefficients));
  const Place sums = place(call.at(Role::Sums));
  const bool has_skip = call.has(Role::Skip);
  const bool with_skip = call.with_skip;
  const bool has_dy2 = call.has(Role::Dy2);
  const bool has_dz = call.has(Role::Dz);
  const ops::Fn fn = to_fn(call.fn);

  switch (call.kind) {
    case KernelKind::NormStatistics: {
      ops::RunningSums running;
      if (moving_mean.valid() && !call.repeated) {
        running.mean = parameters_->running_sum(moving_mean);
        running.variance = parameters_->running_sum(moving_variance);
      }
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::RunningSums own = running;
        own.first = c.first;
        ops::norm_statistics<T>(space, shape, as<float>(statistics.at(c)), own, scratch,
                                as<T>(x.at(c)), epsilon);
      };
    }
    case KernelKind::NormRunning: {
      const float* mean = parameters_->value(moving_mean);
      const float* variance = parameters_->value(moving_variance);
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::norm_statistics_from_running(space, shape.channels, as<float>(statistics.at(c)), mean,
                                          variance, epsilon);
      };
    }
    case KernelKind::NormApply:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::norm_apply<T>(space, shape, as<T>(y.at(c)), as<T>(x.at(c)),
                           has_skip ? as<T>(skip.at(c)) : nullptr, as<float>(statistics.at(c)),
                           gamma, beta, fn);
      };
    case KernelKind::NormBackwardReduce:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::NormBackwardReduce<T> args;
        args.dy = as<T>(dy.at(c));
        args.dy2 = has_dy2 ? as<T>(dy2.at(c)) : nullptr;
        args.y = as<T>(y.at(c));
        args.x = as<T>(x.at(c));
        args.statistics = as<float>(statistics.at(c));
        args.gamma = gamma;
        args.beta = beta;
        args.dz = has_dz ? as<T>(dz.at(c)) : nullptr;
        args.dgamma = as<float>(sums.at(c));
        args.dbeta = args.dgamma + shape.channels;
        args.coefficients = as<float>(coefficients.at(c));
        args.scratch = scratch;
        args.skip_used = with_skip;
        args.fn = fn;
        ops::norm_backward_reduce<T>(space, shape, args);
      };
    case KernelKind::NormBackwardApply:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::norm_backward_apply<T>(space, shape, as<T>(dx.at(c)), as<T>(dy.at(c)), as<T>(x.at(c)),
                                    as<float>(coefficients.at(c)), as<float>(statistics.at(c)),
                                    gamma, beta, fn);
      };
    default:
      break;
  }
  float* dgamma = parameters_->gradient(parameter(ParameterRole::Gamma));
  float* dbeta = parameters_->gradient(parameter(ParameterRole::Beta));
  return [=](const ExecutionSpace& space, const RunContext& c) {
    const float* part = as<float>(sums.at(c));
    ops::accumulate(space, dgamma, part, shape.channels, c.first);
    ops::accumulate(space, dbeta, part + shape.channels, shape.channels, c.first);
  };
}

template <class T>
BoundProgram::Kernel BoundProgram::make_pool(const Call& call) const {
  const ops::WindowShape shape = window_shape(*graph_, call.op, program_.options.batch);
  const Place x = place(call.at(Role::X));
  const Place y = place(call.at(Role::Y));
  const Place dy = place(call.at(Role::Dy));
  const Place dx = place(call.at(Role::Dx));
  const Place winner = place(call.at(Role::Winner));
  const bool has_winner = call.has(Role::Winner);
  const models::OpKind& kind = graph_->op(call.op).kind;
  const auto* pool = std::get_if<models::Pool>(&kind);
  const bool max = pool != nullptr && pool->kind == models::PoolKind::Max;
  const bool count_padding = pool != nullptr && pool->count_padding;
  const auto* shortcut = std::get_if<models::ShortcutPad>(&kind);
  const std::int64_t before = shortcut != nullptr ? shortcut->channels_before : 0;

  switch (call.kind) {
    case KernelKind::PoolForward:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        if (max) {
          ops::max_pool_forward<T>(space, shape, as<T>(y.at(c)),
                                   has_winner ? as<std::uint8_t>(winner.at(c)) : nullptr,
                                   as<T>(x.at(c)));
        } else {
          ops::average_pool_forward<T>(space, shape, as<T>(y.at(c)), as<T>(x.at(c)), count_padding);
        }
      };
    case KernelKind::PoolBackward:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        if (max) {
          ops::max_pool_backward<T>(space, shape, as<T>(dx.at(c)), as<T>(dy.at(c)),
                                    as<std::uint8_t>(winner.at(c)));
        } else {
          ops::average_pool_backward<T>(space, shape, as<T>(dx.at(c)), as<T>(dy.at(c)),
                                        count_padding);
        }
      };
    case KernelKind::GlobalPoolForward:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::global_average_forward<T>(space, shape.batch, shape.in, as<T>(y.at(c)),
                                       as<T>(x.at(c)));
      };
    case KernelKind::GlobalPoolBackward:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::global_average_backward<T>(space, shape.batch, shape.in, as<T>(dx.at(c)),
                                        as<T>(dy.at(c)));
      };
    case KernelKind::ShortcutForward:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::shortcut_pad_forward<T>(space, shape, before, as<T>(y.at(c)), as<T>(x.at(c)));
      };
    default:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::shortcut_pad_backward<T>(space, shape, before, as<T>(dx.at(c)), as<T>(dy.at(c)));
      };
  }
}

template <class T>
BoundProgram::Kernel BoundProgram::make_kernel(const Call& call) const {
  if (is_weighted_call(call.kind)) return make_weighted(call);
  if (is_norm_call(call.kind)) return make_norm<T>(call);
  const std::int64_t batch = program_.options.batch;
  const Place x = place(call.at(Role::X));
  const Place y = place(call.at(Role::Y));
  const Place skip = place(call.at(Role::Skip));
  const Place dy = place(call.at(Role::Dy));
  const Place dy2 = place(call.at(Role::Dy2));
  const Place dz = place(call.at(Role::Dz));
  const Place dx = place(call.at(Role::Dx));
  const Place labels = place(call.at(Role::Labels));
  const Place loss = place(call.at(Role::Loss));
  const Place rank = place(call.at(Role::Rank));
  const ops::Fn fn = to_fn(call.fn);
  const bool by_output = call.has(Role::Y);
  const models::Op& op = graph_->op(call.op);
  const models::ValueId shaped = op.output.valid() ? op.output : op.inputs.front();
  const std::int64_t n = batch * graph_->value(shaped).shape.elements();
  const ops::SoftmaxLossShape softmax{batch, graph_->classes, label_smoothing_};

  switch (call.kind) {
    case KernelKind::ActivationForward:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::activation_forward<T>(space, as<T>(y.at(c)), as<T>(x.at(c)), n, fn);
      };
    case KernelKind::ActivationBackward:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::activation_backward<T>(space, as<T>(dx.at(c)), as<T>(dy.at(c)),
                                    as<T>((by_output ? y : x).at(c)), n, fn);
      };
    case KernelKind::AddForward:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::add_forward<T>(space, as<T>(y.at(c)), as<T>(x.at(c)), as<T>(skip.at(c)), n, fn);
      };
    case KernelKind::AddGradients:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::add_gradients<T>(space, as<T>(dz.at(c)), as<T>(dy.at(c)), as<T>(dy2.at(c)), n);
      };
    case KernelKind::LossForward:
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::softmax_loss_forward<T>(space, softmax, as<float>(loss.at(c)),
                                     as<std::int32_t>(rank.at(c)), as<T>(x.at(c)),
                                     as<std::int32_t>(labels.at(c)));
      };
    case KernelKind::LossBackward: {
      const float* scaling = &loss_scaling_;
      return [=](const ExecutionSpace& space, const RunContext& c) {
        ops::softmax_loss_backward<T>(space, softmax, as<T>(dx.at(c)), as<T>(x.at(c)),
                                      as<std::int32_t>(labels.at(c)),
                                      *scaling / static_cast<float>(batch));
      };
    }
    default:
      return make_pool<T>(call);
  }
}

// clang 14 does not instantiate what only a template lambda names.
template BoundProgram::Kernel BoundProgram::make_kernel<float>(const Call&) const;
template BoundProgram::Kernel BoundProgram::make_kernel<bfloat16>(const Call&) const;

}  // namespace millrace::pipeline
