// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/weighted.hpp"

namespace millrace::ops {

/// oneDNN's kernels alone, on every shape: what own kernels are measured against. Only in builds
/// with oneDNN.
[[nodiscard]] std::unique_ptr<Backend> make_vendor_backend();

}  // namespace millrace::ops
