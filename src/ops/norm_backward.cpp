// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "core/error.hpp"
#include "ops/instantiate.hpp"
#include "ops/lanes.hpp"
#include "ops/norm.hpp"
#include "ops/norm_lanes.hpp"
#include "ops/norm_sums.hpp"
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

template <class T, Activation kFn, bool kSkip, bool kTwo>
struct Reduce {
  Tiling t;
  NormBackwardReduce<T> in;

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane, float* out,
                                  std::int64_t second) const {
    const Affine<W> f(t, s, lane, in.statistics, in.gamma, in.beta);
    const float* means = in.statistics + s.instance * t.channels;
    const float* inverses = means + t.instances * t.channels;
    float mean[W];
    float inverse[W];
    for_channels<W>(t, s, lane, [&](int j, std::int64_t c) {
      mean[j] = means[c];
      inverse[j] = inverses[c];
    });
    float sum[W] = {};
    float product[W] = {};
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const std::int64_t row = s.offset + lane + r * t.width;
      const LanesIn<W, T> x_row(in.x + row);
      const LanesIn<W, T> dy_row(in.dy + row);
      const LanesIn<W, T> dy2_row(kTwo ? in.dy2 + row : in.dy + row);
      const LanesIn<W, T> y_row(kSkip && kFn != Activation::None ? in.y + row : in.x + row);
      LanesIfUsed<W, T, kSkip || kTwo> dz_row(kSkip || kTwo ? in.dz + row : nullptr);
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        const float value = to_float(x_row[j]);
        float g = to_float(dy_row[j]);
        if constexpr (kTwo) g = rounded_as<T>(g + to_float(dy2_row[j]));
        if constexpr (kFn != Activation::None) {
          float z;
          if constexpr (kSkip) {
            z = to_float(y_row[j]);  // Relu only: y > 0 exactly if z > 0
          } else {
            z = rounded_as<T>(f.a[j] * value + f.b[j]);
          }
          g = rounded_fn_gradient<T, kFn>(g, z);
        }
        if constexpr (kSkip || kTwo) dz_row.set(j, store_exact<T>(g));
        sum[j] += g;
        product[j] += g * ((value - mean[j]) * inverse[j]);
      }
    }
    store_lanes(out, sum);
    store_lanes(out + second, product);
  }
};

/// Adds the gradients of a micro-batch to those of the step.
struct AddParameterGradients {
  std::int64_t channels;
  float* dgamma;
  float* dbeta;
  const float* sums;  ///< of gamma, then of beta
  bool first;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    float* const total = i < channels ? dgamma + i : dbeta + (i - channels);
    *total = first ? sums[i] : *total + sums[i];
  }
};

template <class T, Activation kFn>
struct BackwardApply {
  Tiling t;
  T* dx;
  const T* dz;
  const T* x;
  const float* coefficients;
  const float* statistics;
  const float* gamma;
  const float* beta;

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane) const {
    const std::int64_t all = t.instances * t.channels;
    const float* own = coefficients + s.instance * t.channels;
    const Affine<W> f(t, s, lane, statistics, gamma, beta);
    float slope_dz[W];
    float slope_x[W];
    float constant[W];
    for_channels<W>(t, s, lane, [&](int j, std::int64_t c) {
      slope_dz[j] = own[c];
      slope_x[j] = own[all + c];
      constant[j] = own[2 * all + c];
    });
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const std::int64_t row = s.offset + lane + r * t.width;
      const LanesIn<W, T> x_row(x + row);
      const LanesIn<W, T> dz_row(dz + row);
      LanesOut<W, T> dx_row(dx + row);
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        const float value = to_float(x_row[j]);
        float g = to_float(dz_row[j]);
        if constexpr (kFn != Activation::None) {
          const float z = rounded_as<T>(f.a[j] * value + f.b[j]);
          g = rounded_fn_gradient<T, kFn>(g, z);
        }
        dx_row.set(j, store_as<T>(slope_dz[j] * g + (slope_x[j] * value + constant[j])));
      }
    }
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, t, strip_at(t, i)); }
};

/// Calls run(body) with the body of the first pass.
template <class T, class Run>
void dispatch_reduce(const NormShape& shape, const NormBackwardReduce<T>& args, const Run& run) {
  const Tiling& t = shape.tiling;
  const bool two = args.dy2 != nullptr;
  MILLRACE_ASSERT((args.dz != nullptr) == (args.skip_used || two));
  MILLRACE_ASSERT(!args.skip_used || args.fn == Activation::None || args.fn == Activation::Relu);
  dispatch_fn(args.fn, [&]<Activation kFn>() {
    if constexpr (kExact<kFn>) {
      if (args.skip_used && two) run(Reduce<T, kFn, true, true>{t, args});
      if (args.skip_used && !two) run(Reduce<T, kFn, true, false>{t, args});
    }
    if (!args.skip_used && two) run(Reduce<T, kFn, false, true>{t, args});
    if (!args.skip_used && !two) run(Reduce<T, kFn, false, false>{t, args});
  });
}

