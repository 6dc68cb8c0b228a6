// SPDX-License-Identifier: Apache-2.0
//
// The gradient of a convolution's input is itself a convolution, if the window moves by one pixel:
// of dy, with each kernel turned by half a circle and inputs and outputs changed for each other
// (Dumoulin and Visin 2016, section 4).
//
//   dx[i] = sum over o, r of dy[o][. + pad - r] k[o][r][i] = conv(dy, turned k)
//
// Libraries that spend more care on forward passes are faster at it that way.
#pragma once

#include <memory>

#include "ops/weighted.hpp"

namespace millrace::ops {

/// Whether it is one: windows that move by one pixel over all channels, padded by less than their
/// size, without holes.
[[nodiscard]] bool is_turnable(const ConvShape& shape);

/// The convolution from dy to dx.
[[nodiscard]] ConvShape turned_shape(const ConvShape& shape);

/// The op whose only pass is backward input, in float32, by the forward pass of `turned`, which is
/// prepared for turned_shape() and for that pass alone.
[[nodiscard]] std::unique_ptr<WeightedOp> make_turned(const ConvShape& shape,
                                                      std::unique_ptr<WeightedOp> turned);

}  // namespace millrace::ops
