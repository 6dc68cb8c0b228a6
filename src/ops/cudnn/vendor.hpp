// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "ops/vendor.hpp"

namespace millrace::ops {

/// cuDNN on the GPU that Kokkos uses, with cublasLt for the weight gradients that are matrix
/// products (ops/cublas), if this build has it. Errors: Internal, at the first claim, if the
/// library does not start.
[[nodiscard]] std::unique_ptr<Vendor> make_cudnn_vendor(bool allow_nondeterministic);

/// The GPU that Kokkos uses and the libraries that are loaded: "NVIDIA H200, 132 multiprocessors;
/// cuDNN 9.19.0 and cublasLt 13.1.0 in use".
[[nodiscard]] std::string describe_cudnn_device();

}  // namespace millrace::ops
