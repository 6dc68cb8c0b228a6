// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/parallel.hpp"

namespace millrace::ops {

/// average = average - (average - value) x (1 - decay), element by element: the moving average of
/// TensorFlow.
void move_average(const device::ExecutionSpace& space, std::int64_t elements, float* average,
                  const float* value, float decay);

/// Exchanges the values of two arrays.
void exchange(const device::ExecutionSpace& space, std::int64_t elements, float* a, float* b);

}  // namespace millrace::ops
