// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "core/error.hpp"
#include "ops/cutlass/tile_norms.hpp"
#include "ops/mask.hpp"
#include "ops/norm_results.hpp"
#include "ops/norm_teams.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Nothing is written.
struct NoLanes {
  KOKKOS_INLINE_FUNCTION explicit NoLanes(const void*) {}
};
template <int W, class T, bool kUsed>
using LanesIfUsed = std::conditional_t<kUsed, LanesOut<W, T>, NoLanes>;

/// Of 16-bit types it must read 4 bytes an element, 2 more for a second gradient and 2 more for the
/// output of a ReLU behind an addition or 1/8 for its mask; and write 2 behind an addition or for a
/// second gradient.
template <class T, Activation kFn, bool kSkip, bool kTwo, bool kMask, bool kScaled>
struct Reduce {
  static constexpr bool kReadsOutput = kSkip && kFn != Activation::None && !kMask;  // Relu only
  static constexpr bool kWrites = kSkip || kTwo;
  /// With a second gradient, a and b of what the activation saw leave no room for a second row.
  static constexpr bool kOneRow = kTwo && kFn != Activation::None && !kReadsOutput && !kMask;
  static constexpr int kInputs = 2 + kReadsOutput + kTwo + kOneRow;
  static constexpr bool kLong = kComputesLong<T, kFn>;
  /// Swish and factors need more registers; 512 threads still have 32 KiB on their way.
  [[maybe_unused]] static constexpr int kThreadsAtOnce = kScaled ? 512 : kExact<kFn> ? 1024 : 768;
  /// Whether products are scaled by the inverse deviation one by one, or their sum is.
  static constexpr bool kScalesEach = device::kOnCores;
  Tiling t;
  NormBackwardReduce<T> in;

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane, float* out,
                                  std::int64_t second) const {
    const Affine<W> f(t, s, lane, in.statistics, in.gamma, in.beta);
    const float* means = in.statistics + s.instance * t.channels;
    const float* inverses = means + t.instances * t.channels;
    float mean[W];
    [[maybe_unused]] float inverse[W];
    for_channels<W>(t, s, lane, [&](int j, std::int64_t c) {
      mean[j] = means[c];
      if constexpr (kScalesEach) inverse[j] = inverses[c];
    });
    float sum[W] = {};
    float product[W] = {};
    for_samples<kScaled>(t, s, in.excitation.pixels, [&](const Strip& own, std::int64_t sample) {
      const ScaledLanes<W, T, kScaled> scaled(t, s, lane, in.excitation, sample);
      for_rows<kRowsAtOnce<T, W, kInputs>>(t, own, lane, [&]<int kRows>(std::int64_t at) {
        const RowsIn<kRows, W, T, kLong> x_rows(in.x + at, t.width);
        const RowsIn<kRows, W, T, kLong> dy_rows(in.dy + at, t.width);
        const RowsIn<kRows, W, T, kLong && kTwo> dy2_rows((kTwo ? in.dy2 : in.dy) + at, t.width);
        const RowsIn<kRows, W, T, kLong && kReadsOutput> y_rows((kReadsOutput ? in.y : in.x) + at,
                                                                t.width);
        [[maybe_unused]] BitsIn<W> bits[kRows];
        if constexpr (kMask)
          for (int r = 0; r < kRows; ++r) bits[r] = {in.mask, at + r * t.width};
        for (int r = 0; r < kRows; ++r) {
          LanesIfUsed<W, T, kWrites> dz_row(kWrites ? in.dz + at + r * t.width : nullptr);
          MILLRACE_SIMD
          for (int j = 0; j < W; ++j) {
            const float value = to_float(x_rows[r][j]);
            float g = scaled.gradient(j, to_float(dy_rows[r][j]));
            if constexpr (kTwo) g = rounded_as<T>(g + to_float(dy2_rows[r][j]));
            if constexpr (kMask) {
              g = bits[r][j] ? g : 0.0f;
            } else if constexpr (kReadsOutput) {
              g = rounded_fn_gradient<T, kFn>(g, to_float(y_rows[r][j]));  // y > 0 exactly if z > 0
            } else if constexpr (kFn != Activation::None) {
              g = rounded_fn_gradient<T, kFn>(g,
                                              rounded_as<T>(multiply_add(f.a[j], value, f.b[j])));
            }
            if constexpr (kWrites) dz_row.set(j, store_exact<T>(g));
            sum[j] += g;
            if constexpr (kScalesEach)
              product[j] += g * ((value - mean[j]) * inverse[j]);
            else
              product[j] = multiply_add(g, value - mean[j], product[j]);
          }
        }
      });
    });
    if constexpr (!kScalesEach)
      for_channels<W>(t, s, lane, [&](int j, std::int64_t c) { product[j] *= inverses[c]; });
    store_lanes(out, sum);
    store_lanes(out + second, product);
  }
};

/// Sums of dz and dz xhat.
struct GradientSums {
  Accumulator dz;
  Accumulator product;
};

/// Adds the sums of neighboring parts.
struct JoinSums {
  KOKKOS_INLINE_FUNCTION static void join(const LaneParts& parts, float* out, std::int64_t second) {
    Accumulator sum{};
    Accumulator product{};
    parts.for_each([&](Accumulator, Accumulator own_sum, Accumulator own_product) {
      sum += own_sum;
      product += own_product;
    });
    out[0] = static_cast<float>(sum);
    out[second] = static_cast<float>(product);
  }
};

/// Partial sums with the tiling of their chunks.
struct ChunkSums {
  Tiling t;
  const float* partial;

