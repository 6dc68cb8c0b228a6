// SPDX-License-Identifier: Apache-2.0
//
// Marks functions that kernels call. src/core may not include Kokkos, but GPU compilers need to
// know which functions to compile for the device.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define MILLRACE_FUNCTION __host__ __device__ inline
#else
#define MILLRACE_FUNCTION inline
#endif
