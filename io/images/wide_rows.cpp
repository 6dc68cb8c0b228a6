// SPDX-License-Identifier: Apache-2.0
#include "io/images/wide_rows.hpp"

#include <algorithm>

#include "core/instruction_level.hpp"
#include "io/images/resample.hpp"

#if defined(__x86_64__)
#if !defined(__clang__)
// GCC's functions begin with registers that are undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace millrace::io {
namespace {

constexpr std::size_t kBlock = 16;
constexpr std::size_t kGroup = 4 * kBlock;  // values whose bytes fill a register
constexpr std::size_t kChannels = 3;

#define MILLRACE_WIDE gnu::target("avx512f,avx512bw,avx512dq,avx512vl")

using Floats [[gnu::vector_size(64)]] = float;
using Integers [[gnu::vector_size(64)]] = std::int32_t;
template <class Value>
using Vector = std::conditional_t<std::is_same_v<Value, float>, Floats, Integers>;

template <class Value>
[[MILLRACE_WIDE]] inline Vector<Value> load(const Value* values) {
  return reinterpret_cast<Vector<Value>>(_mm512_loadu_si512(values));
}

/// The bits of the first `n` lanes.
inline std::uint64_t first_lanes(std::size_t n) {
  return n < 64 ? (std::uint64_t{1} << n) - 1 : ~std::uint64_t{0};
}

/// Up to sixteen of `n` bytes; the others are zero and are not read.
template <class Value>
[[MILLRACE_WIDE]] inline Vector<Value> load_bytes(const std::uint8_t* bytes, std::size_t n) {
  const __m128i some = n >= kBlock
                           ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))
                           : _mm_maskz_loadu_epi8(static_cast<__mmask16>(first_lanes(n)), bytes);
  return __builtin_convertvector(reinterpret_cast<Integers>(_mm512_cvtepu8_epi32(some)),
                                 Vector<Value>);
}

[[MILLRACE_WIDE]] inline __m512i rounded(Floats sum) {
  return reinterpret_cast<__m512i>(__builtin_convertvector(sum + 0.5f, Integers));
}
[[MILLRACE_WIDE]] inline __m512i rounded(Integers sum) {
  return reinterpret_cast<__m512i>((sum + (1 << (kFixedBits - 1))) >> kFixedBits);
}

/// Stores up to 64 of `n` sums, rounded and clamped to bytes.
template <class Sum>
[[MILLRACE_WIDE]] inline void store_bytes(const Sum (&sums)[4], std::size_t n, std::uint8_t* out) {
  // Packing works within the quarters of registers.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i low = _mm512_packs_epi32(rounded(sums[0]), rounded(sums[1]));
  const __m512i high = _mm512_packs_epi32(rounded(sums[2]), rounded(sums[3]));
  const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
  _mm512_mask_storeu_epi8(out, first_lanes(n), bytes);
}

/// Sixteen values: those at `index` of the registers that begin at `from`, or, for indices above
/// 31, of the two after these.
template <bool Far>
[[MILLRACE_WIDE]] inline __m512i pick(const std::int32_t* from, __m512i index) {
  const __m512i near =
      _mm512_permutex2var_epi32(_mm512_loadu_si512(from), index, _mm512_loadu_si512(from + kBlock));
  if constexpr (!Far) return near;
  const __m512i far = _mm512_permutex2var_epi32(_mm512_loadu_si512(from + 2 * kBlock), index,
                                                _mm512_loadu_si512(from + 3 * kBlock));
  return _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(index, _mm512_set1_epi32(31)), near, far);
}

