// SPDX-License-Identifier: Apache-2.0
//
// Updates on accelerators: a thread updates a piece of a span, and neighboring threads have
// neighboring pieces.
//
//   span 0 (a tensor of 10,000)     span 1         span 2          span 3 (the next tensor)
//   [ piece 0 | piece 1 | .. ]      [ .. ]         [ ..  ]         [ .. ]
//
// Every span has the same number of pieces; those past its end do nothing.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/lanes.hpp"
#include "ops/update_rules.hpp"

namespace millrace::ops {

inline constexpr int kPiece = 8;
inline constexpr std::int64_t kPiecesOfSpan = kSpanElements / kPiece;

/// Whether pieces of these arrays may be accessed together.
template <class M>
[[nodiscard]] bool are_aligned(const UpdateArrays<M>& a) {
  return are_aligned(a.weights, a.velocity, a.mean_square, a.gradients, a.copy, a.vectors) &&
         a.first_slot % kPiece == 0;
}

template <int W, class T>
KOKKOS_INLINE_FUNCTION void load_piece(float (&to)[W], const T* from) {
  const LanesIn<W, T> in(from);
  for (int j = 0; j < W; ++j) to[j] = to_float(in[j]);
}

template <class T, int W>
KOKKOS_INLINE_FUNCTION void store_piece(T* to, const float (&from)[W]) {
  LanesOut<W, T> out(to);
  for (int j = 0; j < W; ++j) out.set(j, store_as<T>(from[j]));
}

/// Random numbers for the values of one kind of a piece.
struct PieceNoise {
  std::uint32_t words[4];
  KOKKOS_INLINE_FUNCTION PieceNoise(int stored, const ParameterSpan& span, std::int64_t at,
                                    std::uint64_t step) {
    const auto piece = static_cast<std::uint64_t>((span.first + at) / kPiece);
    const RandomBlock x = span.rounding.block(step, piece * 4 + static_cast<std::uint64_t>(stored));
    for (int i = 0; i < 4; ++i) words[i] = x[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::uint16_t of(std::int64_t at) const {
    const auto place = static_cast<int>(at % kPiece);
    return static_cast<std::uint16_t>(words[place / 2] >> (place % 2 * 16));
  }
};
static_assert(kPiece * sizeof(std::uint16_t) == sizeof(PieceNoise));

/// Calls body.template run<W>(span, at) for the elements of a piece: together if they may be,
/// otherwise one by one.
template <class Body>
struct Pieces {
  Body body;
  const ParameterSpan* spans;
  bool packs;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const ParameterSpan span = spans[i / kPiecesOfSpan];
    const std::int64_t begin = i % kPiecesOfSpan * kPiece;
    const std::int64_t end = begin + kPiece < span.elements ? begin + kPiece : span.elements;
    const bool aligned =
        packs && span.offset % kPiece == 0 && (span.vector < 0 || span.vector % kPiece == 0);
    if (aligned && end - begin == kPiece) return body.template run<kPiece>(span, begin);
    for (std::int64_t at = begin; at < end; ++at) body.template run<1>(span, at);
  }
};

/// Writes the float32 copy of 16-bit weights that kernels read as float32.
template <class M, int W>
KOKKOS_INLINE_FUNCTION void widen_piece(const UpdateArrays<M>& a, const ParameterSpan& span,
                                        std::int64_t at, const float (&weights)[W]) {
  if constexpr (!std::is_same_v<M, float>)
    if (span.vector >= 0) store_piece(a.vectors + span.vector + at, weights);
}

/// Copy is the type of the weights' copy; float means no copy.
template <class Rule, class M, bool kStochastic, class Copy>
struct UpdatePiece {
  const StepState* step;
  UpdateArrays<M> arrays;

  /// Stores values; leaves in `x` what is stored.
  template <int W>
  KOKKOS_INLINE_FUNCTION void round_and_store(int stored, const ParameterSpan& span,
                                              std::int64_t at, M* to, float (&x)[W]) const {
    M rounded[W];
    if constexpr (kStochastic) {
      const PieceNoise noise(stored, span, at, step->values.update.step);
      for (int j = 0; j < W; ++j) rounded[j] = store_stochastic<M>(x[j], noise.of(at + j));
    } else {
      for (int j = 0; j < W; ++j) rounded[j] = store_as<M>(x[j]);
    }
    LanesOut<W, M> out(to);
    for (int j = 0; j < W; ++j) {
      out.set(j, rounded[j]);
      x[j] = to_float(rounded[j]);
    }
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const ParameterSpan& span, std::int64_t at) const {
    if (step->skips != 0) return;
    const Update update = step->values.update;
    const UpdateArrays<M>& a = arrays;
    const std::int64_t i = span.offset + at;
    const std::int64_t slot = i - a.first_slot;
    float weight[W];
    float gradient[W];
    float velocity[W] = {};
    float mean_square[W] = {};
    load_piece(weight, a.weights + i);
    load_piece(gradient, a.gradients + i);
    if constexpr (Rule::kSlots > 0) load_piece(velocity, a.velocity + slot);
    if constexpr (Rule::kSlots > 1) load_piece(mean_square, a.mean_square + slot);
    const float decay = span.decays ? update.weight_decay : 0.0f;
    const float ratio = Rule::kAdapts && span.adapts ? a.ratios[span.tensor] : 1.0f;
    for (int j = 0; j < W; ++j) {
      SlotValues slots{velocity[j], mean_square[j]};
      weight[j] = updated_weight<Rule, M>(update, decay, ratio, weight[j], gradient[j], slots);
      velocity[j] = slots.velocity;
      mean_square[j] = slots.mean_square;
    }
    round_and_store(kWeight, span, at, a.weights + i, weight);
    if constexpr (Rule::kSlots > 0)
      round_and_store(kVelocity, span, at, a.velocity + slot, velocity);
    if constexpr (Rule::kSlots > 1)
      round_and_store(kMeanSquare, span, at, a.mean_square + slot, mean_square);
    if constexpr (!std::is_same_v<Copy, float>)
      store_piece(reinterpret_cast<Copy*>(a.copy) + i, weight);
    widen_piece(a, span, at, weight);
  }
};

/// Updates the copies of a piece's weights.
template <class M, class Copy>
struct RefreshPiece {
  UpdateArrays<M> a;

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const ParameterSpan& span, std::int64_t at) const {
    float weight[W];
    load_piece(weight, a.weights + span.offset + at);
    widen_piece(a, span, at, weight);
    if (a.copy != nullptr) store_piece(reinterpret_cast<Copy*>(a.copy) + span.offset + at, weight);
  }
};

}  // namespace millrace::ops
