// SPDX-License-Identifier: Apache-2.0
#include "ops/norm.hpp"

#include <cmath>

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Calls f(j, channel) for the W lanes starting at `lane`. Channels repeat with period t.channels.
template <int W, class F>
KOKKOS_INLINE_FUNCTION void for_channels(const Tiling& t, const Strip& s, std::int64_t lane,
                                         F&& f) {
  std::int64_t c = (s.first_lane + lane) % t.channels;
  if (c + W <= t.channels) {
    for (int j = 0; j < W; ++j) f(j, c + j);
  } else {
    for (int j = 0; j < W; ++j) {
      f(j, c);
      if (++c == t.channels) c = 0;
    }
  }
}

/// a and b of z = a x + b for W lanes, read once per strip.
template <int W>
struct Affine {
  float a[W];
  float b[W];
  KOKKOS_INLINE_FUNCTION Affine(const Tiling& t, const Strip& s, std::int64_t lane,
                                const float* statistics, const float* gamma, const float* beta) {
    const float* mean = statistics + s.instance * t.channels;
    const float* inverse = mean + t.instances * t.channels;
    for_channels<W>(t, s, lane, [&](int j, std::int64_t c) {
      a[j] = gamma[c] * inverse[c];
      b[j] = beta[c] - mean[c] * a[j];
    });
  }
};

// ---- statistics ---------------------------------------------------------------------------------

/// Mean and sum of squared deviations of each lane over the rows of one chunk. The mean is computed
/// from differences to the first row. A plain sum would lose precision if the mean is large and the
/// deviation is small.
template <class T>
struct ChunkMoments {
  Tiling t;
  const T* x;
  float* partial;  // [instance][chunk][2][width]

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane) const {
    const T* first = x + s.offset + lane;
    float shift[W];
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) shift[j] = to_float(first[j]);
    float mean[W] = {};
    for (std::int64_t r = 1; r < s.rows; ++r) {
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) mean[j] += to_float(first[r * t.width + j]) - shift[j];
    }
    const float inverse = 1.0f / static_cast<float>(s.rows);
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) mean[j] = shift[j] + mean[j] * inverse;
    float squares[W] = {};
    for (std::int64_t r = 0; r < s.rows; ++r) {
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        const float d = to_float(first[r * t.width + j]) - mean[j];
        squares[j] += d * d;
      }
    }
    float* out = partial + ((s.instance * t.chunks + s.chunk) * 2) * t.width + s.first_lane + lane;
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) out[j] = mean[j];
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) out[t.width + j] = squares[j];
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, strip_at(t, i)); }
};

/// Mean of some elements and the sum of their squared deviations.
struct Moments {
  double mean;
  double squares;
};

/// Writes the statistics of a channel from the moments of its `count` elements.
struct StatisticsOf {
  RunningSums running;
  float epsilon;

  KOKKOS_INLINE_FUNCTION float inverse_deviation(const Moments& m, double count) const {
    return static_cast<float>(1.0 / std::sqrt(m.squares / count + static_cast<double>(epsilon)));
  }
  KOKKOS_INLINE_FUNCTION void add_running(std::int64_t channel, const Moments& m,
                                          double count) const {
    if (running.mean == nullptr) return;
    const auto unbiased =
        static_cast<float>(count > 1.0 ? m.squares / (count - 1.0) : m.squares / count);
    const auto mean = static_cast<float>(m.mean);
    running.mean[channel] = running.first ? mean : running.mean[channel] + mean;
    running.variance[channel] = running.first ? unbiased : running.variance[channel] + unbiased;
  }
};

/// Combines the chunks of one group in double: first the mean of their means, then the squared
/// deviations from it (Chan, Golub and LeVeque 1979).
struct JoinedChunks {
  NormShape shape;
  const float* partial;

