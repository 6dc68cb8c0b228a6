// SPDX-License-Identifier: Apache-2.0
//
// Batch normalization (Ioffe and Szegedy 2015) and group normalization (Wu and He 2018). Both
// normalize by mean and variance over a set of elements and differ in the set only. Here an
// activation consists of `instances` blocks of `rows` x `channels`, and the channels of a block
// form `groups` sets:
//
//   batch norm   1 instance of N*H*W rows, one group per channel
//   group norm   N instances of H*W rows, `groups` groups of channels
//
// Forward: z = a x + b with a = gamma * inv_std and b = beta - mean * a, and y = f(z + skip). One
// pass computes the statistics, one applies them. Backward, with dz the gradient of z and
// xhat = (x - mean) inv_std:
//
//   dbeta = sum dz,  dgamma = sum dz xhat
//   dx = inv_std (gamma dz - mean(gamma dz) - xhat mean(gamma dz xhat))
//
// Again one pass computes the sums and one applies them. On accelerators each pass is one launch;
// on cores the results of sums are launches of their own (norm_teams.hpp). Every value at a
// possible cut point is rounded to the storage type, in registers, so that fused and separate
// kernels agree bit for bit.
//
// Statistics are float32. They come from shifted sums over chunks, on cores with two passes over
// each chunk while it is in the cache, and are combined in accumulators by Chan's formula.
// This is as stable as two passes over memory and costs one: a deviation of 0.01 about a
// mean of 10,000 is accurate up to the rounding of that mean.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/portable.hpp"
#include "ops/accumulator.hpp"
#include "ops/activation_function.hpp"
#include "ops/cutlass/tile_shape.hpp"
#include "ops/inlined_norm.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// How teams sum over the rows of an activation (norm_teams.hpp). Depends on the shape only.
struct NormTeamShape {
  static constexpr int kChunks = tiling::kTeamChunks;  ///< of a block
  static constexpr int kStrips = tiling::kTeamStrips;

  Tiling tiling;
  std::int64_t sets;     ///< in an instance
  bool apart;            ///< whether each column has its own sets, which then are its lanes
  std::int64_t columns;  ///< in an instance, like blocks and groups
  std::int64_t blocks;
  std::int64_t fan = 1;  ///< blocks in a group; 1: blocks are joined in one step
  std::int64_t groups = 0;
  std::int64_t instance_fan = 1;  ///< instances that are joined in the first of two steps
  std::int64_t instance_groups;

  NormTeamShape(const Tiling& t, std::int64_t sets_of_instance)
      : tiling(t),
        sets(sets_of_instance),
        apart(t.instances == 1 && t.tile == 1 && sets == t.channels),
        columns(tiling::quotient_up(t.strips, kStrips)),
        blocks(tiling::quotient_up(t.chunks, kChunks)) {
    // Both steps are equally long.
    while (instance_fan * instance_fan < tiling.instances) ++instance_fan;
    instance_groups = tiling::quotient_up(tiling.instances, instance_fan);
    constexpr std::int64_t kFewBlocks = 64;  // eight waits for memory (LaneParts)
    if (blocks <= kFewBlocks) return;
    while (fan * fan < blocks) ++fan;
    groups = tiling::quotient_up(blocks, fan);
  }

  [[nodiscard]] std::int64_t teams() const { return tiling.instances * blocks * columns; }
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t counters_of_instance() const {
    return columns * (groups + 1) + 1;
  }
  /// Counters that are zero before and after a kernel.
  [[nodiscard]] std::int64_t counters() const {
    return instance_counters_at() + instance_groups + 1;
  }
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t instance_counters_at() const {
    return tiling.instances * counters_of_instance();
  }

  // Places in the scratch: totals, blocks and groups, as [instance][block][2][width]. A single
  // block is the total.
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t blocks_at() const {
    return blocks > 1 ? floats_of(1) : 0;
  }
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t groups_at() const {
    return blocks_at() + floats_of(blocks);
  }
  [[nodiscard]] std::int64_t scratch_floats() const { return groups_at() + floats_of(groups); }
  /// The tiling of the totals.
  [[nodiscard]] Tiling whole() const { return tiling::with_chunks(tiling, tiling.tile_rows); }

 private:
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t floats_of(std::int64_t parts) const {
    return 2 * tiling.instances * parts * tiling.width;
  }
};

