// SPDX-License-Identifier: Apache-2.0
//
// From the sums of the backward pass of a norm to its results: the gradients of the parameters and
// the coefficients of the second pass.
#pragma once

#include "ops/norm.hpp"
#include "ops/norm_teams.hpp"

namespace millrace::ops {

/// Sums of dz and dz xhat.
struct GradientSums {
  Accumulator dz;
  Accumulator product;
};

/// Adds the sums of neighboring parts, lane by lane.
struct JoinSums {
  template <int W>
  KOKKOS_INLINE_FUNCTION static void join(const LaneParts& parts, float* out, std::int64_t second) {
    Accumulator sum[W] = {};
    Accumulator product[W] = {};
    for (std::int64_t p = 0; p < parts.count; ++p) {
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        sum[j] += static_cast<Accumulator>(parts.at(p, j));
        product[j] += static_cast<Accumulator>(parts.second_at(p, j));
      }
    }
    round_lanes(out, sum);
    round_lanes(out + second, product);
  }
};

/// Partial sums with the tiling of their chunks.
struct ChunkSums {
  Tiling t;
  const float* partial;
};

/// Sums over chunks of one (instance, channel).
KOKKOS_INLINE_FUNCTION GradientSums sums_of(const ChunkSums& chunks, std::int64_t i) {
  const Tiling& t = chunks.t;
  const float* const partial = chunks.partial;
  const std::int64_t instance = i / t.channels;
  const std::int64_t c = i % t.channels;
  GradientSums all{};
  for (std::int64_t chunk = 0; chunk < t.chunks; ++chunk) {
    const float* sums = partial + ((instance * t.chunks + chunk) * 2) * t.width;
    for (std::int64_t place = 0; place < t.tile; ++place) {
      all.dz += static_cast<Accumulator>(sums[place * t.channels + c]);
      all.product += static_cast<Accumulator>(sums[t.width + place * t.channels + c]);
    }
  }
  return all;
}

/// Converts the sums of one group to A, B and C of dx = A dz + B x + C for each of its channels.
struct Coefficients {
  NormShape shape;
  std::int64_t parts;  // number of parts of the batch, each of this shape
  const float* statistics;
  const float* gamma;
  const float* sums;    // of dz, of dz xhat
  float* coefficients;  // A, B, C; may be `sums`

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t instance = i / shape.groups;
    const std::int64_t group = i % shape.groups;
    const std::int64_t members = shape.channels / shape.groups;
    const std::int64_t step = shape.strided_groups ? shape.groups : 1;
    const std::int64_t first = shape.strided_groups ? group : group * members;
    const std::int64_t all = shape.instances() * shape.channels;
    const std::int64_t base = instance * shape.channels;
    float sum = 0.0f;
    float product = 0.0f;
    for (std::int64_t c = first; c < first + members * step; c += step) {
      sum += gamma[c] * sums[base + c];
      product += gamma[c] * sums[all + base + c];
    }
    const float count = static_cast<float>(shape.rows * members * parts);
    sum /= count;
    product /= count;
    for (std::int64_t c = first; c < first + members * step; c += step) {
      const float mean = statistics[base + c];
      const float inverse = statistics[all + base + c];
      coefficients[base + c] = gamma[c] * inverse;
      const float slope = -inverse * inverse * product;
      coefficients[all + base + c] = slope;
      coefficients[2 * all + base + c] = -inverse * sum - slope * mean;
    }
  }
};

/// Stores the sums of one (instance, channel).
struct StoreSums {
  ChunkSums chunks;
  std::int64_t all;  ///< instances x channels
  float* sums;       ///< of dz, of dz xhat
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const GradientSums own = sums_of(chunks, i);
    sums[i] = static_cast<float>(own.dz);
    sums[all + i] = static_cast<float>(own.product);
  }
};

struct ParameterGradient {
  float gamma;
  float beta;
};

/// Where the gradients of the parameters go.
struct ParameterSums {
  float* dgamma;
  float* dbeta;
  float* total_dgamma;
  float* total_dbeta;
  bool first;
  KOKKOS_INLINE_FUNCTION void store(std::int64_t c, const ParameterGradient& sum) const {
    dbeta[c] = sum.beta;
    dgamma[c] = sum.gamma;
    if (total_dgamma == nullptr) return;
    total_dbeta[c] = first ? sum.beta : total_dbeta[c] + sum.beta;
    total_dgamma[c] = first ? sum.gamma : total_dgamma[c] + sum.gamma;
  }
};

