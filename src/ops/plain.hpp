// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/linear.hpp"

namespace millrace::ops {

/// Linear ops as plain loops, for all passes and every Kokkos backend. They read kernels in
/// canonical order and need neither packed copies nor scratch.
[[nodiscard]] std::unique_ptr<LinearOp> make_plain(const ConvShape& shape, DType type);
[[nodiscard]] std::unique_ptr<LinearOp> make_plain(const DenseShape& shape, DType type);

}  // namespace millrace::ops