struct NormShape {
  Tiling tiling;
  std::int64_t rows = 0;  ///< per instance
  std::int64_t channels = 0;
  std::int64_t groups = 0;      ///< per instance
  bool strided_groups = false;  ///< group = channel mod groups, not neighbors
  /// Whether the sums over x, or those of the backward pass, are added up in tiles, as products do
  /// that compute x or the gradient (ops/cutlass). Batch norm of 16-bit types only.
  bool moments_in_tiles = false;
  bool gradients_in_tiles = false;

  [[nodiscard]] MILLRACE_FUNCTION std::int64_t instances() const { return tiling.instances; }
  [[nodiscard]] std::int64_t elements() const { return instances() * rows * channels; }
  /// Floats in `statistics`: mean and inverse standard deviation of every (instance, channel).
  [[nodiscard]] std::int64_t statistics_floats() const { return 2 * instances() * channels; }
  /// Floats in `coefficients` of the backward pass.
  [[nodiscard]] std::int64_t coefficient_floats() const { return 3 * instances() * channels; }
  /// Values in the moments or the sums of one part of a batch.
  [[nodiscard]] std::int64_t part_values() const { return 2 * channels; }
  [[nodiscard]] NormTeamShape teams() const { return {tiling, groups}; }
  [[nodiscard]] tiles::TileShape tile_shape() const { return {rows, channels}; }
  /// Whether every channel is a set.
  [[nodiscard]] MILLRACE_FUNCTION bool by_channel() const {
    return instances() == 1 && groups == channels;
  }
  /// Floats of scratch that the reducing kernels need: two sums of every lane and chunk, or what
  /// teams need and then what the forward or the backward pass needs.
  [[nodiscard]] std::int64_t scratch_floats() const {
    const bool tiles = moments_in_tiles || gradients_in_tiles;
    const std::int64_t of_tiles = tiles ? tile_shape().floats() : 0;
    if constexpr (device::kOnCores)
      return std::max(of_tiles, 2 * instances() * tiling.chunks * tiling.width);
    const NormTeamShape by_teams = teams();
    const std::int64_t backward = 2 * channels * (instances() + by_teams.instance_groups);
    const std::int64_t results = std::max(instances() * tiling.width, by_channel() ? 0 : backward);
    return std::max(of_tiles, by_teams.scratch_floats() + results);
  }
  /// Counters that they need.
  [[nodiscard]] std::int64_t counters() const { return device::kOnCores ? 0 : teams().counters(); }
};

/// Memory of the reducing kernels, which kernels that run one after another may share. Counters are
/// zeros before a kernel and after it, so nobody else may use their memory.
struct NormScratch {
  float* sums = nullptr;              ///< shape.scratch_floats()
  std::uint32_t* counters = nullptr;  ///< shape.counters()
};
/// Sets `count` counters to zero.
void clear_counters(const device::ExecutionSpace& space, std::uint32_t* counters,
                    std::int64_t count);

[[nodiscard]] NormShape batch_norm_shape(std::int64_t rows, std::int64_t channels);
[[nodiscard]] NormShape group_norm_shape(std::int64_t samples, std::int64_t pixels,
                                         std::int64_t channels, std::int64_t groups,
                                         bool strided_groups);

/// Sums over a step of the micro-batches' means and unbiased variances (`channels` floats each),
/// which update the running statistics. Null for group norm and for recomputation.
struct RunningSums {
  float* mean = nullptr;
  float* variance = nullptr;
  bool first = true;  ///< overwrite instead of add
};

/// statistics = mean of x, then 1/sqrt(variance + epsilon).
template <class T>
void norm_statistics(const device::ExecutionSpace& space, const NormShape& shape, float* statistics,
                     RunningSums running, NormScratch scratch, const T* x, float epsilon);

/// Moments of one replica's part of a batch: mean and sum of squared deviations of every channel.
/// Batch norm only.
template <class T>
void norm_moments(const device::ExecutionSpace& space, const NormShape& shape, Accumulator* moments,
                  NormScratch scratch, const T* x);

/// Like norm_statistics, from the moments of the batch's `parts` parts. Each part has shape
/// `shape`; their moments are stored one after another.
void norm_join_moments(const device::ExecutionSpace& space, const NormShape& shape,
                       std::int64_t parts, float* statistics, RunningSums running,
                       const Accumulator* moments, float epsilon);

/// Like norm_statistics, from the sums of x over all rows and of its squares, `channels` floats
/// each: for libraries that add while they convolve. Batch norm only. A mean that is large beside
/// the deviation costs the deviation its digits.
void norm_statistics_of_sums(const device::ExecutionSpace& space, const NormShape& shape,
                             float* statistics, RunningSums running, const float* sums,
                             const float* squares, float epsilon);

