// SPDX-License-Identifier: Apache-2.0
//
// Passes over gradients before the update: sums of parts, norms, and the check for values that are
// not finite.
#include <bit>

#include "device/compat.hpp"
#include "ops/instantiate.hpp"
#include "ops/optimiser.hpp"
#include "ops/sum_of_squares.hpp"
#include "ops/team_sums.hpp"
#include "ops/tiling.hpp"
#include "ops/update_pieces.hpp"

namespace millrace::ops {
namespace {

/// Adds the parts of one block of elements, in order.
struct AddParts {
  static constexpr std::int64_t kBlock = device::kOnCores ? 1024 : kPiece;
  std::int64_t n;
  float* out;
  const float* others;
  std::int64_t stride;
  int own;
  int parts;
  bool packs;  ///< whether accelerators may access a block at once

  KOKKOS_FUNCTION const float* part(int p) const {
    return p == own ? out : others + (p < own ? p : p - 1) * stride;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t begin = block * kBlock;
    const std::int64_t length = n - begin < kBlock ? n - begin : kBlock;
    if constexpr (device::kOnCores) return add_row(begin, length);
    if (packs && length == kBlock) return add<kPiece>(begin);
    for (std::int64_t i = begin; i < begin + length; ++i) add<1>(i);
  }

  KOKKOS_INLINE_FUNCTION void add_row(std::int64_t begin, std::int64_t length) const {
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

  template <int W>
  KOKKOS_INLINE_FUNCTION void add(std::int64_t i) const {
    float sum[W];
    load_piece(sum, part(0) + i);
    for (int p = 1; p < parts; ++p) {
      const LanesIn<W, float> next(part(p) + i);
      for (int j = 0; j < W; ++j) sum[j] += next[j];
    }
    store_piece(out + i, sum);
  }
};

/// The bits of a value as float32, with exponent and sign in their float32 positions.
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t bits_of(bfloat16 x) {
  return static_cast<std::uint32_t>(x.bits) << 16;
}
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t bits_of(float16 x) { return bits_of(to_float(x)); }

/// On cores: the sum of squares of the gradients of a span.
struct GradientSquares {
  const ParameterSpan* spans;
  const float* gradients;
  Accumulator* squares;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const float* const from = gradients + spans[i].offset;
    squares[i] = sum_of_squares(spans[i].elements, [=](std::int64_t k) { return from[k]; });
  }
};

/// On accelerators: the same by a team.
struct GradientSquaresByTeam {
  [[maybe_unused]] static constexpr int kThreads = kTeamThreads;
  [[maybe_unused]] static constexpr std::size_t kSharedBytes = kTeamLanes * sizeof(Accumulator);
  const ParameterSpan* spans;
  const float* gradients;
  Accumulator* squares;

  struct Values {
    const float* values;
    KOKKOS_INLINE_FUNCTION float operator()(std::int64_t k) const { return values[k]; }
  };

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    const ParameterSpan span = spans[i];
    const Accumulator sum = team_sum_of_squares(team, reinterpret_cast<Accumulator*>(team.shared()),
                                                span.elements, Values{gradients + span.offset});
    if (team.rank() == 0) squares[i] = sum;
  }
};

/// Adding one to the exponent carries into the sign bit if the exponent has its maximum value.
template <class T>
struct FlagNonFinite {
  static constexpr std::int64_t kBlock = device::kOnCores ? 16384 : kPiece;
  std::int64_t n;
  const T* x;
  std::uint32_t* flag;
  bool packs;  ///< whether accelerators may access a block at once

  KOKKOS_INLINE_FUNCTION static std::uint32_t carry(T value) {
    return (bits_of(value) & 0x7fffffffu) + 0x00800000u;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t begin = block * kBlock;
    const std::int64_t length = n - begin < kBlock ? n - begin : kBlock;
    const T* const from = x + begin;
    std::uint32_t carries = 0;
    if (!device::kOnCores && packs && length == kBlock) {
      const LanesIn<kPiece, T> in(from);
      for (int j = 0; j < kPiece; ++j) carries |= carry(in[j]);
    } else {
      for (std::int64_t i = 0; i < length; ++i) carries |= carry(from[i]);
    }
    if ((carries & 0x80000000u) != 0) (void)Kokkos::atomic_fetch_or(flag, 1u);
  }
};

}  // namespace

void square_gradients(const device::ExecutionSpace& space, const ParameterSpan* spans,
                      std::int64_t num_spans, const float* gradients, Accumulator* squares) {
  if constexpr (device::kOnCores) {
    device::parallel("grad_squares", space, num_spans, GradientSquares{spans, gradients, squares});
  } else {
    device::parallel_teams("grad_squares", space, num_spans,
                           GradientSquaresByTeam{spans, gradients, squares});
  }
}

void add_parts(const device::ExecutionSpace& space, std::int64_t n, float* out, const float* others,
               std::int64_t stride, int own, int parts) {
  const bool packs = are_aligned(out, others, others + stride);
  const AddParts add{n, out, others, stride, own, parts, packs};
  device::parallel("add_parts", space, (n + AddParts::kBlock - 1) / AddParts::kBlock, add);
}

template <class T>
void flag_non_finite(const device::ExecutionSpace& space, std::int64_t n, const T* x,
                     std::uint32_t* flag) {
  using Flag = FlagNonFinite<T>;
  device::parallel("flag_non_finite", space, (n + Flag::kBlock - 1) / Flag::kBlock,
                   Flag{n, x, flag, are_aligned(x)});
}

MILLRACE_INSTANTIATE(flag_non_finite)

}  // namespace millrace::ops
