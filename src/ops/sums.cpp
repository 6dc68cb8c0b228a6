// SPDX-License-Identifier: Apache-2.0
//
// Sums of channels, and passes over gradients before the update: sums of parts, norms, and the
// check for values that are not finite.
#include "ops/sums.hpp"

#include <bit>

#include "device/compat.hpp"
#include "ops/optimiser.hpp"
#include "ops/tiling.hpp"
#include "ops/update_pieces.hpp"

namespace millrace::ops {
namespace {

constexpr std::int64_t kParts = device::kOnCores ? 8 : 256;

/// Sums of the channels over a part of the rows.
template <class T>
struct ChannelSums {
  float* parts;  // [part][channel]
  const T* x;
  std::int64_t rows, channels, count;
  bool first = true;  ///< overwrites the parts
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Quotient place = divide(i, channels);
    const std::int64_t last = rows * (place.quotient + 1) / count;
    float sum = 0.0f;
    for (std::int64_t r = rows * place.quotient / count; r < last; ++r)
      sum += to_float(x[r * channels + place.remainder]);
    parts[i] = first ? sum : parts[i] + sum;
  }
};

/// Adds the parts of one block of elements, in order. Those of others are stored as `T`.
template <class T>
struct AddParts {
  static constexpr std::int64_t kBlock = device::kOnCores ? 1024 : kPiece;
  std::int64_t n;
  float* out;
  const T* others;
  std::int64_t stride;
  int own;
  int parts;
  bool packs;  ///< whether accelerators may access a block at once

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t begin = block * kBlock;
    const std::int64_t length = n - begin < kBlock ? n - begin : kBlock;
    if constexpr (device::kOnCores) return add_row(begin, length);
    if (packs && length == kBlock) return add<kPiece>(begin);
    for (std::int64_t i = begin; i < begin + length; ++i) add<1>(i);
  }

  /// Calls `use` with a pointer to the elements of a part from `begin` on.
  template <class Use>
  KOKKOS_INLINE_FUNCTION void with_part(int p, std::int64_t begin, const Use& use) const {
    if (p == own) return use(static_cast<const float*>(out) + begin);
    use(others + (p < own ? p : p - 1) * stride + begin);
  }

  KOKKOS_INLINE_FUNCTION void add_row(std::int64_t begin, std::int64_t length) const {
    float sum[kBlock];
    with_part(0, begin, [&](const auto* first) {
      MILLRACE_SIMD
      for (std::int64_t i = 0; i < length; ++i) sum[i] = to_float(first[i]);
    });
    for (int p = 1; p < parts; ++p)
      with_part(p, begin, [&](const auto* next) {
        MILLRACE_SIMD
        for (std::int64_t i = 0; i < length; ++i) sum[i] += to_float(next[i]);
      });
    MILLRACE_SIMD
    for (std::int64_t i = 0; i < length; ++i) out[begin + i] = sum[i];
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void add(std::int64_t i) const {
    float sum[W];
    with_part(0, i, [&](const auto* first) { load_piece(sum, first); });
    for (int p = 1; p < parts; ++p)
      with_part(p, i, [&]<class S>(const S* at) {
        const LanesIn<W, S> next(at);
        for (int j = 0; j < W; ++j) sum[j] += to_float(next[j]);
      });
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

struct GradientsOfSpan {
  static constexpr int kSequences = 1;
  const ParameterSpan* spans;
  const float* gradients;

  struct Values {
    const float* values;
    KOKKOS_INLINE_FUNCTION float operator()(std::int64_t k) const { return values[k]; }
  };
  template <class Sum>
  KOKKOS_INLINE_FUNCTION void use(std::int64_t i, const Sum& sum) const {
    sum(0, spans[i].elements, Values{gradients + spans[i].offset});
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

std::int64_t channel_sums_bytes(std::int64_t channels) {
  return kParts * channels * static_cast<std::int64_t>(sizeof(float));
}

template <class T>
void add_channel_sums(const device::ExecutionSpace& space, float* totals, float* scratch,
                      const T* x, std::int64_t rows, std::int64_t channels, bool first) {
  if (rows <= kParts)  // no part would have more than a row
    return device::parallel("channel sums", space, channels,
                            ChannelSums<T>{totals, x, rows, channels, 1, first});
  device::parallel("channel sums", space, kParts * channels,
                   ChannelSums<T>{scratch, x, rows, channels, kParts});
  device::parallel("joined sums", space, channels,
                   JoinParts{totals, scratch, channels, kParts, first});
}

void square_gradients(const device::ExecutionSpace& space, const ParameterSpan* spans,
                      std::int64_t num_spans, const float* gradients, Accumulator* squares) {
  sum_squares("grad_squares", space, num_spans, GradientsOfSpan{spans, gradients}, squares);
}

template <class T>
void add_parts(const device::ExecutionSpace& space, std::int64_t n, float* out, const T* others,
               std::int64_t stride, int own, int parts) {
  using Add = AddParts<T>;
  const bool packs = are_aligned(out, others, others + stride);
  const Add add{n, out, others, stride, own, parts, packs};
  device::parallel("add_parts", space, (n + Add::kBlock - 1) / Add::kBlock, add);
}

template <class T>
void flag_non_finite(const device::ExecutionSpace& space, std::int64_t n, const T* x,
                     std::uint32_t* flag) {
  using Flag = FlagNonFinite<T>;
  device::parallel("flag_non_finite", space, (n + Flag::kBlock - 1) / Flag::kBlock,
                   Flag{n, x, flag, are_aligned(x)});
}

MILLRACE_INSTANTIATE(add_channel_sums)
MILLRACE_INSTANTIATE(add_parts)
MILLRACE_INSTANTIATE(flag_non_finite)

}  // namespace millrace::ops
