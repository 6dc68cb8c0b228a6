// SPDX-License-Identifier: Apache-2.0
//
// Long sums in two levels: parts of fixed length, which many work items compute, and their total in
// ascending order. The cut depends on the shape only, so that the bits are those of every layout.
#pragma once

#include <cstdint>

#include "device/tensor.hpp"

namespace millrace::ops {

/// Adds up parts in ascending order.
struct JoinParts {
  float* total;
  const float* parts;  // [part][element]
  std::int64_t elements, count;
  bool first;  ///< overwrites the total
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    float sum = 0.0f;
    for (std::int64_t p = 0; p < count; ++p) sum += parts[p * elements + i];
    total[i] = first ? sum : total[i] + sum;
  }
};

/// Bytes of scratch that add_channel_sums needs.
[[nodiscard]] std::int64_t channel_sums_bytes(std::int64_t channels);

/// totals = sums of each channel of x, [rows][channels], if `first`; else they are added. The
/// gradient of a bias.
template <class T>
void add_channel_sums(const device::ExecutionSpace& space, float* totals, float* scratch,
                      const T* x, std::int64_t rows, std::int64_t channels, bool first);

}  // namespace millrace::ops
