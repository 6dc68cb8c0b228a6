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
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// Approximate instructions of GPUs; cores round correctly. Kernels that must agree (law 1) share
// the function. GPUs keep to 2^-22 of the result: 2^-23 of the reciprocal, 2^-22.9 of the
// reciprocal root and 2^-23 of the root by NVIDIA's PTX ISA, and the rounding of a product.

/// a / b, for b of size 2^-126 to 2^126; 0 for a larger b on GPUs.
MILLRACE_FUNCTION float fast_quotient(float a, float b) {
#if MILLRACE_PTX
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b));
  return a * reciprocal;
#elif MILLRACE_AMDGCN
  return a * __builtin_amdgcn_rcpf(b);
#else
  return a / b;
#endif
}

/// The square root of x.
MILLRACE_FUNCTION float fast_root(float x) {
#if MILLRACE_PTX
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::sqrt(x);
#endif
}

/// a / sqrt(x).
MILLRACE_FUNCTION float over_fast_root(float a, float x) {
#if MILLRACE_PTX
  float reciprocal;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return a * reciprocal;
#else
  return a / std::sqrt(x);
#endif
}

}  // namespace millrace
