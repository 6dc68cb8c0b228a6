// SPDX-License-Identifier: Apache-2.0
//
// The update of one element, which cores and accelerators compute alike.
#pragma once

#include "ops/update_rules/rule.hpp"

namespace millrace::ops {

// Kinds of stored values of an element; each has its own random numbers.
inline constexpr int kWeight = 0;
inline constexpr int kVelocity = 1;
inline constexpr int kMeanSquare = 2;
inline constexpr int kStoredValues = 3;

/// The new weight in float32, for master weights of type M. Updates the slots.
template <class Rule, class M>
KOKKOS_FORCEINLINE_FUNCTION float updated_weight(const Update& u, float decay, float ratio, float w,
                                                 float gradient, SlotValues& slots) {
  const float rounded = rounded_as<M>(gradient * u.gradient_scale);
  const float g = Rule::kDecouplesDecay ? rounded : rounded + decay * w;
  float change = Rule::step(u, slots, g, ratio);
  if constexpr (Rule::kDecouplesDecay) change += u.rate * decay * w;
  return w - change;
}

}  // namespace millrace::ops
