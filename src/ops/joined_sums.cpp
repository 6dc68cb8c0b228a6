// SPDX-License-Identifier: Apache-2.0
#include "ops/joined_sums.hpp"

#include "ops/instantiate.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

constexpr std::int64_t kParts = device::kOnCores ? 8 : 256;

/// Sums of the channels over a part of the rows.
template <class T>
struct ChannelSums {
  float* parts;  // [part][channel]
  const T* x;
  std::int64_t rows, channels, count;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Quotient place = divide(i, channels);
    const std::int64_t last = rows * (place.quotient + 1) / count;
    float sum = 0.0f;
    for (std::int64_t r = rows * place.quotient / count; r < last; ++r)
      sum += to_float(x[r * channels + place.remainder]);
    parts[i] = sum;
  }
};

}  // namespace

std::int64_t channel_sums_bytes(std::int64_t channels) {
  return kParts * channels * static_cast<std::int64_t>(sizeof(float));
}

template <class T>
void add_channel_sums(const device::ExecutionSpace& space, float* totals, float* scratch,
                      const T* x, std::int64_t rows, std::int64_t channels, bool first) {
  device::parallel("channel sums", space, kParts * channels,
                   ChannelSums<T>{scratch, x, rows, channels, kParts});
  device::parallel("joined sums", space, channels,
                   JoinParts{totals, scratch, channels, kParts, first});
}

MILLRACE_INSTANTIATE(add_channel_sums)

}  // namespace millrace::ops
