// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "ops/cudnn/pass_graph.hpp"

namespace millrace::ops::cudnn {

/// Scratch that a convolution may use if nobody limits it. The fastest kernels of some shapes take
/// more than the activations of a network.
inline constexpr std::int64_t kDefaultCap = std::int64_t{256} << 20;

/// What kernels must keep to.
struct PlanRules {
  /// Bytes of scratch. If no kernel keeps to it, the one with the smallest scratch is taken.
  std::int64_t cap = std::numeric_limits<std::int64_t>::max();
  /// Kernels whose sums may have another order from run to run: faster, and against law 1.
  bool allow_nondeterministic = false;
};

/// Channels of a pixel of the images that a first convolution reads. The kernels for tensor cores
/// take eight 16-bit channels at a time. Of fewer, the library makes a padded copy in scratch of
/// its own: 206 MB in the forward pass of ResNet-50's first convolution at 256 images of bfloat16,
/// and 212 MB for its weight gradient, where kernels for padded images take none and 6 MB. Small
/// images gain nothing.
[[nodiscard]] std::int64_t image_channels(const ConvShape& first, DType type);

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

}  // namespace millrace::ops::cudnn
