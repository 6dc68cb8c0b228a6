// SPDX-License-Identifier: Apache-2.0
//
// What products compute: passes of a 1x1 convolution, and runs of calls:
//
//   convolution, then statistics         y, and the moments that the norm behind it needs
//   input gradient, then first pass      the gradient that the norm before is sent, with the other
//   of the norm before                   one added and ReLU's mask, and that norm's sums
//
// Runs have the bits of separate calls, where the same product computes the pass of the convolution
// and the norm adds up in the same tiles.
#pragma once

#include <memory>
#include <span>

#include "ops/vendor.hpp"

namespace millrace::ops::tiles {

/// The passes of a convolution that are products, for 16-bit types; none if there are no products.
[[nodiscard]] Passes product_passes(const ConvShape& shape);

/// An op with these passes.
[[nodiscard]] std::unique_ptr<LinearOp> make_product(const ConvShape& shape, DType type);

/// The run that begins with these calls, if there is one.
[[nodiscard]] RunClaim claim_product(std::span<const OfferedCall> calls, DType type);

}  // namespace millrace::ops::tiles
