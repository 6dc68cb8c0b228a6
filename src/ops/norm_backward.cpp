// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "core/error.hpp"
#include "ops/instantiate.hpp"
#include "ops/lanes.hpp"
#include "ops/norm.hpp"
#include "ops/norm_chunks.hpp"
#include "ops/norm_lanes.hpp"

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
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane) const {
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
    float* out =
        in.scratch + ((s.instance * t.chunks + s.chunk) * 2) * t.width + s.first_lane + lane;
    LanesOut<W, float> sums(out);
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) sums.set(j, sum[j]);
    LanesOut<W, float> products(out + t.width);
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) products.set(j, product[j]);
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, t, strip_at(t, i)); }
};

/// Sums of dz and dz xhat.
struct GradientSums {
  double dz;
  double product;
};

/// Adds the sums of a group of chunks, lane by lane.
struct JoinSums {
  ChunkJoin join;

  [[nodiscard]] std::int64_t work_items() const {
    return join.coarse.instances * join.coarse.chunks * 2 * join.coarse.width;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t step = 2 * join.fine.width;
    const ChunkGroup group = group_at(join, step, i);
    double sum = 0.0;
    for (std::int64_t chunk = group.first; chunk < group.last; ++chunk)
      sum += static_cast<double>(group.values[chunk * step]);
    *group.out = static_cast<float>(sum);
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
  GradientSums all{0.0, 0.0};
  for (std::int64_t chunk = 0; chunk < t.chunks; ++chunk) {
    const float* sums = partial + ((instance * t.chunks + chunk) * 2) * t.width;
    for (std::int64_t place = 0; place < t.tile; ++place) {
      all.dz += static_cast<double>(sums[place * t.channels + c]);
      all.product += static_cast<double>(sums[t.width + place * t.channels + c]);
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
  float* coefficients;  // in: sum dz, sum dz xhat; out: A, B, C

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
      sum += gamma[c] * coefficients[base + c];
      product += gamma[c] * coefficients[all + base + c];
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

/// Stores the sums of one (instance, channel) in the first two of the three arrays of coefficients.
struct StoreSums {
  ChunkSums chunks;
  std::int64_t all;  ///< instances x channels
  float* coefficients;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const GradientSums sums = sums_of(chunks, i);
    coefficients[i] = static_cast<float>(sums.dz);
    coefficients[all + i] = static_cast<float>(sums.product);
  }
};

/// The gradients of a channel's parameters for the micro-batch: sums over instances in ascending
/// order.
struct ParameterGradients {
  std::int64_t channels;
  std::int64_t all;           ///< instances x channels
  const float* coefficients;  ///< as StoreSums leaves them
  float* dgamma;
  float* dbeta;
  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    float beta = 0.0f;
    float gamma = 0.0f;
    for (std::int64_t i = c; i < all; i += channels) {
      beta += coefficients[i];
      gamma += coefficients[all + i];
    }
    dbeta[c] = beta;
    dgamma[c] = gamma;
  }
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

/// The sums of all chunks, in one level or two; also writes dz if requested.
template <class T>
ChunkSums sums_of_chunks(const ExecutionSpace& space, const NormShape& shape,
                         const NormBackwardReduce<T>& args) {
  const Tiling& t = shape.tiling;
  const bool two = args.dy2 != nullptr;
  MILLRACE_ASSERT((args.dz != nullptr) == (args.skip_used || two));
  MILLRACE_ASSERT(!args.skip_used || args.fn == Activation::None || args.fn == Activation::Relu);
  dispatch_fn(args.fn, [&]<Activation kFn>() {
    const auto run = [&]<bool kSkip, bool kTwo>() {
      parallel("norm reduce", space, t.work_items(), Reduce<T, kFn, kSkip, kTwo>{t, args});
    };
    if constexpr (kExact<kFn>) {
      if (args.skip_used && two) run.template operator()<true, true>();
      if (args.skip_used && !two) run.template operator()<true, false>();
    }
    if (!args.skip_used && two) run.template operator()<false, true>();
    if (!args.skip_used && !two) run.template operator()<false, false>();
  });
  const JoinSums sums{join_of_chunks(shape, args.scratch)};
  const ChunkJoin& join = sums.join;
  if (join.fan == 1) return {t, args.scratch};
  parallel("norm join", space, sums.work_items(), sums);
  return {join.coarse, join.joined};
}

}  // namespace

template <class T>
void norm_backward_reduce(const ExecutionSpace& space, const NormShape& shape,
                          const NormBackwardReduce<T>& args) {
  const ChunkSums chunks = sums_of_chunks(space, shape, args);
  const std::int64_t all = shape.instances() * shape.channels;
  const StoreSums sums{chunks, all, args.coefficients};
  const ParameterGradients gradients{shape.channels, all, args.coefficients, args.dgamma,
                                     args.dbeta};
  const Coefficients coefficients{shape, 1, args.statistics, args.gamma, args.coefficients};
  if (shape.instances() == 1 && shape.groups == shape.channels) {
    parallel("norm coeff", space, shape.channels, OfChannel{sums, gradients, coefficients});
    return;
  }
  parallel("norm sums", space, all, sums);
  parallel("norm dparam", space, shape.channels, gradients);
  parallel("norm coeff", space, shape.instances() * shape.groups, coefficients);
}

template <class T>
void norm_backward_sums(const ExecutionSpace& space, const NormShape& shape, double* sums,
                        const NormBackwardReduce<T>& args) {
  MILLRACE_ASSERT(shape.instances() == 1 && shape.groups == shape.channels);
  const ChunkSums chunks = sums_of_chunks(space, shape, args);
  float* const dgamma = args.dgamma;
  float* const dbeta = args.dbeta;
  // The sums are also this part's parameter gradients.
  const auto part = KOKKOS_LAMBDA(std::int64_t c) {
    const GradientSums own = sums_of(chunks, c);
    sums[c] = own.dz;
    sums[shape.channels + c] = own.product;
    dbeta[c] = static_cast<float>(own.dz);
    dgamma[c] = static_cast<float>(own.product);
  };
  parallel("norm part", space, shape.channels, part);
}

void norm_join_sums(const ExecutionSpace& space, const NormShape& shape, std::int64_t parts,
                    float* coefficients, const double* sums, const float* statistics,
                    const float* gamma) {
  const std::int64_t width = shape.part_doubles();
  const auto join = KOKKOS_LAMBDA(std::int64_t i) {
    double all = 0.0;
    for (std::int64_t p = 0; p < parts; ++p) all += sums[p * width + i];
    coefficients[i] = static_cast<float>(all);
  };
  parallel("norm join", space, width, join);
  parallel("norm coeff", space, shape.channels,
           Coefficients{shape, parts, statistics, gamma, coefficients});
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