/// Taps: 0 for any number, here and below.
template <std::size_t Taps, bool Far, class Value>
[[MILLRACE_WIDE]] void blend_columns(const WideColumns<Value>& columns, const Value* row,
                                     std::uint8_t* out) {
  const std::size_t taps = Taps > 0 ? Taps : columns.taps;
  const std::int32_t* from = columns.from.data();
  const std::int32_t* index = columns.index.data();
  const Value* weight = columns.weight.data();
  for (std::size_t i = 0, n = columns.values; i < n; i += kGroup) {
    Vector<Value> sums[4];
#pragma GCC unroll 4
    for (Vector<Value>& sum : sums) {
      const auto* const first = reinterpret_cast<const std::int32_t*>(row + *from++);
      const __m512i at = _mm512_loadu_si512(index);
      index += kBlock;
#pragma GCC unroll 8
      for (std::size_t t = 0; t < taps; ++t, weight += kBlock) {
        const auto value = reinterpret_cast<Vector<Value>>(pick<Far>(first + kChannels * t, at));
        sum = t == 0 ? load(weight) * value : sum + load(weight) * value;
      }
    }
    store_bytes(sums, n - i, out + i);
  }
}

/// Sixteen values of a sum of rows, which have `n` values from `at` on.
template <std::size_t Taps, class Value>
[[MILLRACE_WIDE]] inline Vector<Value> blend_block(std::span<const std::uint8_t* const> rows,
                                                   const Value* weight, std::size_t at,
                                                   std::size_t n) {
  const std::size_t taps = Taps > 0 ? Taps : rows.size();
  Vector<Value> sum = weight[0] * load_bytes<Value>(rows.data()[0] + at, n);
#pragma GCC unroll 8
  for (std::size_t t = 1; t < taps; ++t)
    sum += weight[t] * load_bytes<Value>(rows.data()[t] + at, n);
  return sum;
}

template <std::size_t Taps>
[[MILLRACE_WIDE]] void blend_rows(std::span<const std::uint8_t* const> rows, const float* weight,
                                  std::size_t n, float* out) {
  for (std::size_t i = 0; i < n; i += kBlock)
    _mm512_storeu_ps(out + i, blend_block<Taps>(rows, weight, i, n - i));
}

template <std::size_t Taps>
[[MILLRACE_WIDE]] void blend_rows(std::span<const std::uint8_t* const> rows,
                                  const std::int32_t* weight, std::size_t n, std::uint8_t* out) {
  for (std::size_t i = 0; i < n; i += kGroup) {
    Integers sums[4];
#pragma GCC unroll 4
    for (std::size_t k = 0; k < 4; ++k) {
      const std::size_t at = std::min(i + k * kBlock, n);
      sums[k] = blend_block<Taps>(rows, weight, at, n - at);
    }
    store_bytes(sums, n - i, out + i);
  }
}

[[MILLRACE_WIDE]] void widen_row(const std::uint8_t* row, std::size_t n, std::int32_t* out) {
  for (std::size_t i = 0; i < n; i += kBlock) {
    const Integers values = load_bytes<std::int32_t>(row + i, n - i);
    _mm512_storeu_si512(out + i, reinterpret_cast<__m512i>(values));
  }
}

/// Around: writes around the caches, which saves reading the memory first. A large image is gone
/// from them anyway before anybody reads its batch.
template <bool Around>
[[MILLRACE_WIDE]] void normalise(const std::uint8_t* bytes, const float* mean, const float* scale,
                                 std::size_t n, bfloat16* out) {
  const Integers even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  const auto upper_halves = reinterpret_cast<__m512i>((even << 17) + (3 << 16) + 2 * even + 1);
  for (std::size_t i = 0; i < n; i += 2 * kWidePattern) {
    __m512i halves[6];
#pragma GCC unroll 6
    for (std::size_t k = 0; k < 6; ++k) {
      const std::size_t at = k % 3 * kBlock;
      const Floats value = load_bytes<float>(bytes + i + k * kBlock, kBlock);
      const auto wide = reinterpret_cast<Integers>((value - load(mean + at)) * load(scale + at));
      // to_bfloat16, but for NaNs with bits that no arithmetic makes.
      halves[k] = reinterpret_cast<__m512i>(wide + 0x7fff + ((wide >> 16) & 1));
    }
#pragma GCC unroll 3
    for (std::size_t k = 0; k < 6; k += 2) {
      auto* const to = reinterpret_cast<__m512i*>(out + i + k * kBlock);
      const __m512i both = _mm512_permutex2var_epi16(halves[k], upper_halves, halves[k + 1]);
      Around ? _mm512_stream_si512(to, both) : _mm512_storeu_si512(to, both);
    }
  }
  if (Around) _mm_sfence();  // who hears of the values then finds them
}

}  // namespace

