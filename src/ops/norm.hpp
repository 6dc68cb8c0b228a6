// SPDX-License-Identifier: Apache-2.0
//
// Batch norm (Ioffe and Szegedy 2015) and group norm (Wu and He 2018) as one family. Both normalise
// by mean and variance over a set of elements; they differ in the set. Here an activation is
// `instances` blocks of `rows` x `channels`, and the channels of a block are joined into `groups`
// sets:
//
//   batch norm   1 instance of N*H*W rows, every channel its own group
//   group norm   N instances of H*W rows, `groups` groups of channels
//
// Forward, z = a x + b with a = gamma * inv_std and b = beta - mean * a, y = f(z + skip): one pass
// for the statistics, one to apply them. Backward, with dz the gradient of z and xhat = (x - mean)
// inv_std:
//
//   dbeta = sum dz,  dgamma = sum dz xhat
//   dx = inv_std (gamma dz - mean(gamma dz) - xhat mean(gamma dz xhat))
//
// again one pass for the sums and one to apply them. Everything between two possible cut points is
// rounded to the storage type on the way, in registers, so that fused and separate kernels agree
// bit for bit. Statistics are float32 from shifted sums over cache-sized chunks, two passes over
// each chunk while it is in the cache, combined in double by Chan's formula: as stable as two
// passes over memory at the price of one. There is no other, less stable form: a deviation of 0.01
// about a mean of 10,000 comes out right to the rounding of that mean.
#pragma once

#include <cstdint>

#include "core/portable.hpp"
#include "ops/activation_function.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

struct NormShape {
  Tiling tiling;
  std::int64_t rows = 0;  ///< per instance
  std::int64_t channels = 0;
  std::int64_t groups = 0;      ///< per instance
  bool strided_groups = false;  ///< group = channel mod groups instead of neighbours

  [[nodiscard]] MILLRACE_FUNCTION std::int64_t instances() const { return tiling.instances; }
  [[nodiscard]] std::int64_t elements() const { return instances() * rows * channels; }
  /// Floats in `statistics`: mean and inverse deviation of every (instance, channel).
  [[nodiscard]] std::int64_t statistics_floats() const { return 2 * instances() * channels; }
  /// Floats in `coefficients` of the backward pass.
  [[nodiscard]] std::int64_t coefficient_floats() const { return 3 * instances() * channels; }
  /// Doubles that a part of a batch comes down to, forward as backward.
  [[nodiscard]] std::int64_t part_doubles() const { return 2 * channels; }
  /// Floats of scratch that the reducing kernels need.
  [[nodiscard]] std::int64_t scratch_floats() const {
    return 2 * instances() * tiling.chunks * tiling.width;
  }
};

[[nodiscard]] NormShape batch_norm_shape(std::int64_t rows, std::int64_t channels);
[[nodiscard]] NormShape group_norm_shape(std::int64_t samples, std::int64_t pixels,
                                         std::int64_t channels, std::int64_t groups,
                                         bool strided_groups);

/// Per-step sums of the micro-batches' mean and unbiased variance (channels floats each), from
/// which the running statistics move; null for group norm and for recomputation.
struct RunningSums {
  float* mean = nullptr;
  float* variance = nullptr;
  bool first = true;  ///< overwrite instead of add
};

/// statistics = mean, then 1/sqrt(variance + epsilon), of x.
template <class T>
void norm_statistics(const device::ExecutionSpace& space, const NormShape& shape, float* statistics,
                     RunningSums running, float* scratch, const T* x, float epsilon);

/// What a replica knows of its own part of a batch: mean and sum of squared deviations of every
/// channel. Batch norm only.
template <class T>
void norm_moments(const device::ExecutionSpace& space, const NormShape& shape, double* moments,
                  float* scratch, const T* x);

/// norm_statistics of a batch whose `parts` parts, of `shape` each, have these moments, one behind
/// the other.
void norm_join_moments(const device::ExecutionSpace& space, const NormShape& shape,
                       std::int64_t parts, float* statistics, RunningSums running,
                       const double* moments, float epsilon);

/// The same from running statistics, for evaluation.
void norm_statistics_from_running(const device::ExecutionSpace& space, std::int64_t channels,
                                  float* statistics, const float* moving_mean,
                                  const float* moving_variance, float epsilon);

/// y = fn(norm(x) + skip); skip may be null.
template <class T>
void norm_apply(const device::ExecutionSpace& space, const NormShape& shape, T* y, const T* x,
                const T* skip, const float* statistics, const float* gamma, const float* beta,
                Fn fn);

/// What the first backward pass reads and writes. `dz` is given if and only if `skip_used` or
/// `dy2`.
template <class T>
struct NormBackwardReduce {
  const T* dy = nullptr;
  const T* dy2 = nullptr;  ///< a second contribution to the same gradient, added and rounded
  const T* y = nullptr;    ///< output after fn, read when a skip was added before Relu
  const T* x = nullptr;
  const float* statistics = nullptr;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  T* dz = nullptr;          ///< gradient of norm(x) + skip; may be dy or dy2
  float* dgamma = nullptr;  ///< of this micro-batch, channels floats
  float* dbeta = nullptr;
  float* coefficients = nullptr;  ///< not of norm_backward_sums
  float* scratch = nullptr;
  bool skip_used = false;
  Fn fn = Fn::None;
};

template <class T>
void norm_backward_reduce(const device::ExecutionSpace& space, const NormShape& shape,
                          const NormBackwardReduce<T>& args);

/// The same of a replica's own part of a batch, which leaves its sums of dz and dz xhat instead of
/// coefficients. Batch norm only.
template <class T>
void norm_backward_sums(const device::ExecutionSpace& space, const NormShape& shape, double* sums,
                        const NormBackwardReduce<T>& args);

/// Coefficients of a batch whose `parts` parts, of `shape` each, have these sums, one behind the
/// other; `statistics` are those of the whole.
void norm_join_sums(const device::ExecutionSpace& space, const NormShape& shape, std::int64_t parts,
                    float* coefficients, const double* sums, const float* statistics,
                    const float* gamma);

/// dx from dz (fn = None), or from dy by applying fn's gradient again. dx may be dz or dy.
template <class T>
void norm_backward_apply(const device::ExecutionSpace& space, const NormShape& shape, T* dx,
                         const T* dz_or_dy, const T* x, const float* coefficients,
                         const float* statistics, const float* gamma, const float* beta, Fn fn);

/// moving = decay * moving + (1 - decay) * sums / micro_batches, for mean and variance alike.
void update_running(const device::ExecutionSpace& space, std::int64_t channels, float* moving,
                    const float* sums, float decay, std::int64_t micro_batches);

}  // namespace millrace::ops
