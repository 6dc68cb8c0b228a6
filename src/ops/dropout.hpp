// SPDX-License-Identifier: Apache-2.0
//
// Dropout (Srivastava et al. 2014) and drop-connect, also called stochastic depth (Huang et al.
// 2016): an element, or the whole of a sample, is zero or else scaled up so that its mean stays.
//
// Masks are never stored. Whether an element is kept is a pure function of (seed, op name, step,
// position of its sample in the global batch, place in the sample), so that the backward pass, a
// recomputation and every layout draw the same.
#pragma once

#include <cstdint>

#include "core/random.hpp"
#include "ops/activation_function.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// Where the random numbers of one call come from.
struct Draws {
  RandomStream stream;    ///< of (seed, purpose, op name)
  std::int64_t step = 0;  ///< number of the weight update that the call is part of
  std::int64_t first_sample =
      0;  ///< position of the micro-batch's first sample in the global batch
};

/// A micro-batch of samples.
struct SampleShape {
  std::int64_t samples = 1;
  std::int64_t elements = 1;  ///< of a sample
};

/// Whether dropout keeps element `element` of the sample at `position` of the global batch: its
/// uniform number, one word of a block for four neighbours, is at least `rate`.
[[nodiscard]] MILLRACE_FUNCTION bool dropout_keeps(const Draws& draws, std::int64_t position,
                                                   std::int64_t elements, std::int64_t element,
                                                   float rate) {
  const std::int64_t blocks = (elements + 3) / 4;
  const RandomBlock words =
      draws.stream.block(static_cast<std::uint64_t>(draws.step),
                         static_cast<std::uint64_t>(position * blocks + element / 4));
  return uniform01(words[static_cast<std::size_t>(element % 4)]) >= rate;
}

/// Whether drop-connect keeps the sample at `position` of the global batch: floor(survival + U) is
/// one.
[[nodiscard]] MILLRACE_FUNCTION bool drop_connect_keeps(const Draws& draws, std::int64_t position,
                                                        float survival) {
  const RandomBlock words = draws.stream.block(static_cast<std::uint64_t>(draws.step),
                                               static_cast<std::uint64_t>(position));
  return survival + uniform01(words[0]) >= 1.0f;
}

/// y = x / (1 - rate) where kept and 0 elsewhere. The gradient is the same function: dx from dy. y
/// may be x. 0 <= rate < 1.
template <class T>
void dropout(const device::ExecutionSpace& space, const SampleShape& shape, T* y, const T* x,
             float rate, const Draws& draws);

/// y = x / survival where the sample is kept and 0 elsewhere, rounded to T, plus `skip` unless that
/// is null. Without skip the gradient is the same function. y may be x or skip.
template <class T>
void drop_connect(const device::ExecutionSpace& space, const SampleShape& shape, T* y, const T* x,
                  const T* skip, float survival, const Draws& draws);

}  // namespace millrace::ops
