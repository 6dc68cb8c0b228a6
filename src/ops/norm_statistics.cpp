// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <type_traits>

#include "ops/cutlass/tile_norms.hpp"
#include "ops/lanes.hpp"
#include "ops/norm_results.hpp"
#include "ops/norm_teams.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Mean and sum of squared deviations of each lane over the rows of one chunk, from differences to
/// the first row. Plain sums would lose precision if the mean is large and the deviation is small.
///
/// On cores with two passes, because a chunk is in the cache. Accelerators have no cache that holds
/// the chunks of all threads, and one pass: the row that is subtracted is one of the chunk, so the
/// squares are at most as many times those about the mean as it has rows. As their chunks are
/// short, means are stored as differences to the first row of the instance, `reference`; rounded
/// like numbers far from zero, they would blur the deviations between chunks.
///
/// Of 16-bit types it must read 2 bytes an element.
template <class T>
struct ChunkMoments {
  [[maybe_unused]] static constexpr int kThreadsAtOnce = 1024;
  Tiling t;
  const T* x;
  float* reference;  ///< [instance][width], written; not on cores

  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& s, std::int64_t lane, float* out,
                                  std::int64_t second) const {
    const T* first = x + s.offset + lane;
    float shift[W];
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) shift[j] = to_float(first[j]);
    float mean[W] = {};
    float squares[W] = {};
    if constexpr (device::kOnCores) {
      in_two_passes(s, first, shift, mean, squares);
    } else {
      in_one_pass(s, lane, shift, mean, squares);
      refer(s, lane, shift, mean);
    }
    store_lanes(out, mean);
    store_lanes(out + second, squares);
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void in_two_passes(const Strip& s, const T* first, const float (&shift)[W],
                                            float (&mean)[W], float (&squares)[W]) const {
    for (std::int64_t r = 1; r < s.rows; ++r) {
      const LanesIn<W, T> in(first + r * t.width);
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) mean[j] += to_float(in[j]) - shift[j];
    }
    const float inverse = 1.0f / static_cast<float>(s.rows);
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) mean[j] = shift[j] + mean[j] * inverse;
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const LanesIn<W, T> in(first + r * t.width);
      MILLRACE_SIMD
      for (int j = 0; j < W; ++j) {
        const float d = to_float(in[j]) - mean[j];
        squares[j] += d * d;
      }
    }
  }

  /// Leaves the mean as a difference to the first row.
  template <int W>
  KOKKOS_INLINE_FUNCTION void in_one_pass(const Strip& s, std::int64_t lane,
                                          const float (&shift)[W], float (&mean)[W],
                                          float (&squares)[W]) const {
    for_rows<kRowsAtOnce<T, W, 1>>(t, s, lane, [&]<int kRows>(std::int64_t at) {
      const RowsIn<kRows, W, T> in(x + at, t.width);
      for (int r = 0; r < kRows; ++r) {
        for (int j = 0; j < W; ++j) {
          const float d = to_float(in[r][j]) - shift[j];
          mean[j] += d;
          squares[j] = multiply_add(d, d, squares[j]);
        }
      }
    });
    const float inverse = 1.0f / static_cast<float>(s.rows);
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) {
      const float apart = mean[j] * inverse;
      squares[j] = not_negative(squares[j] - apart * mean[j], squares[j]);
      mean[j] = apart;
    }
  }

  template <int W>
  KOKKOS_INLINE_FUNCTION void refer(const Strip& s, std::int64_t lane, const float (&shift)[W],
                                    float (&mean)[W]) const {
    const std::int64_t at = s.first_lane + lane;
    const LanesIn<W, T> in(x + s.instance * t.tile_rows * t.width + at);
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) mean[j] += shift[j] - to_float(in[j]);
    if (s.chunk > 0) return;
    LanesOut<W, float> out(reference + s.instance * t.width + at);
    MILLRACE_SIMD
    for (int j = 0; j < W; ++j) out.set(j, to_float(in[j]));
  }
};

