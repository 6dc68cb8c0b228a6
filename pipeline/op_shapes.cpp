// SPDX-License-Identifier: Apache-2.0
#include "pipeline/op_shapes.hpp"

#include <variant>
#include <vector>

#include "ops/cutlass/product_ops.hpp"

namespace millrace::pipeline {
namespace {

const Shape& input_shape(const Graph& graph, OpId op) {
  return graph.value(graph.op(op).inputs.front()).shape;
}

ops::Passes product_passes(const Graph& graph, OpId op, std::int64_t batch) {
  if constexpr (!device::kOnCores)
    if (op.valid() && std::holds_alternative<models::Conv>(graph.op(op).kind))
      return ops::tiles::product_passes(conv_shape(graph, op, batch));
  return {false, false, false};
}

/// Of the ops that read what a norm, an addition and an activation make, the one whose gradient
/// comes last: the first; invalid if there is none.
OpId last_to_send_gradient(const Graph& graph, OpId norm) {
  for (OpId at = norm;;) {
    const std::vector<OpId> readers = graph.consumers(graph.op(at).output);
    if (readers.empty()) return {};
    const models::OpKind& kind = graph.op(readers[0]).kind;
    if (!std::holds_alternative<models::Add>(kind) &&
        !std::holds_alternative<models::Activate>(kind))
      return readers[0];
    at = readers[0];
  }
}

}  // namespace

ops::WindowShape window_shape(const Graph& graph, OpId op, std::int64_t batch,
                              models::Extent kernel, models::Extent stride,
                              const models::Padding& pad) {
  ops::WindowShape w;
  w.batch = batch;
  w.in = input_shape(graph, op);
  w.out = graph.value(graph.op(op).output).shape;
  w.kernel_h = kernel.h;
  w.kernel_w = kernel.w;
  w.stride_h = stride.h;
  w.stride_w = stride.w;
  w.pad_top = pad.top;
  w.pad_left = pad.left;
  return w;
}

ops::ConvShape conv_shape(const Graph& graph, OpId op, std::int64_t batch) {
  const auto& conv = std::get<models::Conv>(graph.op(op).kind);
  ops::ConvShape s;
  s.window = window_shape(graph, op, batch, conv.kernel, conv.stride, conv.pad);
  s.pad_bottom = conv.pad.bottom;
  s.pad_right = conv.pad.right;
  s.groups = conv.groups;
  s.dilation_h = conv.dilation.h;
  s.dilation_w = conv.dilation.w;
  s.bias = conv.bias;
  if (graph.op(op).inputs.front() == Graph::input()) s.stored = graph.stored_image;
  return s;
}

ops::DenseShape dense_shape(const Graph& graph, OpId op, std::int64_t batch) {
  const auto& dense = std::get<models::Dense>(graph.op(op).kind);
  return {batch, input_shape(graph, op).elements(), dense.units, dense.bias};
}

ops::NormShape norm_shape(const Graph& graph, OpId op, std::int64_t batch) {
  const Shape& x = input_shape(graph, op);
  if (const auto* norm = std::get_if<models::GroupNorm>(&graph.op(op).kind)) {
    return ops::group_norm_shape(batch, x.pixels(), x.c, norm->groups,
                                 norm->order == models::GroupOrder::Strided);
  }
  ops::NormShape shape = ops::batch_norm_shape(batch * x.pixels(), x.c);
  const OpId maker = graph.value(graph.op(op).inputs.front()).producer;
  shape.moments_in_tiles = product_passes(graph, maker, batch).forward;
  shape.gradients_in_tiles =
      product_passes(graph, last_to_send_gradient(graph, op), batch).backward_input;
  return shape;
}

float norm_epsilon(const Graph& graph, OpId op) {
  const models::OpKind& kind = graph.op(op).kind;
  if (const auto* norm = std::get_if<models::GroupNorm>(&kind)) {
    return static_cast<float>(norm->epsilon);
  }
  return static_cast<float>(std::get<models::BatchNorm>(kind).epsilon);
}

void store_images(Graph& graph, std::int64_t batch,
                  const std::function<std::optional<Shape>(const ops::ConvShape& first)>& wanted) {
  graph.stored_image.reset();
  const std::vector<OpId> readers = graph.consumers(Graph::input());
  if (readers.size() != 1 || !std::holds_alternative<models::Conv>(graph.op(readers[0]).kind))
    return;
  graph.stored_image = wanted(conv_shape(graph, readers[0], batch));
}

models::ParameterId parameter_of(const Graph& graph, OpId op, models::ParameterRole role) {
  for (const models::ParameterId id : graph.op(op).parameters) {
    if (graph.parameter(id).role == role) return id;
  }
  return {};
}

}  // namespace millrace::pipeline
