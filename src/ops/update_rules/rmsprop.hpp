// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/update_rules/rule.hpp"

namespace millrace::ops {

struct RmsProp : Rule {
  static constexpr int kSlots = 2;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, SlotValues& s, float g, float) {
    s.mean_square = u.mean_square_decay * s.mean_square + (1.0f - u.mean_square_decay) * (g * g);
    s.velocity = u.momentum * s.velocity + u.rate * g / sqrtf(s.mean_square + u.epsilon);
    return s.velocity;
  }
};

}  // namespace millrace::ops