/// Joins the moments of neighboring parts (Chan, Golub and LeVeque 1979). One pass over them is
/// enough: their means are differences to a row, which leaves accumulators digits to spare.
struct JoinMoments {
  KOKKOS_INLINE_FUNCTION static void join(const LaneParts& parts, float* out, std::int64_t second) {
    Accumulator sum{};
    Accumulator squares{};
    parts.for_each([&](Accumulator rows, Accumulator mean, Accumulator own) {
      sum += rows * mean;
      squares += own + rows * mean * mean;
    });
    const Accumulator mean = sum / static_cast<Accumulator>(parts.all_rows);
    out[0] = static_cast<float>(mean);
    out[second] =
        not_negative(static_cast<float>(squares - sum * mean), static_cast<float>(squares));
  }
};

/// Combines the chunks of one group in accumulators: first the mean of their means, then the
/// squared deviations from it (Chan, Golub and LeVeque 1979).
struct JoinedChunks {
  NormShape shape;
  Tiling t;  ///< that of the partial moments
  const float* partial;
  const float* reference;  ///< as in ChunkMoments

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
      const auto n = static_cast<Accumulator>(left < t.chunk_tile_rows ? left : t.chunk_tile_rows);
      for (std::int64_t place = 0; place < t.tile; ++place) {
        for (std::int64_t k = 0; k < members; ++k) {
          const std::int64_t lane = place * t.channels + channel(group, k);
          auto mean = static_cast<Accumulator>(means[lane]);
          if constexpr (!device::kOnCores)
            mean += static_cast<Accumulator>(reference[instance * t.width + lane]);
          f(n, mean, static_cast<Accumulator>(means[t.width + lane]));
        }
      }
    }
  }
  KOKKOS_INLINE_FUNCTION Accumulator count() const {
    const std::int64_t members = shape.channels / shape.groups;
    return static_cast<Accumulator>(shape.rows * members);
  }
  KOKKOS_INLINE_FUNCTION Moments moments(std::int64_t instance, std::int64_t group) const {
    Accumulator mean{};
    for_parts(instance, group, [&](Accumulator n, Accumulator m, Accumulator) { mean += n * m; });
    mean /= count();
    Accumulator squares{};
    for_parts(instance, group, [&](Accumulator n, Accumulator m, Accumulator own) {
      squares += own + n * (m - mean) * (m - mean);
    });
    return {mean, squares};
  }
};

/// The results of a set: its statistics.
struct WriteStatistics {
  JoinedChunks chunks;
  StatisticsOf result;
  float* statistics;

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

/// Or the moments of a channel of one part of a batch.
struct WriteMoments {
  JoinedChunks chunks;
  Accumulator* moments;

  KOKKOS_FUNCTION void operator()(std::int64_t c) const {
    const Moments m = chunks.moments(0, c);
    moments[c] = m.mean;
    moments[chunks.shape.channels + c] = m.squares;
  }
};

/// What a unit of teams computes: the results of each of its sets.
template <class Write>
struct EachSet {
  static constexpr bool kJoinsInstances = false;
  Write write;
  KOKKOS_INLINE_FUNCTION void operator()(const device::Team& team, const NormSets& sets) const {
    const std::int64_t first = sets.instance * write.chunks.shape.groups;
    for (std::int64_t s = sets.first + team.rank(); s < sets.last; s += team.size())
      write(first + s);
  }
};

/// Sums over x; then write(set), made by `writer` from the chunks of moments, for each set.
template <std::size_t kLabelSize, class T, class Writer>
void with_moments([[maybe_unused]] const char (&label)[kLabelSize], const ExecutionSpace& space,
                  const NormShape& shape, NormScratch scratch, const T* x, const Writer& writer) {
  const Tiling& t = shape.tiling;
  if constexpr (device::kOnCores) {
    const ChunkMoments<T> chunk{t, x, nullptr};
    parallel("norm moments", space, t.work_items(),
             ChunksTo<ChunkMoments<T>>{t, chunk, scratch.sums});
    parallel(label, space, shape.instances() * shape.groups,
             writer(JoinedChunks{shape, t, scratch.sums, nullptr}));
  } else {
    const NormTeamShape teams = shape.teams();
    float* const reference = scratch.sums + teams.scratch_floats();
    const ChunkMoments<T> chunk{t, x, reference};
    const auto write = writer(JoinedChunks{shape, teams.whole(), scratch.sums, reference});
    using Finish = EachSet<std::remove_const_t<decltype(write)>>;
    device::parallel_teams(
        "norm moments", space, teams.teams(),
        NormTeams<ChunkMoments<T>, JoinMoments, Finish>{teams, chunk, Finish{write}, scratch});
  }
}

/// A work item is a span on cores and an element on accelerators, where those past a span's end do
/// nothing.
struct UpdateRunning {
  const RunningSpan* spans;
  float* moving;
  const float* sums;
  float micro_batches;
  const std::uint32_t* skips;

