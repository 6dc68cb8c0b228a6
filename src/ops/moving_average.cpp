// SPDX-License-Identifier: Apache-2.0
#include "ops/moving_average.hpp"

#include "device/compat.hpp"
#include "ops/instantiate.hpp"

namespace millrace::ops {

template <class T>
void move_average(const device::ExecutionSpace& space, std::int64_t elements, float* average,
                  const T* value, float decay) {
  const float part = 1.0f - decay;
  const auto move = KOKKOS_LAMBDA(std::int64_t i) {
    average[i] -= (average[i] - to_float(value[i])) * part;
  };
  device::parallel("moving average", space, elements, move);
}

template <class T>
void round_average(const device::ExecutionSpace& space, std::int64_t elements, const float* average,
                   T* rounded) {
  const auto round = KOKKOS_LAMBDA(std::int64_t i) { rounded[i] = store_as<T>(average[i]); };
  device::parallel("round average", space, elements, round);
}

template <class T>
void exchange(const device::ExecutionSpace& space, std::int64_t elements, T* a, T* b) {
  const auto swap = KOKKOS_LAMBDA(std::int64_t i) {
    const T value = a[i];
    a[i] = b[i];
    b[i] = value;
  };
  device::parallel("exchange", space, elements, swap);
}

MILLRACE_INSTANTIATE(move_average)
MILLRACE_INSTANTIATE(round_average)
MILLRACE_INSTANTIATE(exchange)

}  // namespace millrace::ops
