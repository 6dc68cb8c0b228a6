// SPDX-License-Identifier: Apache-2.0
//
// From the moments of a set of a norm to its statistics.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/norm.hpp"

namespace millrace::ops {

/// Mean of some elements and the sum of their squared deviations.
struct Moments {
  Accumulator mean;
  Accumulator squares;
};

/// Writes the statistics of a channel from the moments of its `count` elements.
struct StatisticsOf {
  RunningSums running;
  float epsilon;

  KOKKOS_INLINE_FUNCTION float inverse_deviation(const Moments& m, Accumulator count) const {
    using std::sqrt;
    const auto one = static_cast<Accumulator>(1.0f);
    return static_cast<float>(one / sqrt(m.squares / count + static_cast<Accumulator>(epsilon)));
  }
  KOKKOS_INLINE_FUNCTION void add_running(std::int64_t channel, const Moments& m,
                                          Accumulator count) const {
    if (running.mean == nullptr) return;
    const auto one = static_cast<Accumulator>(1.0f);
    const auto unbiased = static_cast<float>(m.squares / (count > one ? count - one : count));
    const auto mean = static_cast<float>(m.mean);
    running.mean[channel] = running.first ? mean : running.mean[channel] + mean;
    running.variance[channel] = running.first ? unbiased : running.variance[channel] + unbiased;
  }
};

}  // namespace millrace::ops
