// SPDX-License-Identifier: Apache-2.0
#include "pipeline/kernels.hpp"

#include "ops/channels.hpp"
#include "ops/dropout.hpp"
#include "ops/elementwise.hpp"
#include "ops/norm.hpp"
#include "ops/pool.hpp"
#include "ops/prepare_images.hpp"
#include "ops/softmax_loss.hpp"
#include "pipeline/op_shapes.hpp"

namespace millrace::pipeline {
namespace {

using models::ParameterRole;

OpId norm_of(const Call& call) { return call.inlined.valid() ? call.inlined : call.op; }

models::ParameterId parameter(const Binding& b, ParameterRole role) {
  return parameter_of(b.graph, norm_of(b.call), role);
}

float* value(const Binding& b, ParameterRole role) {
  return b.parameters.value(parameter(b, role));
}

/// The norm that a call computes first.
auto inlined_norm(const Binding& b) {
  ops::InlinedNorm norm;
  if (b.call.inlined.valid()) {
    const ops::NormShape shape = norm_shape(b.graph, norm_of(b.call), b.batch);
    norm = {nullptr,
            value(b, ParameterRole::Gamma),
            value(b, ParameterRole::Beta),
            shape.instances(),
            shape.channels,
            b.call.fn};
  }
  return [norm, statistics = b.operand<float>(Role::Statistics)](const RunContext& c) {
    ops::InlinedNorm own = norm;
    own.statistics = statistics(c);
    return own;
  };
}

float* gradient(const Binding& b, ParameterRole role) {
  return b.parameters.gradient(parameter(b, role));
}

/// Replicas that share the statistics.
std::int64_t span(const Binding& b) {
  return std::get<models::BatchNorm>(b.graph.op(b.call.op).kind).span;
}

/// Every replica adds the statistics of the whole group, so the mean over the replicas is the same.
auto running(const Binding& b) {
  return [sums = running_sums(b.graph, b.call, b.parameters)](const RunContext& c) {
    ops::RunningSums running = sums;
    running.first = c.first;
    return running;
  };
}

/// This replica's part of what its group exchanges.
auto own_part(const Binding& b, const ops::NormShape& shape) {
  return [exchange = b.operand<ops::Accumulator>(Role::Exchange), size = shape.part_values()](
             const RunContext& c) { return exchange(c) + c.member * size; };
}

/// What ScaleChannels and GlobalAveragePool do behind an inlined norm; nothing without Scale.
template <class T>
auto excitation(const Binding& b) {
  const std::int64_t pixels = b.graph.value(b.graph.op(b.call.op).inputs.front()).shape.pixels();
  return [=, factor = b.operand<T>(Role::Scale),
          dmean = b.operand<T>(Role::Dy2)](const RunContext& c) {
    return ops::Excitation<T>{factor(c), dmean(c), pixels};
  };
}

/// Operands of both first passes of the backward.
template <class T>
auto reduce_arguments(const Binding& b, const ops::NormShape& shape) {
  ops::NormBackwardReduce<T> fixed;
  fixed.gamma = value(b, ParameterRole::Gamma);
  fixed.beta = value(b, ParameterRole::Beta);
  fixed.scratch = b.norm_scratch;
  fixed.skip_used = b.call.with_skip;
  fixed.fn = b.call.fn;
  if (b.adds_gradients) {
    fixed.total_dgamma = gradient(b, ParameterRole::Gamma);
    fixed.total_dbeta = gradient(b, ParameterRole::Beta);
  }
  const auto mask = b.operand<std::uint8_t>(Role::Mask);
  return [=, dy = b.operand<T>(Role::Dy), dy2 = b.operand<T>(Role::Dy2), y = b.operand<T>(Role::Y),
          x = b.operand<T>(Role::X), dz = b.operand<T>(Role::Dz),
          statistics = b.operand<float>(Role::Statistics),
          coefficients = b.operand<float>(Role::Coefficients), sums = b.operand<float>(Role::Sums),
          excitation = excitation<T>(b), channels = shape.channels](const RunContext& c) {
    ops::NormBackwardReduce<T> args = fixed;
    args.dy = dy(c);
    args.excitation = excitation(c);
    args.dy2 = args.excitation.factor == nullptr ? dy2(c) : nullptr;
    args.y = y(c);
    args.mask = mask(c);
    args.x = x(c);
    args.dz = dz(c);
    args.statistics = statistics(c);
    args.coefficients = coefficients(c);
    args.dgamma = sums(c);
    args.dbeta = args.dgamma + channels;
    args.first = c.first;
    return args;
  };
}

/// The norm of Skip, if there is one.
auto norm_of_skip(const Binding& b) {
  const auto value_of = [&](ParameterRole role) {
    return b.call.skip_norm.valid()
               ? b.parameters.value(parameter_of(b.graph, b.call.skip_norm, role))
               : nullptr;
  };
  return [statistics = b.operand<const float>(Role::SkipStatistics),
          gamma = value_of(ParameterRole::Gamma),
          beta = value_of(ParameterRole::Beta)](const RunContext& c) {
    return ops::NormParameters{statistics(c), gamma, beta};
  };
}

Kernel backward_weight(const Binding& b, std::int64_t channels) {
  if (b.adds_gradients) return [](const device::ExecutionSpace&, const RunContext&) {};
  return calling(ops::add_parameter_gradients, channels, gradient(b, ParameterRole::Gamma),
                 gradient(b, ParameterRole::Beta), b.operand<float>(Role::Sums),
                 [](const RunContext& c) { return c.first; });
}

template <class T>
Kernel make_norm(const Binding& b) {
  const ops::NormShape shape = norm_shape(b.graph, norm_of(b.call), b.batch);
  const float epsilon = norm_epsilon(b.graph, norm_of(b.call));
  const float* gamma = value(b, ParameterRole::Gamma);
  const float* beta = value(b, ParameterRole::Beta);
  const auto at = [&](Role role) { return b.operand<T>(role); };
  const auto statistics = b.operand<float>(Role::Statistics);
  const auto coefficients = b.operand<float>(Role::Coefficients);
  const auto exchange = b.operand<ops::Accumulator>(Role::Exchange);
  switch (b.call.kind) {
    case KernelKind::NormStatistics:
      return calling(ops::norm_statistics<T>, shape, statistics, running(b), b.norm_scratch,
                     at(Role::X), epsilon);
    case KernelKind::NormMoments:
      return calling(ops::norm_moments<T>, shape, own_part(b, shape), b.norm_scratch, at(Role::X));
    case KernelKind::NormJoinMoments:
      return calling(ops::norm_join_moments, shape, span(b), statistics, running(b), exchange,
                     epsilon);
    case KernelKind::NormRunning:
      return calling(ops::norm_statistics_from_running, shape.channels, statistics,
                     value(b, ParameterRole::MovingMean), value(b, ParameterRole::MovingVariance),
                     epsilon);
    case KernelKind::NormApply:
    case KernelKind::ScaleForward:  // of an inlined norm
      return calling(ops::norm_apply<T>, shape, at(Role::Y), at(Role::X), at(Role::Skip),
                     statistics, gamma, beta, b.call.fn, b.operand<std::uint8_t>(Role::Mask),
                     norm_of_skip(b), excitation<T>(b));
    case KernelKind::NormBackwardReduce:
      return calling(ops::norm_backward_reduce<T>, shape, reduce_arguments<T>(b, shape));
    case KernelKind::NormBackwardSums:
      return calling(ops::norm_backward_sums<T>, shape, own_part(b, shape),
                     reduce_arguments<T>(b, shape));
    case KernelKind::NormJoinSums:
      return calling(ops::norm_join_sums, shape, span(b), coefficients, exchange, statistics,
                     gamma);
    case KernelKind::NormBackwardApply:
      return calling(ops::norm_backward_apply<T>, shape, at(Role::Dx), at(Role::Dy), at(Role::X),
                     coefficients, statistics, gamma, beta, b.call.fn, excitation<T>(b));
    default:
      MILLRACE_ASSERT(b.call.kind == KernelKind::NormBackwardWeight);
      return backward_weight(b, shape.channels);
  }
}

}  // namespace

ops::RunningSums running_sums(const Graph& graph, const Call& call, const Parameters& parameters) {
  ops::RunningSums running;
  const auto mean = parameter_of(graph, call.op, ParameterRole::MovingMean);
  if (mean.valid() && !call.repeated) {
    running.mean = parameters.running_sum(mean);
    running.variance =
        parameters.running_sum(parameter_of(graph, call.op, ParameterRole::MovingVariance));
  }
  return running;
}

namespace {

using enum Role;

Kernel linear(const Binding& b) {
  MILLRACE_ASSERT(b.linear != nullptr);
  const auto at = [&](Role role) { return b.operand<std::byte>(role); };
  ops::LinearOp* const op = b.linear;
  if (b.call.kind == KernelKind::LinearForward)
    return calling([op](const auto&... a) { op->forward(a...); }, at(Y), at(X));
  if (b.call.kind == KernelKind::LinearBackwardInput)
    return calling([op](const auto&... a) { op->backward_input(a...); }, at(Dx), at(Dy));
  return calling([op](const auto&... a) { op->backward_weight(a...); }, at(Dy), at(X),
                 [](const RunContext& c) { return c.first; });
}

/// Elements of the op's output, or of the loss's input.
std::int64_t elements(const Binding& b) {
  const models::Op& op = b.graph.op(b.call.op);
  const models::ValueId shaped = op.output.valid() ? op.output : op.inputs.front();
  return b.batch * b.graph.value(shaped).shape.elements();
}

template <class T>
Kernel activation(const Binding& b) {
  const auto at = [&](Role role) { return b.operand<T>(role); };
  // In evaluation a dropout may be a copy, an activation without a function.
  const auto* const op = std::get_if<models::Activate>(&b.graph.op(b.call.op).kind);
  const ActivationNumbers numbers = op == nullptr ? ActivationNumbers{} : op->numbers;
  if (b.call.kind == KernelKind::ActivationForward)
    return calling(ops::activation_forward<T>, at(Y), at(X), elements(b), b.call.fn, numbers);
  // The derivative is computed from the output if it is kept, otherwise from the input.
  return calling(ops::activation_backward<T>, at(Dx), at(Dy), at(b.call.has(Y) ? Y : X),
                 elements(b), b.call.fn, numbers);
}

template <class T>
Kernel addition(const Binding& b) {
  const auto at = [&](Role role) { return b.operand<T>(role); };
  if (b.call.kind == KernelKind::AddForward)
    return calling(ops::add_forward<T>, at(Y), at(X), at(Skip), elements(b), b.call.fn);
  return calling(ops::add_gradients<T>, at(Dz), at(Dy), at(Dy2), elements(b));
}

template <class T, class W>
Kernel max_pool(const Binding& b, const ops::WindowShape& shape) {
  const auto at = [&](Role role) { return b.operand<T>(role); };
  const auto winner = b.operand<W>(Winner);
  return b.call.has(Y)
             ? calling(ops::max_pool_forward<T, W>, shape, at(Y), winner, at(X), inlined_norm(b))
             : calling(ops::max_pool_backward<T, W>, shape, at(Dx), at(Dy), winner);
}

template <class T>
Kernel pool(const Binding& b) {
  const auto at = [&](Role role) { return b.operand<T>(role); };
  const bool forward = b.call.has(Y);
  const models::OpKind& kind = b.graph.op(b.call.op).kind;
  if (const auto* p = std::get_if<models::Pool>(&kind)) {
    const ops::WindowShape shape =
        window_shape(b.graph, b.call.op, b.batch, p->kernel, p->stride, p->pad);
    if (p->kind == models::PoolKind::Max)
      return p->position_bytes() == 1 ? max_pool<T, std::uint8_t>(b, shape)
                                      : max_pool<T, std::int32_t>(b, shape);
    return forward
               ? calling(ops::average_pool_forward<T>, shape, at(Y), at(X), p->count_padding)
               : calling(ops::average_pool_backward<T>, shape, at(Dx), at(Dy), p->count_padding);
  }
  if (const auto* p = std::get_if<models::ShortcutPad>(&kind)) {
    const ops::WindowShape shape = window_shape(b.graph, b.call.op, b.batch, {1, 1}, p->stride);
    return forward
               ? calling(ops::shortcut_pad_forward<T>, shape, p->channels_before, at(Y), at(X))
               : calling(ops::shortcut_pad_backward<T>, shape, p->channels_before, at(Dx), at(Dy));
  }
  const Shape& in = b.graph.value(b.graph.op(b.call.op).inputs.front()).shape;
  return forward
             ? calling(ops::global_average_forward<T>, b.batch, in, at(Y), at(X), inlined_norm(b))
             : calling(ops::global_average_backward<T>, b.batch, in, at(Dx), at(Dy));
}

template <class T>
Kernel loss(const Binding& b) {
  // There may be more logits than classes; the loss covers all of them.
  const ops::SoftmaxLossShape shape{b.batch, b.graph.logits(), b.label_smoothing.share,
                                    b.label_smoothing.form};
  const auto x = b.operand<T>(X);
  const auto labels = b.operand<std::int32_t>(Labels);
  const auto mixing = b.operand<const ImageMixing>(Mixing);
  const auto weights = b.operand<const float>(Weights);
  if (b.call.kind == KernelKind::LossForward)
    return calling(ops::softmax_loss_forward<T>, shape, b.operand<float>(Loss),
                   b.operand<std::int32_t>(Rank), x, labels, mixing, weights);
  return calling(ops::softmax_loss_backward<T>, shape, b.operand<T>(Dx), x, labels,
                 &b.values->loss_scaling, mixing, weights);
}

/// Operand `part` of a concatenation.
ops::ChannelSlice concat_slice(const Binding& b) {
  const auto part = static_cast<std::size_t>(b.call.part);
  const models::Op& concat = b.graph.op(b.call.op);
  const Shape& all = b.graph.value(concat.output).shape;
  const auto channels = [&](std::size_t i) { return b.graph.value(concat.inputs[i]).shape.c; };
  ops::ChannelSlice slice{b.batch * all.pixels(), all.c, 0, channels(part)};
  for (std::size_t i = 0; i < part; ++i) slice.first += channels(i);
  return slice;
}

template <class T>
Kernel channels(const Binding& b) {
  const auto at = [&](Role role) { return b.operand<T>(role); };
  if (b.call.kind == KernelKind::ConcatForward)
    return calling(ops::concat_forward<T>, concat_slice(b), at(Y), at(X), b.call.fn);
  if (b.call.kind == KernelKind::ConcatBackward)
    return calling(ops::concat_backward<T>, concat_slice(b), at(Dx), at(Dy), at(Y), b.call.fn);
  if (b.call.kind == KernelKind::ScaleForward && b.call.inlined.valid()) return make_norm<T>(b);
  const Shape& x = b.graph.value(b.graph.op(b.call.op).inputs.front()).shape;
  const ops::ScaleShape shape{b.batch, x.pixels(), x.c};
  if (b.call.kind == KernelKind::ScaleForward)
    return calling(ops::scale_forward<T>, shape, at(Y), at(X), at(Scale), at(Skip), b.call.fn);
  return calling(ops::scale_backward<T>, shape, at(Dx), at(Dscale), at(Dy), at(X), at(Scale),
                 inlined_norm(b));
}

/// Forward and backward are the same function, applied to activations and to gradients.
template <class T>
Kernel drop(const Binding& b) {
  const models::Op& op = b.graph.op(b.call.op);
  const ops::SampleShape shape{b.batch, b.graph.value(op.output).shape.elements()};
  const auto draws = [name = hash_name(op.name), values = b.values](RandomPurpose purpose) {
    return [=](const RunContext& c) {
      return ops::DrawsAt{RandomStream(c.seed, purpose, name), values};
    };
  };
  const bool forward = b.call.has(Y);
  const auto out = b.operand<T>(forward ? Y : Dx);
  const auto in = b.operand<T>(forward ? X : Dy);
  if (const auto* dropout = std::get_if<models::Dropout>(&op.kind))
    return calling(ops::dropout<T>, shape, out, in, static_cast<float>(dropout->rate),
                   draws(RandomPurpose::Dropout));
  const auto survival = static_cast<float>(std::get<models::DropConnect>(op.kind).survival);
  return calling(ops::drop_connect<T>, shape, out, in, b.operand<T>(Skip), survival,
                 draws(RandomPurpose::DropConnect));
}

template <class T>
Kernel prepare_images(const Binding& b) {
  const ops::PrepareImagesShape shape{b.batch, b.graph.input_shape, b.graph.stored_image};
  const auto y = b.operand<T>(Y);
  const auto mixing = b.operand<const ImageMixing>(Mixing);
  if (b.call.has(Scaling))
    return calling(ops::prepare_bytes<T>, shape, y, b.operand<const std::uint8_t>(X),
                   b.operand<const PixelScaling>(Scaling), mixing);
  return device::dispatch(b.images, [&]<class Stored>() {
    return calling(ops::prepare_floats<T, Stored>, shape, y, b.operand<const Stored>(X), mixing);
  });
}

template <class T>
Kernel make(const Binding& b) {
  switch (b.call.kind) {
    case KernelKind::LinearForward:
    case KernelKind::LinearBackwardInput:
    case KernelKind::LinearBackwardWeight:
      return linear(b);
    case KernelKind::NormStatistics:
    case KernelKind::NormMoments:
    case KernelKind::NormJoinMoments:
    case KernelKind::NormRunning:
    case KernelKind::NormApply:
    case KernelKind::NormBackwardReduce:
    case KernelKind::NormBackwardSums:
    case KernelKind::NormJoinSums:
    case KernelKind::NormBackwardApply:
    case KernelKind::NormBackwardWeight:
      return make_norm<T>(b);
    case KernelKind::ActivationForward:
    case KernelKind::ActivationBackward:
      return activation<T>(b);
    case KernelKind::AddForward:
    case KernelKind::AddGradients:
      return addition<T>(b);
    case KernelKind::PoolForward:
    case KernelKind::PoolBackward:
    case KernelKind::GlobalPoolForward:
    case KernelKind::GlobalPoolBackward:
    case KernelKind::ShortcutForward:
    case KernelKind::ShortcutBackward:
      return pool<T>(b);
    case KernelKind::LossForward:
    case KernelKind::LossBackward:
      return loss<T>(b);
    case KernelKind::ConcatForward:
    case KernelKind::ConcatBackward:
    case KernelKind::ScaleForward:
    case KernelKind::ScaleBackward:
      return channels<T>(b);
    case KernelKind::DropoutForward:
    case KernelKind::DropoutBackward:
    case KernelKind::DropConnectForward:
    case KernelKind::DropConnectBackward:
      return drop<T>(b);
    case KernelKind::PrepareImages:
      return prepare_images<T>(b);
  }
  fail(ErrorKind::Internal, "kernel {} cannot be made", name_of(b.call.kind));
}

}  // namespace

bool reads_values(KernelKind kind) {
  switch (kind) {
    case KernelKind::LossBackward:
    case KernelKind::DropoutForward:
    case KernelKind::DropoutBackward:
    case KernelKind::DropConnectForward:
    case KernelKind::DropConnectBackward:
      return true;
    default:
      return false;
  }
}

Kernel make_kernel(const Binding& b) {
  return device::dispatch(b.type, [&]<class T>() { return make<T>(b); });
}

}  // namespace millrace::pipeline
