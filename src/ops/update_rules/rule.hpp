// SPDX-License-Identifier: Apache-2.0
//
// Optimizers, one file each. A rule is a struct with a function `step`, which updates the slots of
// one element and returns what is subtracted from its weight. The loops over weights, the rounding
// and the copies are the same for all (../optimiser.cpp). To add one, write its file, its row in
// core/update_rule.hpp and its case in update_weights(), which does not compile without it.
#pragma once

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

}  // namespace millrace::ops
