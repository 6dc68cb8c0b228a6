// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace millrace {

/// How a gradient changes a weight; the formulas are in ops/optimiser.hpp.
enum class UpdateRule { Sgd, Momentum, MomentumRateInside, Nesterov, RmsProp, Lars };

[[nodiscard]] constexpr std::string_view name_of(UpdateRule rule) {
  constexpr std::array<std::string_view, 6> kNames = {
      "SGD", "momentum", "momentum (rate inside)", "Nesterov", "RMSprop", "LARS"};
  return kNames.at(static_cast<std::size_t>(rule));
}

/// An optimizer state tensor, with one value per weight. Its name in checkpoints is `<parameter
/// name>/<name>`.
struct UpdateSlot {
  std::string_view name;
  float initial = 0.0f;
};

/// The slots of all rules. The mean square starts at one, as in TensorFlow, so that the first steps
/// are small.
inline constexpr std::array<UpdateSlot, 2> kUpdateSlots = {
    {{.name = "momentum", .initial = 0.0f}, {.name = "mean_square", .initial = 1.0f}}};

/// The slots of one rule: a prefix of kUpdateSlots.
[[nodiscard]] constexpr std::span<const UpdateSlot> update_slots(UpdateRule rule) {
  const std::size_t slots = rule == UpdateRule::Sgd ? 0 : rule == UpdateRule::RmsProp ? 2 : 1;
  return {kUpdateSlots.data(), slots};
}

}  // namespace millrace
