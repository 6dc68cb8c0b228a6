// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "models/graph.hpp"

namespace millrace::models {

/// Fills `out` (parameter.elements() floats, canonical order) with the parameter's initial values.
/// They depend only on the parameter and the seed, not on the rest of the network.
void initialise(const Parameter& parameter, std::uint64_t seed, std::span<float> out);

}  // namespace millrace::models
