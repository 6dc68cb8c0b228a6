// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>

#include "core/dtype.hpp"
#include "ops/cudnn/descriptor.hpp"
#include "ops/linear.hpp"

namespace millrace::ops::cudnn {

enum class Pass { Forward, BackwardInput, BackwardWeight };

/// Numbers of the tensors of a graph. Gradients have those of what they are the gradients of.
inline constexpr std::int64_t kInput = 1;
inline constexpr std::int64_t kKernel = 2;
inline constexpr std::int64_t kBias = 3;
inline constexpr std::int64_t kOutput = 4;
inline constexpr std::int64_t kSums = 5;     ///< of the output, per channel
inline constexpr std::int64_t kSquares = 6;  ///< sums of its squares

/// One pass of a convolution that needs kernels.
struct PassShape {
  ConvShape shape;
  DType type = DType::F32;
  Pass pass = Pass::Forward;
  /// A forward pass without bias also gives the sums of its output and of the squares, in float32.
  bool sums = false;
};

/// A graph and all objects that it consists of.
struct PassGraph {
  std::deque<Descriptor> parts;
  Descriptor graph;
};

/// One pass of a convolution over NHWC images with a kernel in canonical order, which is the
/// library's own (KRSC). Storage in `type`, products and sums in float32. Forward adds the bias in
/// float32 before the result is rounded. Backward weight gives the kernel's gradient rounded to
/// `type`: the library has no float32 result for 16-bit inputs.
[[nodiscard]] PassGraph make_pass_graph(const PassShape& pass);

}  // namespace millrace::ops::cudnn
