// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of norms share: the channels of a strip of lanes.
#pragma once

#include "ops/tiling.hpp"

namespace millrace::ops {

/// Calls f(j, channel) for the W lanes starting at `lane`. Channels repeat with period t.channels.
template <int W, class F>
KOKKOS_INLINE_FUNCTION void for_channels(const Tiling& t, const Strip& s, std::int64_t lane,
                                         F&& f) {
  std::int64_t c = (s.first_lane + lane) % t.channels;
  if (c + W <= t.channels) {
    for (int j = 0; j < W; ++j) f(j, c + j);
  } else {
    for (int j = 0; j < W; ++j) {
      f(j, c);
      if (++c == t.channels) c = 0;
    }
  }
}

/// a and b of z = a x + b for W lanes, read once per strip.
template <int W>
struct Affine {
  float a[W];
  float b[W];
  KOKKOS_INLINE_FUNCTION Affine(const Tiling& t, const Strip& s, std::int64_t lane,
                                const float* statistics, const float* gamma, const float* beta) {
    const float* mean = statistics + s.instance * t.channels;
    const float* inverse = mean + t.instances * t.channels;
    for_channels<W>(t, s, lane, [&](int j, std::int64_t c) {
      a[j] = gamma[c] * inverse[c];
      b[j] = beta[c] - mean[c] * a[j];
    });
  }
};

}  // namespace millrace::ops
