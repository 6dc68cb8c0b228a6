// SPDX-License-Identifier: Apache-2.0
#include "ops/dropout.hpp"
#include "pipeline/kernels.hpp"

namespace millrace::pipeline {
namespace {

using device::ExecutionSpace;

ops::SampleShape sample_shape(const Binding& b) {
  const models::Op& op = b.graph.op(b.call.op);
  return {b.batch, b.graph.value(op.output).shape.elements()};
}

ops::Draws draws(RandomPurpose purpose, std::uint64_t op_name, const RunContext& c) {
  return {RandomStream(c.seed, purpose, op_name), c.iteration, c.first_sample};
}

/// Forward and backward are the same function, applied to activations and to gradients.
template <class T>
Kernel drop(const Binding& b) {
  const ops::SampleShape shape = sample_shape(b);
  const models::Op& op = b.graph.op(b.call.op);
  const std::uint64_t name = hash_name(op.name);
  const bool forward = b.call.has(Role::Y);
  const auto out = b.operand<T>(forward ? Role::Y : Role::Dx);
  const auto in = b.operand<T>(forward ? Role::X : Role::Dy);
  if (const auto* dropout = std::get_if<models::Dropout>(&op.kind)) {
    return [=, rate = static_cast<float>(dropout->rate)](const ExecutionSpace& space,
                                                         const RunContext& c) {
      ops::dropout<T>(space, shape, out(c), in(c), rate, draws(RandomPurpose::Dropout, name, c));
    };
  }
  const auto survival = static_cast<float>(std::get<models::DropConnect>(op.kind).survival);
  return [=, skip = b.operand<T>(Role::Skip)](const ExecutionSpace& space, const RunContext& c) {
    ops::drop_connect<T>(space, shape, out(c), in(c), skip(c), survival,
                         draws(RandomPurpose::DropConnect, name, c));
  };
}

}  // namespace

Kernel make_dropout_kernel(const Binding& b) {
  return device::dispatch(b.type, [&]<class T>() { return drop<T>(b); });
}

}  // namespace millrace::pipeline
