// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "ops/linear.hpp"
#include "ops/norm.hpp"
#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// Shapes of graph ops as the kernels need them, for micro-batches of `batch` samples. A shape that
/// one kernel needs is beside that kernel.
[[nodiscard]] ops::ConvShape conv_shape(const Graph& graph, OpId op, std::int64_t batch);
[[nodiscard]] ops::DenseShape dense_shape(const Graph& graph, OpId op, std::int64_t batch);
[[nodiscard]] ops::NormShape norm_shape(const Graph& graph, OpId op, std::int64_t batch);
/// Of an op whose window slides over its first input.
[[nodiscard]] ops::WindowShape window_shape(const Graph& graph, OpId op, std::int64_t batch,
                                            models::Extent kernel = {}, models::Extent stride = {},
                                            const models::Padding& pad = {});
/// Epsilon of a batch or group norm.
[[nodiscard]] float norm_epsilon(const Graph& graph, OpId op);

/// Stores the images of a network as `wanted` says for the convolution that reads them in
/// micro-batches of `batch`; as they are if another op reads them, too.
void store_images(Graph& graph, std::int64_t batch,
                  const std::function<std::optional<Shape>(const ops::ConvShape& first)>& wanted);

/// The op's parameter of this role; invalid if there is none.
[[nodiscard]] models::ParameterId parameter_of(const Graph& graph, OpId op,
                                               models::ParameterRole role);

}  // namespace millrace::pipeline
