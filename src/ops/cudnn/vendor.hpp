// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/vendor.hpp"

namespace millrace::ops {

/// cuDNN on the GPU that Kokkos uses. Errors: Internal, if the library does not start.
[[nodiscard]] std::unique_ptr<Vendor> make_cudnn_vendor();

}  // namespace millrace::ops
