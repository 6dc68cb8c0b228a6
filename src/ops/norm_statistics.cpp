// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/instantiate.hpp"
#include "ops/lanes.hpp"
#include "ops/norm.hpp"
#include "ops/norm_chunks.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

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
      const LanesIn<W, T> in(first + r * t.width);
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) mean[j] += to_float(in[j]) - shift[j];
    }
    const float inverse = 1.0f / static_cast<float>(s.rows);
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) mean[j] = shift[j] + mean[j] * inverse;
    float squares[W] = {};
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const LanesIn<W, T> in(first + r * t.width);
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        const float d = to_float(in[j]) - mean[j];
        squares[j] += d * d;
      }
    }
    float* out = partial + ((s.instance * t.chunks + s.chunk) * 2) * t.width + s.first_lane + lane;
    LanesOut<W, float> means(out);
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) means.set(j, mean[j]);
    LanesOut<W, float> deviations(out + t.width);
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) deviations.set(j, squares[j]);
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { for_lanes(*this, t, strip_at(t, i)); }
};

/// Mean of some elements and the sum of their squared deviations.
struct Moments {
  double mean;
  double squares;
};

/// Joins the moments of a group of chunks, lane by lane, as in JoinedChunks.
struct JoinMoments {
  ChunkJoin join;

  [[nodiscard]] std::int64_t work_items() const {
    return join.coarse.instances * join.coarse.chunks * join.coarse.width;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Tiling& fine = join.fine;
    const ChunkGroup group = group_at(join, fine.width, i);
    const auto rows = [&](std::int64_t chunk) {
      const std::int64_t left = fine.tile_rows - chunk * fine.chunk_tile_rows;
      return static_cast<double>(left < fine.chunk_tile_rows ? left : fine.chunk_tile_rows);
    };
    double mean = 0.0;
    double count = 0.0;
    for (std::int64_t chunk = group.first; chunk < group.last; ++chunk) {
      mean += rows(chunk) * static_cast<double>(group.values[2 * chunk * fine.width]);
      count += rows(chunk);
    }
    mean /= count;
    double squares = 0.0;
    for (std::int64_t chunk = group.first; chunk < group.last; ++chunk) {
      const double apart = static_cast<double>(group.values[2 * chunk * fine.width]) - mean;
      squares += static_cast<double>(group.values[(2 * chunk + 1) * fine.width]) +
                 rows(chunk) * apart * apart;
    }
    group.out[0] = static_cast<float>(mean);
    group.out[fine.width] = static_cast<float>(squares);
  }
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
  Tiling t;  ///< that of the partial moments
  const float* partial;

  KOKKOS_INLINE_FUNCTION std::int64_t channel(std::int64_t group, std::int64_t k) const {
    const std::int64_t members = shape.channels / shape.groups;
    return shape.strided_groups ? k * shape.groups + group : group * members + k;
  }
  /// Calls f(rows, mean, squares) for every chunk and every lane of the group.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_parts(std::int64_t instance, std::int64_t group, F&& f) const {
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

/// The moments of all chunks of x, in one level or two.
template <class T>
JoinedChunks moments_of_chunks(const ExecutionSpace& space, const NormShape& shape, float* scratch,
                               const T* x) {
  const Tiling& t = shape.tiling;
  parallel("norm moments", space, t.work_items(), ChunkMoments<T>{t, x, scratch});
  const JoinMoments moments{join_of_chunks(shape, scratch)};
  const ChunkJoin& join = moments.join;
  if (join.fan == 1) return {shape, t, scratch};
  parallel("norm join", space, moments.work_items(), moments);
  return {shape, join.coarse, join.joined};
}

/// A work item is a span on cores and an element on accelerators, where those past a span's end do
/// nothing.
struct UpdateRunning {
  const RunningSpan* spans;
  float* moving;
  const float* sums;
  float micro_batches;

  KOKKOS_INLINE_FUNCTION void element(const RunningSpan& span, std::int64_t k) const {
    const float weight = (1.0f - span.decay) / micro_batches;
    const std::int64_t i = span.offset + k;
    moving[i] = span.decay * moving[i] + weight * sums[i];
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    if constexpr (device::kOnCores) {
      const RunningSpan span = spans[i];
      for (std::int64_t k = 0; k < span.elements; ++k) element(span, k);
    } else {
      const RunningSpan span = spans[i / kRunningElements];
      if (i % kRunningElements < span.elements) element(span, i % kRunningElements);
    }
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
  const JoinedChunks chunks = moments_of_chunks(space, shape, scratch, x);
  const StatisticsOf result{running, epsilon};
  const auto combine = KOKKOS_LAMBDA(std::int64_t i) {
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
  };
  parallel("norm combine", space, shape.instances() * shape.groups, combine);
}

template <class T>
void norm_moments(const ExecutionSpace& space, const NormShape& shape, double* moments,
                  float* scratch, const T* x) {
  MILLRACE_ASSERT(shape.instances() == 1 && shape.groups == shape.channels);
  const JoinedChunks chunks = moments_of_chunks(space, shape, scratch, x);
  const std::int64_t channels = shape.channels;
  const auto part = KOKKOS_LAMBDA(std::int64_t c) {
    const Moments m = chunks.moments(0, c);
    moments[c] = m.mean;
    moments[channels + c] = m.squares;
  };
  parallel("norm part", space, channels, part);
}

void norm_join_moments(const ExecutionSpace& space, const NormShape& shape, std::int64_t parts,
                       float* statistics, RunningSums running, const double* moments,
                       float epsilon) {
  const StatisticsOf result{running, epsilon};
  const auto join = KOKKOS_LAMBDA(std::int64_t c) {
    const auto n = static_cast<double>(shape.rows);
    const double count = n * static_cast<double>(parts);
    Moments all{0.0, 0.0};
    for (std::int64_t p = 0; p < parts; ++p) all.mean += n * moments[2 * p * shape.channels + c];
    all.mean /= count;
    for (std::int64_t p = 0; p < parts; ++p) {
      const double* part = moments + 2 * p * shape.channels;
      const double apart = part[c] - all.mean;
      all.squares += part[shape.channels + c] + n * apart * apart;
    }
    statistics[c] = static_cast<float>(all.mean);
    statistics[shape.channels + c] = result.inverse_deviation(all, count);
    result.add_running(c, all, count);
  };
  parallel("norm join", space, shape.channels, join);
}

void norm_statistics_from_running(const ExecutionSpace& space, std::int64_t channels,
                                  float* statistics, const float* moving_mean,
                                  const float* moving_variance, float epsilon) {
  const auto channel = KOKKOS_LAMBDA(std::int64_t c) {
    statistics[c] = moving_mean[c];
    statistics[channels + c] = 1.0f / std::sqrt(moving_variance[c] + epsilon);
  };
  parallel("norm running", space, channels, channel);
}

void update_running(const ExecutionSpace& space, const RunningSpan* spans, std::int64_t num_spans,
                    float* moving, const float* sums, std::int64_t micro_batches) {
  const UpdateRunning update{spans, moving, sums, static_cast<float>(micro_batches)};
  parallel("norm update", space, num_spans * (device::kOnCores ? 1 : kRunningElements), update);
}

MILLRACE_INSTANTIATE(norm_statistics)
MILLRACE_INSTANTIATE(norm_moments)

}  // namespace millrace::ops
