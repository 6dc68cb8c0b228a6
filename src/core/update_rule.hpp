// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace millrace {

/// How a gradient changes a weight; the formulas are in ops/optimiser.hpp.
enum class UpdateRule { Sgd, Momentum, MomentumRateInside, Nesterov, RmsProp, Lars, Adam, AdamW };

/// An optimizer state tensor, with one value per weight. Its name in checkpoints is `<parameter
/// name>/<name>`.
struct UpdateSlot {
  std::string_view name;
  float initial = 0.0f;
};

inline constexpr std::size_t kMostUpdateSlots = 2;
inline constexpr std::array<UpdateSlot, 1> kVelocity = {{{.name = "momentum", .initial = 0.0f}}};
/// The mean square starts at one, as in TensorFlow, so that the first steps are small.
inline constexpr std::array<UpdateSlot, 2> kVelocityAndMeanSquare = {
    {{.name = "momentum", .initial = 0.0f}, {.name = "mean_square", .initial = 1.0f}}};
/// Both start at zero, which the first steps correct.
inline constexpr std::array<UpdateSlot, 2> kMoments = {
    {{.name = "momentum", .initial = 0.0f}, {.name = "mean_square", .initial = 0.0f}}};

/// An optimizer: one row of the table. Its kernel is in ops/update_rules.hpp.
struct OptimiserRow {
  UpdateRule rule;
  std::string_view option;  ///< the value of `optimiser`
  std::string_view name;    ///< in logs and messages
  std::span<const UpdateSlot> slots;
};

inline constexpr std::array kOptimisers = {
    OptimiserRow{UpdateRule::Sgd, "SGD", "SGD", {}},
    OptimiserRow{UpdateRule::Momentum, "momentum", "momentum", kVelocity},
    OptimiserRow{UpdateRule::MomentumRateInside, "momentum-rate-inside", "momentum (rate inside)",
                 kVelocity},
    OptimiserRow{UpdateRule::Nesterov, "Nesterov", "Nesterov", kVelocity},
    OptimiserRow{UpdateRule::RmsProp, "RMSprop", "RMSprop", kVelocityAndMeanSquare},
    OptimiserRow{UpdateRule::Lars, "LARS", "LARS", kVelocity},
    OptimiserRow{UpdateRule::Adam, "Adam", "Adam", kMoments},
    OptimiserRow{UpdateRule::AdamW, "AdamW", "AdamW", kMoments},
};

[[nodiscard]] constexpr const OptimiserRow& row_of(UpdateRule rule) {
  return kOptimisers.at(static_cast<std::size_t>(rule));
}
static_assert(
    [] {
      for (std::size_t i = 0; i < kOptimisers.size(); ++i)
        if (kOptimisers[i].rule != static_cast<UpdateRule>(i)) return false;
      return kOptimisers.back().rule == UpdateRule::AdamW;
    }(),
    "one row per rule, in the order of the rules");

[[nodiscard]] constexpr std::string_view name_of(UpdateRule rule) { return row_of(rule).name; }
[[nodiscard]] constexpr std::span<const UpdateSlot> update_slots(UpdateRule rule) {
  return row_of(rule).slots;
}

}  // namespace millrace
