// SPDX-License-Identifier: Apache-2.0
//
// Updates on cores: a work item is a span.
#pragma once

#include <bit>
#include <cstring>
#include <type_traits>

#include "core/random.hpp"
#include "ops/tiling.hpp"
#include "ops/update_rules.hpp"

namespace millrace::ops {

// Each precision has a storage class, which determines how float32 results are rounded and stored.

/// Random numbers for a span, kElements at a time. Random blocks cost more than the update itself,
/// so they only seed kSequences sequences for each kind of stored value. In every 2 * kSequences
/// neighboring elements, the two halves of a number of sequence q go to elements 2 q and 2 q + 1.
struct Draws {
  static constexpr int kSequences = 16;
  static constexpr std::int64_t kElements = 512;
  std::uint32_t state[kStoredValues][4][kSequences];
  std::uint16_t noise[kStoredValues][kElements];

  KOKKOS_FORCEINLINE_FUNCTION void start(int stored, const ParameterSpan& span,
                                         std::uint64_t step) {
    auto& s = state[stored];
    const auto first = static_cast<std::uint64_t>(span.first / kSpanElements * kSequences);
    const RandomStream stream = span.rounding;
    MILLRACE_SIMD
    for (int q = 0; q < kSequences; ++q) {
      const std::uint64_t counter =
          (first + static_cast<std::uint64_t>(q)) * 4 + static_cast<std::uint64_t>(stored);
      const RandomBlock x = stream.block(step, counter);
      s[0][q] = x[0];
      s[1][q] = x[1];
      s[2][q] = x[2];
      s[3][q] = x[3];
    }
  }

  /// Generates random numbers for the next `elements` elements: kElements of them, except at the
  /// end of the span.
  KOKKOS_FORCEINLINE_FUNCTION void draw(int stored, std::int64_t elements) {
    auto& s = state[stored];
    for (std::int64_t k = 0; k < elements; k += 2 * kSequences) {
      std::uint16_t* const to = noise[stored] + k;
      MILLRACE_SIMD
      for (int q = 0; q < kSequences; ++q) {
        const std::uint32_t number = next_in_sequence(s[0][q], s[1][q], s[2][q], s[3][q]);
        memcpy(to + 2 * q, &number, sizeof number);
      }
    }
  }
};
static_assert(kSpanElements % Draws::kElements == 0);
static_assert(Draws::kElements % (2 * Draws::kSequences) == 0);
static_assert(std::endian::native == std::endian::little,
              "the lower half of a number must come first in memory");

/// Stores values rounded to nearest even; float32 is stored unchanged.
template <class M>
struct Nearest {
  using Master = M;
  static constexpr std::int64_t kStretch = kSpanElements;
  KOKKOS_FORCEINLINE_FUNCTION void start(int, const ParameterSpan&, std::uint64_t) {}
  KOKKOS_FORCEINLINE_FUNCTION void draw(int, std::int64_t) {}
  KOKKOS_FORCEINLINE_FUNCTION M store(int, std::int64_t, float x) const { return store_as<M>(x); }
};

template <class M>
struct Stochastic {
  using Master = M;
  static constexpr std::int64_t kStretch = Draws::kElements;
  Draws draws;
  KOKKOS_FORCEINLINE_FUNCTION void start(int stored, const ParameterSpan& span,
                                         std::uint64_t step) {
    draws.start(stored, span, step);
  }
  KOKKOS_FORCEINLINE_FUNCTION void draw(int stored, std::int64_t elements) {
    draws.draw(stored, elements);
  }
  KOKKOS_FORCEINLINE_FUNCTION M store(int stored, std::int64_t k, float x) const {
    return store_stochastic<M>(x, draws.noise[stored][k]);
  }
};

/// Writes the float32 copy of 16-bit weights that kernels read as float32.
template <class M>
KOKKOS_FORCEINLINE_FUNCTION void widen_vector(const UpdateArrays<M>& a, const ParameterSpan& span) {
  if (std::is_same_v<M, float> || span.vector < 0) return;
  const M* from = a.weights + span.offset;
  float* to = a.vectors + span.vector;
  MILLRACE_SIMD
  for (std::int64_t k = 0; k < span.elements; ++k) to[k] = to_float(from[k]);
}

/// Updates one span. Copy is the type of the weights' copy; float means no copy.
template <class Rule, class Storage, class Copy = float>
struct UpdateSpan {
  using M = typename Storage::Master;
  const StepState* step;
  UpdateArrays<M> arrays;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    if (step->skips != 0) return;
    const Update u = step->values.update;  // a copy, so that stores to the arrays cannot alias it
    const ParameterSpan span = arrays.spans[i];
    const float ratio = Rule::kAdapts && span.adapts ? arrays.ratios[span.tensor] : 1.0f;
    Storage storage;
    for (int stored = 0; stored <= Rule::kSlots; ++stored) storage.start(stored, span, u.step);
    for (std::int64_t begin = 0; begin < span.elements; begin += Storage::kStretch) {
      const std::int64_t left = span.elements - begin;
      const std::int64_t elements = left < Storage::kStretch ? left : Storage::kStretch;
      for (int stored = 0; stored <= Rule::kSlots; ++stored) storage.draw(stored, elements);
      stretch(storage, u, span, begin, elements, ratio);
    }
    widen_vector(arrays, span);
  }

  KOKKOS_FORCEINLINE_FUNCTION void stretch(const Storage& storage, const Update u,
                                           const ParameterSpan& span, std::int64_t begin,
                                           std::int64_t elements, float ratio) const {
    const float decay = span.decays ? u.weight_decay : 0.0f;
    const std::int64_t first = span.offset + begin;
    M* const weights = arrays.weights + first;
    M* const velocity = Rule::kSlots > 0 ? arrays.velocity + (first - arrays.first_slot) : nullptr;
    M* const mean_square =
        Rule::kSlots > 1 ? arrays.mean_square + (first - arrays.first_slot) : nullptr;
    const float* const gradients = arrays.gradients + first;
    constexpr bool kCopies = !std::is_same_v<Copy, float>;
    Copy* const copy = kCopies ? reinterpret_cast<Copy*>(arrays.copy) + first : nullptr;
    MILLRACE_SIMD
    for (std::int64_t k = 0; k < elements; ++k) {
      const float w = to_float(weights[k]);
      SlotValues slots;
      if constexpr (Rule::kSlots > 0) slots.velocity = to_float(velocity[k]);
      if constexpr (Rule::kSlots > 1) slots.mean_square = to_float(mean_square[k]);
      const float updated = updated_weight<Rule, M>(u, decay, ratio, w, gradients[k], slots);
      weights[k] = storage.store(kWeight, k, updated);
      if constexpr (Rule::kSlots > 0) velocity[k] = storage.store(kVelocity, k, slots.velocity);
      if constexpr (Rule::kSlots > 1)
        mean_square[k] = storage.store(kMeanSquare, k, slots.mean_square);
      if constexpr (kCopies) copy[k] = store_as<Copy>(updated);
    }
  }
};

/// Updates the copies of a span's weights.
template <class M, class Copy>
struct RefreshSpan {
  UpdateArrays<M> a;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const ParameterSpan span = a.spans[i];
    widen_vector(a, span);
    if (a.copy == nullptr) return;
    const M* from = a.weights + span.offset;
    Copy* to = reinterpret_cast<Copy*>(a.copy) + span.offset;
    MILLRACE_SIMD
    for (std::int64_t k = 0; k < span.elements; ++k) to[k] = store_as<Copy>(to_float(from[k]));
  }
};

}  // namespace millrace::ops
