// SPDX-License-Identifier: Apache-2.0
//
// One pass of a convolution as a graph of the library's operations, and the kernels for it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "ops/cudnn/descriptor.hpp"
#include "ops/vendor.hpp"

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
  friend bool operator==(const PassShape&, const PassShape&) = default;
};

/// The forward pass with sums that the first two of these calls are as one: a convolution without
/// bias in float16, and the statistics of the batch norm that reads it. Empty, if they are
/// something else. The library has no such kernels for bfloat16 and float32.
[[nodiscard]] std::optional<PassShape> fused_pass(std::span<const OfferedCall> calls, DType type);

/// Scratch that a convolution may use if nobody limits it. The fastest kernels of some shapes take
/// more than the activations of a network.
inline constexpr std::int64_t kDefaultCap = std::int64_t{256} << 20;

/// What kernels must keep to.
struct PlanRules {
  /// Bytes of scratch. If no kernel keeps to it, the one with the smallest scratch is taken.
  std::int64_t cap = std::numeric_limits<std::int64_t>::max();
  /// Kernels whose sums may have another order from run to run: faster, and against law 1.
  bool allow_nondeterministic = false;
  friend bool operator==(const PlanRules&, const PlanRules&) = default;
};

/// What kernels for tensor cores take of 16-bit channels at a time. Of fewer, the library makes a
/// padded copy in scratch of its own: 206 MB in the forward pass of ResNet-50's first convolution
/// at 256 images of bfloat16, and 212 MB for its weight gradient.
inline constexpr std::int64_t kLeastChannels = 8;

/// The kernels of one pass, ready to run.
struct Plan {
  Descriptor plan;
  std::int64_t engine = 0;   ///< the library's number of the family of kernels
  std::int64_t scratch = 0;  ///< bytes
  bool deterministic = true;
  bool tensor_cores = false;
};

/// The library's first choice for a device among the kernels that keep to the rules. Products of
/// float32 are exact: kernels that round operands (TF32) are not considered. Empty, if there is
/// none.
[[nodiscard]] std::optional<Plan> find_plan(const Descriptor& device, const PassShape& pass,
                                            const PlanRules& rules);
/// The same, found once in a process: a plan takes the library up to a second, and stages, tests
/// and validations ask for the same ones again. Devices of one name share plans. Null, if there is
/// none.
[[nodiscard]] std::shared_ptr<const Plan> kept_plan(const Descriptor& device, const PassShape& pass,
                                                    const PlanRules& rules);

}  // namespace millrace::ops::cudnn
