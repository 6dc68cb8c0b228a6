// SPDX-License-Identifier: Apache-2.0
//
// Ranks that share a device share its memory: what they need counts together.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/world.hpp"

namespace millrace::training {

/// What a rank says of the device that it uses, before it allocates anything there.
struct DeviceClaim {
  std::string device;     ///< and its machine; "" if nobody knows which: a device of its own
  std::int64_t need = 0;  ///< bytes
  std::int64_t free = 0;  ///< bytes of the device's memory
  friend bool operator==(const DeviceClaim&, const DeviceClaim&) = default;
};

/// Why a run does not fit, for the first device whose ranks need more than is free; "" if all fit.
/// `ranks` is by rank.
[[nodiscard]] std::string why_too_large(std::span<const DeviceClaim> ranks);

/// The same for all ranks of this world, each with its claim. Collective.
[[nodiscard]] std::string why_too_large(const DeviceClaim& own, const comm::World& world);

}  // namespace millrace::training