/// On cores: the sums of all chunks; also writes dz if requested.
template <class T>
ChunkSums sums_of_chunks(const ExecutionSpace& space, const NormShape& shape,
                         const NormBackwardReduce<T>& args) {
  const Tiling& t = shape.tiling;
  dispatch_reduce(shape, args, [&]<class Body>(const Body& body) {
    parallel("norm reduce", space, t.work_items(), ChunksTo<Body>{t, body, args.scratch.sums});
  });
  return {t, args.scratch.sums};
}

/// On accelerators: the whole first pass.
template <class T>
void reduce_by_teams(const ExecutionSpace& space, const NormShape& shape,
                     const NormBackwardReduce<T>& args, const WriteGradients& finish) {
  const NormTeamShape teams = shape.teams();
  dispatch_reduce(shape, args, [&]<class Body>(const Body& body) {
    device::parallel_teams(
        "norm reduce", space, teams.teams(),
        NormTeams<Body, JoinSums, WriteGradients>{teams, body, finish, args.scratch});
  });
}

template <class T>
ParameterSums parameter_sums(const NormBackwardReduce<T>& args) {
  return {args.dgamma, args.dbeta, args.total_dgamma, args.total_dbeta, args.first};
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
  if constexpr (!device::kOnCores) {
    const NormTeamShape teams = shape.teams();
    // Of group norm, the sums are needed after the coefficients.
    float* const apart = args.scratch.sums + teams.scratch_floats();
    float* const sums = shape.by_channel() ? args.coefficients : apart;
    const OfChannel results = results_of(shape, {teams.whole(), args.scratch.sums}, sums, args);
    float* const group_sums = apart + 2 * shape.instances() * shape.channels;
    reduce_by_teams(space, shape, args, {results, {}, group_sums});
  } else {
    const ChunkSums chunks = sums_of_chunks(space, shape, args);
    const OfChannel results = results_of(shape, chunks, args.coefficients, args);
    if (shape.by_channel()) {
      parallel("norm coeff", space, shape.channels, results);
      return;
    }
    parallel("norm sums", space, shape.instances() * shape.channels, results.sums);
    parallel("norm dparam", space, shape.channels, results.gradients);
    parallel("norm coeff", space, shape.instances() * shape.groups, results.coefficients);
  }
}

template <class T>
void norm_backward_sums(const ExecutionSpace& space, const NormShape& shape, Accumulator* sums,
                        const NormBackwardReduce<T>& args) {
  MILLRACE_ASSERT(shape.by_channel());
  const ParameterSums out = parameter_sums(args);
  if constexpr (device::kOnCores) {
    const ChunkSums chunks = sums_of_chunks(space, shape, args);
    parallel("norm part", space, shape.channels, OfPart{chunks, shape.channels, sums, out});
  } else {
    const ChunkSums totals{shape.teams().whole(), args.scratch.sums};
    const WriteGradients finish{
        results_of(shape, totals, nullptr, args), {totals, shape.channels, sums, out}, nullptr};
    reduce_by_teams(space, shape, args, finish);
  }
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

template <class T>
void norm_backward_apply(const ExecutionSpace& space, const NormShape& shape, T* dx,
                         const T* dz_or_dy, const T* x, const float* coefficients,
                         const float* statistics, const float* gamma, const float* beta,
                         Activation fn) {
  dispatch_fn(fn, [&]<Activation kFn>() {
    parallel("norm dx", space, shape.tiling.work_items(),
             BackwardApply<T, kFn>{shape.tiling, dx, dz_or_dy, x, coefficients, statistics, gamma,
                                   beta});
  });
}

void add_parameter_gradients(const ExecutionSpace& space, std::int64_t channels, float* dgamma,
                             float* dbeta, const float* sums, bool first) {
  parallel("norm dw", space, 2 * channels,
           AddParameterGradients{channels, dgamma, dbeta, sums, first});
}

MILLRACE_INSTANTIATE(norm_backward_reduce)
MILLRACE_INSTANTIATE(norm_backward_sums)
MILLRACE_INSTANTIATE(norm_backward_apply)

}  // namespace millrace::ops
