// SPDX-License-Identifier: Apache-2.0
#include "pipeline/op_shapes.hpp"

#include <variant>
#include <vector>

namespace millrace::pipeline {
namespace {

const Shape& input_shape(const Graph& graph, OpId op) {
  return graph.value(graph.op(op).inputs.front()).shape;
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
  return ops::batch_norm_shape(batch * x.pixels(), x.c);
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