  /// Sums over chunks of one (instance, channel).
  [[nodiscard]] KOKKOS_INLINE_FUNCTION GradientSums of(std::int64_t i) const {
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
};

/// Stores the sums of one (instance, channel).
struct StoreSums {
  ChunkSums chunks;
  std::int64_t all;  ///< instances x channels
  float* sums;       ///< of dz, of dz xhat
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const GradientSums own = chunks.of(i);
    sums[i] = static_cast<float>(own.dz);
    sums[all + i] = static_cast<float>(own.product);
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
    const GradientSums own = chunks.of(c);
    sums[c] = own.dz;
    sums[channels + c] = own.product;
    out.store(c, {static_cast<float>(own.product), static_cast<float>(own.dz)});
  }
};

/// What the last teams compute: the results of a part if it has sums, else those of a batch.
struct WriteGradients {
  [[maybe_unused]] static constexpr bool kJoinsInstances = true;
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

/// The first pass: on accelerators all of it, on cores the sums of all chunks. Also writes dz if
/// requested.
template <class T>
void reduce(const ExecutionSpace& space, const NormShape& shape, const NormBackwardReduce<T>& args,
            [[maybe_unused]] const WriteGradients& finish) {
  const auto run = [&]<Activation kFn, bool kSkip, bool kTwo, bool kMask, bool kScaled = false>() {
    using Body = Reduce<T, kFn, kSkip, kTwo, kMask, kScaled>;
    const Body body{shape.tiling, args};
    if constexpr (device::kOnCores) {
      const Tiling& t = shape.tiling;
      parallel("norm reduce", space, t.work_items(), ChunksTo<Body>{t, body, args.scratch.sums});
    } else {
      const NormTeamShape teams = shape.teams();
      device::parallel_teams(
          "norm reduce", space, teams.teams(),
          NormTeams<Body, JoinSums, WriteGradients>{teams, body, finish, args.scratch});
    }
  };
  if (args.excitation.factor == nullptr) return dispatch_reduce(args, run);
  MILLRACE_ASSERT(args.excitation.fits(shape.tiling) && !args.skip_used && args.dz == nullptr);
  if constexpr (!device::kOnCores)
    dispatch_fn(args.fn, [&]<Activation kFn>() {
      run.template operator()<kFn, false, false, false, true>();
    });
}

/// What that pass leaves.
ChunkSums sums_in(const NormScratch& scratch, const NormShape& shape) {
  return {device::kOnCores ? shape.tiling : shape.teams().whole(), scratch.sums};
}

/// The functors of the results of one batch from `chunks`; `sums` has two floats for each
/// (instance, channel).
template <class T>
OfChannel results_of(const NormShape& shape, const ChunkSums& chunks, float* sums,
                     const NormBackwardReduce<T>& args) {
  const std::int64_t all = shape.instances() * shape.channels;
  return {{chunks, all, sums},
          {shape.instances(), shape.channels, sums, parameter_sums(args)},
          {shape, 1, args.statistics, args.gamma, sums, args.coefficients}};
}

}  // namespace

template <class T>
void norm_backward_reduce(const ExecutionSpace& space, const NormShape& shape,
                          const NormBackwardReduce<T>& args) {
  if constexpr (tiles::kHasType<T>)
    if (shape.gradients_in_tiles) return tiles::norm_gradients(space, shape, args);
  const ChunkSums chunks = sums_in(args.scratch, shape);
  if constexpr (!device::kOnCores) {
    // Of group norm, the sums are needed after the coefficients.
    float* const apart = args.scratch.sums + shape.teams().scratch_floats();
    float* const sums = shape.by_channel() ? args.coefficients : apart;
    float* const group_sums = apart + 2 * shape.instances() * shape.channels;
    reduce(space, shape, args, {results_of(shape, chunks, sums, args), {}, group_sums});
  } else {
    const OfChannel results = results_of(shape, chunks, args.coefficients, args);
    reduce(space, shape, args, {});
    if (shape.by_channel()) return parallel("norm coeff", space, shape.channels, results);
    parallel("norm sums", space, shape.instances() * shape.channels, results.sums);
    parallel("norm dparam", space, shape.channels, results.gradients);
    parallel("norm coeff", space, shape.instances() * shape.groups, results.coefficients);
  }
}

template <class T>
void norm_backward_sums(const ExecutionSpace& space, const NormShape& shape, Accumulator* sums,
                        const NormBackwardReduce<T>& args) {
  MILLRACE_ASSERT(shape.by_channel());
  if constexpr (tiles::kHasType<T>)
    if (shape.gradients_in_tiles) return tiles::norm_sums(space, shape, sums, args);
  const ChunkSums chunks = sums_in(args.scratch, shape);
  const OfPart part{chunks, shape.channels, sums, parameter_sums(args)};
  reduce(space, shape, args, {results_of(shape, chunks, nullptr, args), part, nullptr});
  if constexpr (device::kOnCores) parallel("norm part", space, shape.channels, part);
}

void norm_join_sums(const ExecutionSpace& space, const NormShape& shape, std::int64_t parts,
                    float* coefficients, const Accumulator* sums, const float* statistics,
                    const float* gamma) {
  const std::int64_t width = shape.part_values();
  const auto join = KOKKOS_LAMBDA(std::int64_t i) {
    Accumulator all{};
    for (std::int64_t p = 0; p < parts; ++p) all += sums[p * width + i];
    coefficients[i] = static_cast<float>(all);
  };
  parallel("norm join", space, width, join);
  parallel("norm coeff", space, shape.channels,
           Coefficients{shape, parts, statistics, gamma, coefficients, coefficients});
}

MILLRACE_INSTANTIATE(norm_backward_reduce)
MILLRACE_INSTANTIATE(norm_backward_sums)

}  // namespace millrace::ops
