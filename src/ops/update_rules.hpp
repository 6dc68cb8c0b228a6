// SPDX-License-Identifier: Apache-2.0
//
// Optimizers. A rule is a struct with a function `step`, which updates the slots of one element and
// returns what is subtracted from its weight. The loops over weights, the rounding and the copies
// are the same for all (optimiser.cpp). To add one, write it here, its row in core/update_rule.hpp
// and its case in update_weights(), which does not compile without it.
#pragma once

#include "core/portable.hpp"
#include "device/compat.hpp"
#include "ops/optimiser.hpp"

namespace millrace::ops {

/// The slots of one element: those of the row in the table, in that order.
struct SlotValues {
  float velocity = 0.0f;
  float mean_square = 0.0f;
};

/// What a rule is unless it says otherwise.
struct Rule {
  static constexpr int kSlots = 0;
  static constexpr bool kAdapts = false;          ///< uses the ratio of LARS
  static constexpr bool kDecouplesDecay = false;  ///< weight decay is no part of the gradient
};

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

struct RmsProp : Rule {
  static constexpr int kSlots = 2;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, SlotValues& s, float g, float) {
    s.mean_square = u.mean_square_decay * s.mean_square + (1.0f - u.mean_square_decay) * (g * g);
    s.velocity = u.momentum * s.velocity + over_fast_root(u.rate * g, s.mean_square + u.epsilon);
    return s.velocity;
  }
};

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
    return fast_quotient(u.rate * mean,
                         fast_root(s.mean_square * u.mean_square_correction) + u.epsilon);
  }
};

// ---- the update of one element, which cores and accelerators compute alike

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