  KOKKOS_INLINE_FUNCTION void element(const RunningSpan& span, std::int64_t k) const {
    const float weight = (1.0f - span.decay) / micro_batches;
    const std::int64_t i = span.offset + k;
    moving[i] = span.decay * moving[i] + weight * sums[i];
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    if (*skips != 0) return;
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

void clear_counters(const ExecutionSpace& space, std::uint32_t* counters, std::int64_t count) {
  const auto clear = KOKKOS_LAMBDA(std::int64_t i) { counters[i] = 0; };
  parallel("norm counters", space, count, clear);
}

template <class T>
void norm_statistics(const ExecutionSpace& space, const NormShape& shape, float* statistics,
                     RunningSums running, NormScratch scratch, const T* x, float epsilon) {
  if constexpr (tiles::kHasType<T>)
    if (shape.moments_in_tiles)
      return tiles::norm_statistics(space, shape, statistics, running, scratch, x, epsilon);
  const StatisticsOf result{running, epsilon};
  with_moments("norm combine", space, shape, scratch, x, [&](const JoinedChunks& chunks) {
    return WriteStatistics{chunks, result, statistics};
  });
}

template <class T>
void norm_moments(const ExecutionSpace& space, const NormShape& shape, Accumulator* moments,
                  NormScratch scratch, const T* x) {
  MILLRACE_ASSERT(shape.by_channel());
  if constexpr (tiles::kHasType<T>)
    if (shape.moments_in_tiles) return tiles::norm_moments(space, shape, moments, scratch, x);
  with_moments("norm part", space, shape, scratch, x, [&](const JoinedChunks& chunks) {
    return WriteMoments{chunks, moments};
  });
}

void norm_join_moments(const ExecutionSpace& space, const NormShape& shape, std::int64_t parts,
                       float* statistics, RunningSums running, const Accumulator* moments,
                       float epsilon) {
  const StatisticsOf result{running, epsilon};
  const auto join = KOKKOS_LAMBDA(std::int64_t c) {
    const auto n = static_cast<Accumulator>(shape.rows);
    const Accumulator count = n * static_cast<Accumulator>(parts);
    Moments all{};
    for (std::int64_t p = 0; p < parts; ++p) all.mean += n * moments[2 * p * shape.channels + c];
    all.mean /= count;
    for (std::int64_t p = 0; p < parts; ++p) {
      const Accumulator* part = moments + 2 * p * shape.channels;
      const Accumulator apart = part[c] - all.mean;
      all.squares += part[shape.channels + c] + n * apart * apart;
    }
    result.write(statistics, shape.channels, c, all, count);
  };
  parallel("norm join", space, shape.channels, join);
}

void norm_statistics_of_sums(const ExecutionSpace& space, const NormShape& shape, float* statistics,
                             RunningSums running, const float* sums, const float* squares,
                             float epsilon) {
  MILLRACE_ASSERT(shape.by_channel());
  const StatisticsOf result{running, epsilon};
  const auto channel = KOKKOS_LAMBDA(std::int64_t c) {
    const auto count = static_cast<Accumulator>(shape.rows);
    const auto sum = static_cast<Accumulator>(sums[c]);
    const Accumulator mean = sum / count;
    const Accumulator about_mean = static_cast<Accumulator>(squares[c]) - sum * mean;
    const Moments all{mean, not_negative(about_mean)};
    result.write(statistics, shape.channels, c, all, count);
  };
  parallel("norm sums", space, shape.channels, channel);
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
                    float* moving, const float* sums, std::int64_t micro_batches,
                    const std::uint32_t* skips) {
  const UpdateRunning update{spans, moving, sums, static_cast<float>(micro_batches), skips};
  parallel("norm update", space, num_spans * (device::kOnCores ? 1 : kRunningElements), update);
}

MILLRACE_INSTANTIATE(norm_statistics)
MILLRACE_INSTANTIATE(norm_moments)

}  // namespace millrace::ops
