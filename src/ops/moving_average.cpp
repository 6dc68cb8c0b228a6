// SPDX-License-Identifier: Apache-2.0
#include "ops/moving_average.hpp"

#include "device/compat.hpp"

namespace millrace::ops {

void move_average(const device::ExecutionSpace& space, std::int64_t elements, float* average,
                  const float* value, float decay) {
  const float part = 1.0f - decay;
  const auto move = KOKKOS_LAMBDA(std::int64_t i) { average[i] -= (average[i] - value[i]) * part; };
  device::parallel("moving average", space, elements, move);
}

void exchange(const device::ExecutionSpace& space, std::int64_t elements, float* a, float* b) {
  const auto swap = KOKKOS_LAMBDA(std::int64_t i) {
    const float value = a[i];
    a[i] = b[i];
    b[i] = value;
  };
  device::parallel("exchange", space, elements, swap);
}

}  // namespace millrace::ops