  KOKKOS_INLINE_FUNCTION std::int64_t channel(std::int64_t group, std::int64_t k) const {
    const std::int64_t members = shape.channels / shape.groups;
    return shape.strided_groups ? k * shape.groups + group : group * members + k;
  }
  /// Calls f(rows, mean, squares) for every chunk and every lane of the group.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_parts(std::int64_t instance, std::int64_t group, F&& f) const {
    const Tiling& t = shape.tiling;
    const std::int64_t members = shape.channels / shape.groups;
    for (std::int64_t chunk = 0; chunk < t.chunks; ++chunk) {
      const float* means = partial + ((instance * t.chunks + chunk) * 2) * t.width;
      const std::int64_t left = t.tile_rows - chunk * t.chunk_tile_rows;
      const auto n = static_cast<double>(left < t.chunk_tile_rows ? left : t.chunk_tile_rows);
      for (std::int64_t place = 0; place < t.tile; ++place) {
        for (std::int64_t k = 0; k < members; ++k) {
          const std::int64_t lane = place * t.channels + channel(group, k);
          f(n, static_cast<double>(means[lane]), static_cast<double>(means[t.width + lane]));
        }
      }
    }
  }
  KOKKOS_INLINE_FUNCTION double count() const {
    const std::int64_t members = shape.channels / shape.groups;
    return static_cast<double>(shape.rows * members);
  }
  KOKKOS_INLINE_FUNCTION Moments moments(std::int64_t instance, std::int64_t group) const {
    double mean = 0.0;
    for_parts(instance, group, [&](double n, double m, double) { mean += n * m; });
    mean /= count();
    double squares = 0.0;
    for_parts(instance, group, [&](double n, double m, double own) {
      squares += own + n * (m - mean) * (m - mean);
    });
    return {mean, squares};
  }
};

/// Statistics of one group, written to each of its channels.
struct CombineMoments {
  JoinedChunks chunks;
  float* statistics;
  StatisticsOf result;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const NormShape& shape = chunks.shape;
    const std::int64_t instance = i / shape.groups;
    const std::int64_t group = i % shape.groups;
    const Moments m = chunks.moments(instance, group);
    const float inverse = result.inverse_deviation(m, chunks.count());
    for (std::int64_t k = 0; k < shape.channels / shape.groups; ++k) {
      const std::int64_t c = instance * shape.channels + chunks.channel(group, k);
      statistics[c] = static_cast<float>(m.mean);
      statistics[shape.instances() * shape.channels + c] = inverse;
    }
    result.add_running(group, m, chunks.count());
  }
};

/// Moments of one channel in a part of a batch.
struct PartMoments {
  JoinedChunks chunks;
  double* moments;
  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    const Moments m = chunks.moments(0, c);
    moments[c] = m.mean;
    moments[chunks.shape.channels + c] = m.squares;
  }
};

/// Statistics of one channel from its moments in equal-sized parts of a batch.
struct JoinMoments {
  std::int64_t channels;
  std::int64_t rows;  ///< of a part
  std::int64_t parts;
  const double* moments;
  float* statistics;
  StatisticsOf result;

  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    const auto n = static_cast<double>(rows);
    const double count = n * static_cast<double>(parts);
    Moments all{0.0, 0.0};
    for (std::int64_t p = 0; p < parts; ++p) all.mean += n * moments[2 * p * channels + c];
    all.mean /= count;
    for (std::int64_t p = 0; p < parts; ++p) {
      const double* part = moments + 2 * p * channels;
      const double apart = part[c] - all.mean;
      all.squares += part[channels + c] + n * apart * apart;
    }
    statistics[c] = static_cast<float>(all.mean);
    statistics[channels + c] = result.inverse_deviation(all, count);
    result.add_running(c, all, count);
  }
};

struct FromRunning {
  std::int64_t channels;
  float* statistics;
  const float* moving_mean;
  const float* moving_variance;
  float epsilon;
  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    statistics[c] = moving_mean[c];
    statistics[channels + c] = 1.0f / std::sqrt(moving_variance[c] + epsilon);
  }
};

