// SPDX-License-Identifier: Apache-2.0
//
// A file of its own, so that programs of which no library adds sums do without it.
#include "device/parallel.hpp"
#include "ops/norm_moments.hpp"

namespace millrace::ops {

void norm_statistics_of_sums(const device::ExecutionSpace& space, const NormShape& shape,
                             float* statistics, RunningSums running, const float* sums,
                             const float* squares, float epsilon) {
  MILLRACE_ASSERT(shape.by_channel());
  const StatisticsOf result{running, epsilon};
  const auto channel = KOKKOS_LAMBDA(std::int64_t c) {
    const auto count = static_cast<Accumulator>(shape.rows);
    const auto sum = static_cast<Accumulator>(sums[c]);
    const Accumulator mean = sum / count;
    const Accumulator about_mean = static_cast<Accumulator>(squares[c]) - sum * mean;
    // Rounding must not leave a negative square. That of a NaN remains one.
    const Moments all{mean, Accumulator{} > about_mean ? Accumulator{} : about_mean};
    statistics[c] = static_cast<float>(all.mean);
    statistics[shape.channels + c] = result.inverse_deviation(all, count);
    result.add_running(c, all, count);
  };
  device::parallel("norm sums", space, shape.channels, channel);
}

}  // namespace millrace::ops
