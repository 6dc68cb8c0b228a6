// SPDX-License-Identifier: Apache-2.0
//
// Passes over gradients before the update: sums of parts, norms, and the check for values that are
// not finite.
#include <cstring>

#include "device/compat.hpp"
#include "ops/instantiate.hpp"
#include "ops/optimiser.hpp"
#include "ops/sum_of_squares.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

/// Adds the parts of one block of elements, in order.
struct AddParts {
  static constexpr std::int64_t kBlock = 1024;
  std::int64_t n;
  float* out;
  const float* others;
  std::int64_t stride;
  int own;
  int parts;

  KOKKOS_FUNCTION const float* part(int p) const {
    return p == own ? out : others + (p < own ? p : p - 1) * stride;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t begin = block * kBlock;
    const std::int64_t length = n - begin < kBlock ? n - begin : kBlock;
    float sum[kBlock];
    const float* first = part(0) + begin;
    MILLRACE_SIMD
    for (std::int64_t i = 0; i < length; ++i) sum[i] = first[i];
    for (int p = 1; p < parts; ++p) {
      const float* next = part(p) + begin;
      MILLRACE_SIMD
      for (std::int64_t i = 0; i < length; ++i) sum[i] += next[i];
    }
    MILLRACE_SIMD
    for (std::int64_t i = 0; i < length; ++i) out[begin + i] = sum[i];
  }
};

/// The bits of a value as float32, with exponent and sign in their float32 positions.
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t bits_of(bfloat16 x) {
  return static_cast<std::uint32_t>(x.bits) << 16;
}
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t bits_of(float16 x) { return bits_of(to_float(x)); }

}  // namespace

void square_gradients(const device::ExecutionSpace& space, const ParameterSpan* spans,
                      std::int64_t num_spans, const float* gradients, double* squares) {
  const auto span = KOKKOS_LAMBDA(std::int64_t i) {
    const float* const from = gradients + spans[i].offset;
    squares[i] = sum_of_squares(spans[i].elements, [=](std::int64_t k) { return from[k]; });
  };
  device::parallel("grad_squares", space, num_spans, span);
}

void add_parts(const device::ExecutionSpace& space, std::int64_t n, float* out, const float* others,
               std::int64_t stride, int own, int parts) {
  const AddParts add{n, out, others, stride, own, parts};
  device::parallel("add_parts", space, (n + AddParts::kBlock - 1) / AddParts::kBlock, add);
}

/// Adding one to the exponent carries into the sign bit if the exponent has its maximum value.
template <class T>
void flag_non_finite(const device::ExecutionSpace& space, std::int64_t n, const T* x,
                     std::uint32_t* flag) {
  constexpr std::int64_t kBlock = 16384;
  const auto check = KOKKOS_LAMBDA(std::int64_t block) {
    const std::int64_t begin = block * kBlock;
    const std::int64_t length = n - begin < kBlock ? n - begin : kBlock;
    const T* from = x + begin;
    std::uint32_t carries = 0;
    for (std::int64_t i = 0; i < length; ++i)
      carries |= (bits_of(from[i]) & 0x7fffffffu) + 0x00800000u;
    if ((carries & 0x80000000u) != 0) (void)Kokkos::atomic_fetch_or(flag, 1u);
  };
  device::parallel("flag_non_finite", space, (n + kBlock - 1) / kBlock, check);
}

MILLRACE_INSTANTIATE(flag_non_finite)

}  // namespace millrace::ops