/// The gradients of a channel's parameters for the micro-batch: sums over instances in ascending
/// order.
struct ParameterGradients {
  std::int64_t instances;
  std::int64_t channels;
  const float* sums;  ///< as StoreSums leaves them
  ParameterSums out;

  [[nodiscard]] KOKKOS_INLINE_FUNCTION ParameterGradient over(std::int64_t c, std::int64_t first,
                                                              std::int64_t last) const {
    const float* const of_gamma = sums + instances * channels;
    ParameterGradient sum{0.0f, 0.0f};
    for (std::int64_t i = first * channels + c; i < last * channels; i += channels) {
      sum.beta += sums[i];
      sum.gamma += of_gamma[i];
    }
    return sum;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t c) const { out.store(c, over(c, 0, instances)); }
};

/// All of these for a channel of batch norm, which is a set of its own.
struct OfChannel {
  StoreSums sums;
  ParameterGradients gradients;
  Coefficients coefficients;
  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    sums(c);
    gradients(c);
    coefficients(c);
  }
};

/// The results for a channel of one part of a batch. The sums are also this part's parameter
/// gradients.
struct OfPart {
  ChunkSums chunks;
  std::int64_t channels;
  Accumulator* sums;
  ParameterSums out;
  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    const GradientSums own = sums_of(chunks, c);
    sums[c] = own.dz;
    sums[channels + c] = own.product;
    out.store(c, {static_cast<float>(own.product), static_cast<float>(own.dz)});
  }
};

/// What the last teams compute: the results of a part if it has sums, else those of a batch.
struct WriteGradients {
  static constexpr bool kJoinsInstances = true;
  OfChannel channel;
  OfPart part;
  float* group_sums;  ///< [instance group][2][channels] of group norm

  KOKKOS_INLINE_FUNCTION void operator()(const device::Team& team, const NormSets& sets) const {
    const NormShape& shape = channel.coefficients.shape;
    if (!shape.by_channel()) return by_group(team, sets);
    for (std::int64_t c = sets.first + team.rank(); c < sets.last; c += team.size()) {
      if (part.sums != nullptr)
        part(c);
      else
        channel(c);
    }
  }

  /// The results of an instance of group norm, but for the gradients of the parameters.
  KOKKOS_INLINE_FUNCTION void by_group(const device::Team& team, const NormSets& sets) const {
    const NormShape& shape = channel.coefficients.shape;
    for (std::int64_t c = team.rank(); c < shape.channels; c += team.size())
      channel.sums(sets.instance * shape.channels + c);
    team.wait();
    for (std::int64_t group = sets.first + team.rank(); group < sets.last; group += team.size())
      channel.coefficients(sets.instance * shape.groups + group);
  }

  // These gradients, in two steps:
  KOKKOS_INLINE_FUNCTION void join_group(const device::Team& team, std::int64_t group,
                                         std::int64_t first, std::int64_t last) const {
    if (channel.coefficients.shape.by_channel()) return;
    const ParameterGradients& all = channel.gradients;
    float* const out = group_sums + 2 * group * all.channels;
    for (std::int64_t c = team.rank(); c < all.channels; c += team.size()) {
      const ParameterGradient sum = all.over(c, first, last);
      out[c] = sum.beta;
      out[all.channels + c] = sum.gamma;
    }
  }
  KOKKOS_INLINE_FUNCTION void join_instances(const device::Team& team, std::int64_t groups) const {
    if (channel.coefficients.shape.by_channel()) return;
    const std::int64_t channels = channel.gradients.channels;
    for (std::int64_t c = team.rank(); c < channels; c += team.size()) {
      ParameterGradient sum{0.0f, 0.0f};
      for (std::int64_t group = 0; group < groups; ++group) {
        sum.beta += group_sums[2 * group * channels + c];
        sum.gamma += group_sums[(2 * group + 1) * channels + c];
      }
      channel.gradients.out.store(c, sum);
    }
  }
};

}  // namespace millrace::ops
