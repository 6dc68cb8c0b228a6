// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/update_rules/rule.hpp"

namespace millrace::ops {

struct Sgd : Rule {
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, SlotValues&, float g, float) {
    return u.rate * g;
  }
};

struct Momentum : Rule {
  static constexpr int kSlots = 1;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, SlotValues& s, float g, float) {
    s.velocity = u.momentum * s.velocity + g;
    return u.rate * s.velocity;
  }
};

/// The velocity includes the learning rate: Keras' momentum and, with the ratio, LARS.
template <bool kWithRatio>
struct RateInside : Rule {
  static constexpr int kSlots = 1;
  static constexpr bool kAdapts = kWithRatio;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, SlotValues& s, float g,
                                                float ratio) {
    s.velocity = u.momentum * s.velocity + u.rate * ratio * g;
    return s.velocity;
  }
};

struct Nesterov : Rule {
  static constexpr int kSlots = 1;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, SlotValues& s, float g, float) {
    s.velocity = u.momentum * s.velocity + g;
    return u.rate * (g + u.momentum * s.velocity);
  }
};

}  // namespace millrace::ops