// ---- forward ------------------------------------------------------------------------------------

template <class T, Fn kFn, bool kSkip>
struct Apply {
  Tiling t;
  T* y;
  const T* x;
  const T* skip;
  const float* statistics;
  const float* gamma;
  const float* beta;

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane) const {
    const Affine<W> f(t, s, lane, statistics, gamma, beta);
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const std::int64_t row = s.offset + lane + r * t.width;
      const T* x_row = x + row;
      T* y_row = y + row;
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        float z = rounded_as<T>(f.a[j] * to_float(x_row[j]) + f.b[j]);
        if constexpr (kSkip) z = rounded_as<T>(z + to_float(skip[row + j]));
        y_row[j] = store_fn<T, kFn>(z);
      }
    }
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, strip_at(t, i)); }
};

// ---- backward -----------------------------------------------------------------------------------

template <class T, Fn kFn, bool kSkip, bool kTwo>
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
      const T* x_row = in.x + row;
      const T* dy_row = in.dy + row;
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        const float value = to_float(x_row[j]);
        float g = to_float(dy_row[j]);
        if constexpr (kTwo) g = rounded_as<T>(g + to_float(in.dy2[row + j]));
        if constexpr (kFn != Fn::None) {
          float z;
          if constexpr (kSkip) {
            z = to_float(in.y[row + j]);  // Relu only: y > 0 exactly if z > 0
          } else {
            z = rounded_as<T>(f.a[j] * value + f.b[j]);
          }
          g = rounded_fn_gradient<T, kFn>(g, z);
        }
        if constexpr (kSkip || kTwo) in.dz[row + j] = store_exact<T>(g);
        sum[j] += g;
        product[j] += g * ((value - mean[j]) * inverse[j]);
      }
    }
    float* out =
        in.scratch + ((s.instance * t.chunks + s.chunk) * 2) * t.width + s.first_lane + lane;
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) out[j] = sum[j];
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) out[t.width + j] = product[j];
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, strip_at(t, i)); }
};

/// Sums of dz and dz xhat.
struct GradientSums {
  double dz;
  double product;
};

/// Sums over chunks of one (instance, channel).
KOKKOS_INLINE_FUNCTION GradientSums sums_of(const NormShape& shape, const float* partial,
                                            std::int64_t i) {
  const Tiling& t = shape.tiling;
  const std::int64_t instance = i / shape.channels;
  const std::int64_t c = i % shape.channels;
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

/// Writes to the first two of the three coefficient arrays.
struct CombineSums {
  NormShape shape;
  const float* partial;
  float* coefficients;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const GradientSums sums = sums_of(shape, partial, i);
    coefficients[i] = static_cast<float>(sums.dz);
    coefficients[shape.instances() * shape.channels + i] = static_cast<float>(sums.product);
  }
};

/// Sums of one part of a batch, to be combined with other parts. They are also this part's
/// parameter gradients.
struct PartSums {
  NormShape shape;
  const float* partial;
  double* sums;
  float* dgamma;
  float* dbeta;
  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    const GradientSums own = sums_of(shape, partial, c);
    sums[c] = own.dz;
    sums[shape.channels + c] = own.product;
    dbeta[c] = static_cast<float>(own.dz);
    dgamma[c] = static_cast<float>(own.product);
  }
};

/// Like CombineSums, but over the parts of a batch.
struct JoinSums {
  std::int64_t channels;
  std::int64_t parts;
  const double* sums;
  float* coefficients;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    double all = 0.0;
    for (std::int64_t p = 0; p < parts; ++p) all += sums[2 * p * channels + i];
    coefficients[i] = static_cast<float>(all);
  }
};

