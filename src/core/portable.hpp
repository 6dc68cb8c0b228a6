// SPDX-License-Identifier: Apache-2.0
//
// Marks functions that kernels call. Core may not include Kokkos, but the GPU compilers need to be
// told which functions exist on the device.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define MILLRACE_FUNCTION __host__ __device__ inline
#else
#define MILLRACE_FUNCTION inline
#endif
