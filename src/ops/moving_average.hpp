// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/parallel.hpp"

namespace millrace::ops {

/// average = average - (average - value) x (1 - decay), element by element: the moving average of
/// TensorFlow. `T` is a storage type.
template <class T>
void move_average(const device::ExecutionSpace& space, std::int64_t elements, float* average,
                  const T* value, float decay);

/// Rounds averages to the nearest value of a storage type.
template <class T>
void round_average(const device::ExecutionSpace& space, std::int64_t elements, const float* average,
                   T* rounded);

/// Exchanges the values of two arrays.
template <class T>
void exchange(const device::ExecutionSpace& space, std::int64_t elements, T* a, T* b);

}  // namespace millrace::ops