/// dgamma and dbeta of the micro-batch, summed over instances in ascending order.
struct ParameterGradients {
  NormShape shape;
  const float* sums;
  float* dgamma;
  float* dbeta;
  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    const std::int64_t all = shape.instances() * shape.channels;
    float beta = 0.0f;
    float gamma = 0.0f;
    for (std::int64_t i = c; i < all; i += shape.channels) {
      beta += sums[i];
      gamma += sums[all + i];
    }
    dbeta[c] = beta;
    dgamma[c] = gamma;
  }
};

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

template <class T, Fn kFn>
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
      const T* x_row = x + row;
      const T* dz_row = dz + row;
      T* dx_row = dx + row;
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        const float value = to_float(x_row[j]);
        float g = to_float(dz_row[j]);
        if constexpr (kFn != Fn::None) {
          const float z = rounded_as<T>(f.a[j] * value + f.b[j]);
          g = rounded_fn_gradient<T, kFn>(g, z);
        }
        dx_row[j] = store_as<T>(slope_dz[j] * g + (slope_x[j] * value + constant[j]));
      }
    }
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, strip_at(t, i)); }
};

struct UpdateRunning {
  float* moving;
  const float* sums;
  float decay;
  float weight;
  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    moving[c] = decay * moving[c] + weight * sums[c];
  }
};

}  // namespace

NormShape batch_norm_shape(std::int64_t rows, std::int64_t channels) {
  return {make_tiling(1, rows, channels), rows, channels, channels, false};
}

NormShape group_norm_shape(std::int64_t samples, std::int64_t pixels, std::int64_t channels,
                           std::int64_t groups, bool strided_groups) {
  return {make_tiling(samples, pixels, channels), pixels, channels, groups, strided_groups};
}

template <class T>
void norm_statistics(const ExecutionSpace& space, const NormShape& shape, float* statistics,
                     RunningSums running, float* scratch, const T* x, float epsilon) {
  parallel("norm moments", space, shape.tiling.work_items(),
           ChunkMoments<T>{shape.tiling, x, scratch});
  parallel("norm combine", space, shape.instances() * shape.groups,
           CombineMoments{{shape, scratch}, statistics, {running, epsilon}});
}

template <class T>
void norm_moments(const ExecutionSpace& space, const NormShape& shape, double* moments,
                  float* scratch, const T* x) {
  MILLRACE_ASSERT(shape.instances() == 1 && shape.groups == shape.channels);
  parallel("norm moments", space, shape.tiling.work_items(),
           ChunkMoments<T>{shape.tiling, x, scratch});
  parallel("norm part", space, shape.channels, PartMoments{{shape, scratch}, moments});
}

void norm_join_moments(const ExecutionSpace& space, const NormShape& shape, std::int64_t parts,
                       float* statistics, RunningSums running, const double* moments,
                       float epsilon) {
  parallel("norm join", space, shape.channels,
           JoinMoments{shape.channels, shape.rows, parts, moments, statistics, {running, epsilon}});
}

void norm_statistics_from_running(const ExecutionSpace& space, std::int64_t channels,
                                  float* statistics, const float* moving_mean,
                                  const float* moving_variance, float epsilon) {
  parallel("norm running", space, channels,
           FromRunning{channels, statistics, moving_mean, moving_variance, epsilon});
}

template <class T>
void norm_apply(const ExecutionSpace& space, const NormShape& shape, T* y, const T* x,
                const T* skip, const float* statistics, const float* gamma, const float* beta,
                Fn fn) {
  dispatch_fn(fn, [&]<Fn kFn>() {
    const Tiling& t = shape.tiling;
    if (skip != nullptr) {
      parallel("norm add", space, t.work_items(),
               Apply<T, kFn, true>{t, y, x, skip, statistics, gamma, beta});
    } else {
      parallel("norm", space, t.work_items(),
               Apply<T, kFn, false>{t, y, x, nullptr, statistics, gamma, beta});
    }
  });
}

