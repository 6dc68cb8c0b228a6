// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "core/float_pair.hpp"
#include "device/parallel.hpp"

namespace millrace::ops {

/// What kernels join long sums in: 64-bit floats, or pairs of floats for devices that have none
/// (MILLRACE_FLOAT64=OFF). Kernels have no other 64-bit floats. Both take eight bytes.
using Accumulator = std::conditional_t<device::kHasFloat64, double, FloatPair>;
static_assert(sizeof(Accumulator) == 8);

}  // namespace millrace::ops
