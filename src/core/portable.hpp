// SPDX-License-Identifier: Apache-2.0
//
// Marks functions that kernels call, and tells for which device they are compiled. src/core may not
// include Kokkos, but GPU compilers need to know which functions to compile for the device.
#pragma once

#include <cmath>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define MILLRACE_FUNCTION __host__ __device__ inline
#else
#define MILLRACE_FUNCTION inline
#endif

// Whether this is device code for NVIDIA's GPUs from sm_80 on, which may use their instructions
// (PTX), or for AMD's. Both are 0 in what such compilers make for the host.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MILLRACE_PTX 1
#else
#define MILLRACE_PTX 0
#endif
#if defined(__HIP_DEVICE_COMPILE__)
#define MILLRACE_AMDGCN 1
#else
#define MILLRACE_AMDGCN 0
#endif

namespace millrace {

/// a * b + c: one instruction that rounds once on GPUs, a product and a sum on cores. Law 1 allows
/// it in one kernel's fixed order, and in a function that all kernels share which must agree.
MILLRACE_FUNCTION float multiply_add(float a, float b, float c) {
#if MILLRACE_PTX || MILLRACE_AMDGCN
  return fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

}  // namespace millrace