namespace {

/// Writes partial sums to args.scratch, and dz if requested.
template <class T>
void reduce_chunks(const ExecutionSpace& space, const Tiling& t,
                   const NormBackwardReduce<T>& args) {
  const bool two = args.dy2 != nullptr;
  MILLRACE_ASSERT((args.dz != nullptr) == (args.skip_used || two));
  MILLRACE_ASSERT(!args.skip_used || args.fn == Fn::None || args.fn == Fn::Relu);
  dispatch_fn(args.fn, [&]<Fn kFn>() {
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
}

}  // namespace

template <class T>
void norm_backward_reduce(const ExecutionSpace& space, const NormShape& shape,
                          const NormBackwardReduce<T>& args) {
  reduce_chunks(space, shape.tiling, args);
  parallel("norm sums", space, shape.instances() * shape.channels,
           CombineSums{shape, args.scratch, args.coefficients});
  parallel("norm dparam", space, shape.channels,
           ParameterGradients{shape, args.coefficients, args.dgamma, args.dbeta});
  parallel("norm coeff", space, shape.instances() * shape.groups,
           Coefficients{shape, 1, args.statistics, args.gamma, args.coefficients});
}

template <class T>
void norm_backward_sums(const ExecutionSpace& space, const NormShape& shape, double* sums,
                        const NormBackwardReduce<T>& args) {
  MILLRACE_ASSERT(shape.instances() == 1 && shape.groups == shape.channels);
  reduce_chunks(space, shape.tiling, args);
  parallel("norm part", space, shape.channels,
           PartSums{shape, args.scratch, sums, args.dgamma, args.dbeta});
}

void norm_join_sums(const ExecutionSpace& space, const NormShape& shape, std::int64_t parts,
                    float* coefficients, const double* sums, const float* statistics,
                    const float* gamma) {
  parallel("norm join", space, shape.part_doubles(),
           JoinSums{shape.channels, parts, sums, coefficients});
  parallel("norm coeff", space, shape.channels,
           Coefficients{shape, parts, statistics, gamma, coefficients});
}

template <class T>
void norm_backward_apply(const ExecutionSpace& space, const NormShape& shape, T* dx,
                         const T* dz_or_dy, const T* x, const float* coefficients,
                         const float* statistics, const float* gamma, const float* beta, Fn fn) {
  dispatch_fn(fn, [&]<Fn kFn>() {
    parallel("norm dx", space, shape.tiling.work_items(),
             BackwardApply<T, kFn>{shape.tiling, dx, dz_or_dy, x, coefficients, statistics, gamma,
                                   beta});
  });
}

void update_running(const ExecutionSpace& space, std::int64_t channels, float* moving,
                    const float* sums, float decay, std::int64_t micro_batches) {
  const float weight = (1.0f - decay) / static_cast<float>(micro_batches);
  parallel("norm update", space, channels, UpdateRunning{moving, sums, decay, weight});
}

#define MILLRACE_INSTANTIATE(T)                                                                  \
  template void norm_statistics<T>(const ExecutionSpace&, const NormShape&, float*, RunningSums, \
                                   float*, const T*, float);                                     \
  template void norm_moments<T>(const ExecutionSpace&, const NormShape&, double*, float*,        \
                                const T*);                                                       \
  template void norm_apply<T>(const ExecutionSpace&, const NormShape&, T*, const T*, const T*,   \
                              const float*, const float*, const float*, Fn);                     \
  template void norm_backward_reduce<T>(const ExecutionSpace&, const NormShape&,                 \
                                        const NormBackwardReduce<T>&);                           \
  template void norm_backward_sums<T>(const ExecutionSpace&, const NormShape&, double*,          \
                                      const NormBackwardReduce<T>&);                             \
  template void norm_backward_apply<T>(const ExecutionSpace&, const NormShape&, T*, const T*,    \
                                       const T*, const float*, const float*, const float*,       \
                                       const float*, Fn);
MILLRACE_INSTANTIATE(float)
MILLRACE_INSTANTIATE(bfloat16)
MILLRACE_INSTANTIATE(float16)
#undef MILLRACE_INSTANTIATE

}  // namespace millrace::ops
