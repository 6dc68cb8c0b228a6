// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "models/graph.hpp"

namespace millrace::models {

/// Fills `out` (parameter.elements() floats, canonical order) with the parameter's initial values:
/// a pure function of (seed, parameter.name), whatever else the network holds.
void initialise(const Parameter& parameter, std::uint64_t seed, std::span<float> out);

}  // namespace millrace::models