template <class Value>
bool WideColumns<Value>::prepare(const AxisWeights& columns, const Value* weights) {
  constexpr auto kNear = static_cast<std::int32_t>(2 * kBlock);
  if (instruction_level() < InstructionLevel::Avx512) return false;
  taps = static_cast<std::size_t>(columns.taps);
  values = kChannels * columns.size();
  const std::size_t places = (values + kGroup - 1) / kGroup * kGroup;
  from.assign(places / kBlock, 0);
  index.assign(places, 0);
  weight.assign(places * taps, Value{});
  const std::int32_t* const first = columns.first.data();
  std::int32_t furthest = 0;
  for (std::size_t begin = 0; begin < values; begin += kBlock) {
    const std::size_t count = std::min(kBlock, values - begin);
    // Results are in the order of the source or, mirrored, in the opposite one.
    const std::int32_t nearest =
        std::min(first[begin / kChannels], first[(begin + count - 1) / kChannels]);
    from[begin / kBlock] = 3 * (nearest - columns.begin);
    Value* const to = weight.data() + begin * taps;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t x = (begin + i) / kChannels;
      const auto channel = static_cast<std::int32_t>((begin + i) % kChannels);
      index.data()[begin + i] = 3 * (first[x] - nearest) + channel;
      furthest = std::max(furthest, index.data()[begin + i]);
      for (std::size_t t = 0; t < taps; ++t) to[t * kBlock + i] = weights[x * taps + t];
    }
  }
  far = furthest >= kNear;
  return furthest < 2 * kNear;
}

template <class Value>
void WideColumns<Value>::blend(const Value* row, std::uint8_t* out) const {
  with_taps(taps, [&](auto constant) {
    if (far)
      blend_columns<constant(), true>(*this, row, out);
    else
      blend_columns<constant(), false>(*this, row, out);
  });
}

void blend_wide(std::span<const std::uint8_t* const> rows, const float* weight, std::size_t n,
                float* out) {
  with_taps(rows.size(), [&](auto taps) { blend_rows<taps()>(rows, weight, n, out); });
}

void blend_wide(std::span<const std::uint8_t* const> rows, const std::int32_t* weight,
                std::size_t n, std::uint8_t* out) {
  with_taps(rows.size(), [&](auto taps) { blend_rows<taps()>(rows, weight, n, out); });
}

void widen(const std::uint8_t* row, std::size_t n, std::int32_t* out) { widen_row(row, n, out); }

std::size_t normalise_wide(const std::uint8_t* bytes, const float* mean, const float* scale,
                           std::size_t n, bfloat16* out) {
  constexpr std::size_t kLarge = std::size_t{1} << 16;
  if (instruction_level() < InstructionLevel::Avx512) return 0;
  n -= n % (2 * kWidePattern);
  if (n >= kLarge && reinterpret_cast<std::uintptr_t>(out) % sizeof(__m512i) == 0)
    normalise<true>(bytes, mean, scale, n, out);
  else
    normalise<false>(bytes, mean, scale, n, out);
  return n;
}
#else
namespace millrace::io {

template <class Value>
bool WideColumns<Value>::prepare(const AxisWeights&, const Value*) {
  return false;
}
std::size_t normalise_wide(const std::uint8_t*, const float*, const float*, std::size_t,
                           bfloat16*) {
  return 0;
}
// Not called, as no columns are prepared.
template <class Value>
void WideColumns<Value>::blend(const Value*, std::uint8_t*) const {}
void blend_wide(std::span<const std::uint8_t* const>, const float*, std::size_t, float*) {}
void blend_wide(std::span<const std::uint8_t* const>, const std::int32_t*, std::size_t,
                std::uint8_t*) {}
void widen(const std::uint8_t*, std::size_t, std::int32_t*) {}
#endif

template struct WideColumns<float>;
template struct WideColumns<std::int32_t>;

}  // namespace millrace::io
