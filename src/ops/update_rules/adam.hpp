// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/update_rules/rule.hpp"

namespace millrace::ops {

/// Kingma and Ba 2015 (arXiv 1412.6980); with decoupled decay Loshchilov and Hutter 2019
/// (arXiv 1711.05101).
template <bool kDecoupled>
struct AdamRule : Rule {
  static constexpr int kSlots = 2;
  static constexpr bool kDecouplesDecay = kDecoupled;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, SlotValues& s, float g, float) {
    s.velocity = u.momentum * s.velocity + (1.0f - u.momentum) * g;
    s.mean_square = u.mean_square_decay * s.mean_square + (1.0f - u.mean_square_decay) * (g * g);
    const float mean = s.velocity * u.momentum_correction;
    return u.rate * mean / (sqrtf(s.mean_square * u.mean_square_correction) + u.epsilon);
  }
};

}  // namespace millrace::ops
