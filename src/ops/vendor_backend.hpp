// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/weighted.hpp"

namespace millrace::ops {

/// Uses oneDNN's kernels for every shape, as the reference for measuring our own kernels. Only in
/// builds with oneDNN.
[[nodiscard]] std::unique_ptr<Backend> make_vendor_backend();

}  // namespace millrace::ops
