// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace millrace {

/// How a gradient g changes a weight w; formulae in ops/optimiser.hpp.
enum class UpdateRule { Sgd, Momentum, MomentumRateInside, Nesterov, RmsProp, Lars };

[[nodiscard]] constexpr std::string_view name_of(UpdateRule rule) {
  constexpr std::array<std::string_view, 6> kNames = {
      "SGD", "momentum", "momentum (rate inside)", "Nesterov", "RMSprop", "LARS"};
  return kNames.at(static_cast<std::size_t>(rule));
}

/// A tensor that a rule keeps beside each weight. Checkpoints call it `<parameter name>/<name>`.
struct UpdateSlot {
  std::string_view name;
  float initial = 0.0f;
};

/// Everything that rules keep. TensorFlow starts the mean square at one, so that first steps are
/// small.
inline constexpr std::array<UpdateSlot, 2> kUpdateSlots = {
    {{.name = "momentum", .initial = 0.0f}, {.name = "mean_square", .initial = 1.0f}}};

/// What a rule keeps: the first ones of that list.
[[nodiscard]] constexpr std::span<const UpdateSlot> update_slots(UpdateRule rule) {
  const std::size_t slots = rule == UpdateRule::Sgd ? 0 : rule == UpdateRule::RmsProp ? 2 : 1;
  return {kUpdateSlots.data(), slots};
}

}  // namespace millrace
