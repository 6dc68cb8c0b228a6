// SPDX-License-Identifier: Apache-2.0
//
// Dropout (Srivastava et al. 2014) and drop-connect, also called stochastic depth (Huang et al.
// 2016). They set an element, or a whole sample, to zero at random and scale up the others to
// preserve the mean.
//
// Masks are never stored. Whether an element is kept is a pure function of seed, op name, step,
// position of the sample in the global batch and index in the sample. The backward pass, a
// recomputation and every layout therefore use the same mask.
#pragma once

#include <cstdint>

#include "core/random.hpp"
#include "ops/activation_function.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// What differs between two calls of the same kernels on the same memory. It lies in device memory,
/// so that launches that are kept and repeated (device/queues.hpp) read new values.
struct CallValues {
  std::int64_t step = 0;  ///< number of the current weight update
  /// Position of the micro-batch's first sample in the global batch.
  std::int64_t first_sample = 0;
  float loss_scaling = 1.0f;
};

struct StepState;
/// Writes the values of a call in a step, in the queue of kernels.
void set_values(const device::ExecutionSpace& space, CallValues* values, const StepState* step,
                std::int64_t first_sample);

/// Where the random numbers of one call come from.
struct Draws {
  RandomStream stream;    ///< of (seed, purpose, op name)
  std::int64_t step = 0;  ///< number of the current weight update
  std::int64_t first_sample =
      0;  ///< position of the micro-batch's first sample in the global batch
};

/// A micro-batch of samples.
struct SampleShape {
  std::int64_t samples = 1;
  std::int64_t elements = 1;  ///< of a sample
};

/// Whether drop-connect keeps the sample at `position` of the global batch: floor(survival + U)
/// must be 1, with U uniform in [0, 1).
[[nodiscard]] MILLRACE_FUNCTION bool drop_connect_keeps(const Draws& draws, std::int64_t position,
                                                        float survival) {
  const RandomBlock words = draws.stream.block(static_cast<std::uint64_t>(draws.step),
                                               static_cast<std::uint64_t>(position));
  return survival + uniform01(words[0]) >= 1.0f;
}

/// Where the random numbers of a kernel come from: `at`, in device memory, has the step and the
/// position.
struct DrawsAt {
  RandomStream stream;
  const CallValues* at = nullptr;
  [[nodiscard]] MILLRACE_FUNCTION Draws draws() const {
    return {stream, at->step, at->first_sample};
  }
};

/// y = x / (1 - rate) for kept elements and 0 for others, with 0 <= rate < 1. An element is kept if
/// its uniform random number is at least `rate`; four neighbors share a block of random words. The
/// gradient is the same function, from dy to dx. y may be x.
template <class T>
void dropout(const device::ExecutionSpace& space, const SampleShape& shape, T* y, const T* x,
             float rate, const DrawsAt& from);

/// y = x / survival for kept samples and 0 for others, rounded to T, plus `skip` unless it is null.
/// Without `skip` the gradient is the same function. y may be x or skip.
template <class T>
void drop_connect(const device::ExecutionSpace& space, const SampleShape& shape, T* y, const T* x,
                  const T* skip, float survival, const DrawsAt& from);

}  // namespace millrace::ops
