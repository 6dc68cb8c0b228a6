// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/cudnn/linear_op.hpp"
#include "ops/vendor.hpp"

namespace millrace::ops::cudnn {

/// A convolution and the statistics of the batch norm behind it, of which the library adds the sums
/// while it convolves. The two calls of a run that fused_pass() accepts; `plan` is one for its
/// pass. The sums have another order than those of our own kernels, which compute the statistics
/// where a cut separates the two, so this is for runs whose bits may vary.
[[nodiscard]] std::unique_ptr<ClaimedRun> make_fused_run(std::shared_ptr<const Context> context,
                                                         std::span<const OfferedCall> calls,
                                                         Plan plan);

}  // namespace millrace::ops::cudnn
