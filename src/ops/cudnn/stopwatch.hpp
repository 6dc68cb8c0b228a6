// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cudnn/linear_op.hpp"

namespace millrace::ops::cudnn {

/// The median time of a plan of this pass on the device, in microseconds, over runs that follow
/// each other. None, if the plan does not run, as where its code does not load.
[[nodiscard]] std::optional<double> measure_plan(const Context& context, const PassShape& pass,
                                                 const Plan& plan);

}  // namespace millrace::ops::cudnn