/// Like norm_statistics, from the running statistics, for evaluation.
void norm_statistics_from_running(const device::ExecutionSpace& space, std::int64_t channels,
                                  float* statistics, const float* moving_mean,
                                  const float* moving_variance, float epsilon);

/// A norm by its statistics and parameters.
struct NormParameters {
  const float* statistics = nullptr;
  const float* gamma = nullptr;
  const float* beta = nullptr;
};

/// y = fn(norm(x) + skip); skip may be null. If `of_skip` has statistics, it is a norm of the same
/// kind, which is applied to skip first (fn is None or Relu). Where there is a mask (behind a skip
/// and Relu, of 8 n channels), its bits become y > 0. With an `excitation`: fn(norm(x)) * factor,
/// rounded before and after the product.
template <class T>
void norm_apply(const device::ExecutionSpace& space, const NormShape& shape, T* y, const T* x,
                const T* skip, const float* statistics, const float* gamma, const float* beta,
                Activation fn, std::uint8_t* mask = nullptr, const NormParameters& of_skip = {},
                const Excitation<T>& excitation = {});

/// Arguments of the first backward pass. `dz` is set if and only if `skip_used` or `dy2` is.
template <class T>
struct NormBackwardReduce {
  const T* dy = nullptr;
  const T* dy2 = nullptr;  ///< a second contribution to the same gradient, added and rounded
  const T* y = nullptr;    ///< output after fn; read if a skip was added before Relu
  const std::uint8_t* mask = nullptr;  ///< read instead, if norm_apply wrote it
  const T* x = nullptr;
  const float* statistics = nullptr;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  T* dz = nullptr;          ///< gradient of norm(x) + skip; may be dy or dy2
  float* dgamma = nullptr;  ///< of this micro-batch, `channels` floats
  float* dbeta = nullptr;
  /// Sums over micro-batches, to which the same are added; null: none.
  float* total_dgamma = nullptr;
  float* total_dbeta = nullptr;
  bool first = true;              ///< micro-batch: the sums are set
  float* coefficients = nullptr;  ///< not used by norm_backward_sums
  NormScratch scratch;
  bool skip_used = false;
  Activation fn = Activation::None;
  Excitation<T> excitation;  ///< if there is one, dy is the gradient of the product, and alone
};

template <class T>
void norm_backward_reduce(const device::ExecutionSpace& space, const NormShape& shape,
                          const NormBackwardReduce<T>& args);

/// Like norm_backward_reduce for one replica's part of a batch, but returns the sums of dz and dz
/// xhat instead of coefficients. Batch norm only.
template <class T>
void norm_backward_sums(const device::ExecutionSpace& space, const NormShape& shape,
                        Accumulator* sums, const NormBackwardReduce<T>& args);

/// Computes the coefficients of a batch from the sums of its `parts` parts. Each part has shape
/// `shape`; their sums are stored one after another. `statistics` are those of the whole batch.
void norm_join_sums(const device::ExecutionSpace& space, const NormShape& shape, std::int64_t parts,
                    float* coefficients, const Accumulator* sums, const float* statistics,
                    const float* gamma);

/// Computes dx from dz (fn = None), or from dy by applying fn's gradient again. dx may be dz or dy.
/// With an `excitation`, dy is that of the product.
template <class T>
void norm_backward_apply(const device::ExecutionSpace& space, const NormShape& shape, T* dx,
                         const T* dz_or_dy, const T* x, const float* coefficients,
                         const float* statistics, const float* gamma, const float* beta,
                         Activation fn, const Excitation<T>& excitation = {});

/// dgamma and dbeta += the gradients of one micro-batch, which lie one after the other in `sums`;
/// or they are set to them if `first`. In one launch.
void add_parameter_gradients(const device::ExecutionSpace& space, std::int64_t channels,
                             float* dgamma, float* dbeta, const float* sums, bool first);

/// A range of the flat array of running statistics with the same decay.
struct RunningSpan {
  std::int64_t offset = 0;  ///< in elements
  std::int32_t elements = 0;
  float decay = 0.0f;
};
/// Maximum number of elements of a RunningSpan.
inline constexpr std::int64_t kRunningElements = 256;

/// moving = decay * moving + (1 - decay) * sums / micro_batches in all spans of the flat arrays, in
/// one launch, unless *skips is set. For means and variances.
void update_running(const device::ExecutionSpace& space, const RunningSpan* spans,
                    std::int64_t num_spans, float* moving, const float* sums,
                    std::int64_t micro_batches, const std::uint32_t* skips);

}  // namespace millrace::ops
