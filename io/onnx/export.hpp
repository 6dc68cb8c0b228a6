// SPDX-License-Identifier: Apache-2.0
//
// onnx: networks as files that other programs run.
//
// A graph of ours and one of ONNX (https://onnx.ai/onnx/operators) differ in three things. Values
// are NHWC here and NCHW there, so kernels and flattened values change their order. A group
// normalization, a shortcut that subsamples and a swish take several nodes there. And the loss is
// no part of a file: its input is the output `logits`. Nodes, tensors and parameters
// keep their names, so that a file shows where a network can be cut.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "models/graph.hpp"

namespace millrace::io {

/// The values of a parameter in canonical order.
using ParameterValues = std::function<std::span<const float>(const models::Parameter&)>;

/// The bytes of an ONNX file (opset 13) that computes the logits of any number of images: input
/// `images` [N, C, H, W] in float32, prepared as in training; output `logits` [N, classes].
/// `notes` become its metadata. Dropout and drop-connect, which only training has, are left out.
[[nodiscard]] std::string to_onnx(const models::Graph& graph, const ParameterValues& values,
                                  const std::map<std::string, std::string>& notes);

}  // namespace millrace::io
