// SPDX-License-Identifier: Apache-2.0
#include "ops/cutlass/tile_norms.hpp"

#include "device/teams.hpp"
#include "ops/cutlass/tile_sums.hpp"
#include "ops/norm_results.hpp"

namespace millrace::ops::tiles {
namespace {

using device::ExecutionSpace;

/// Sums over every tile of an activation. `sums.body(tile)` is the body of sum_tile().
template <class Sums>
struct SumTiles {
  [[maybe_unused]] static constexpr int kThreads = device::threads_of_team(tiles::kThreads);
  [[maybe_unused]] static constexpr std::size_t kSharedBytes =
      shared_floats(kMostColumns) * sizeof(float);

  TileShape shape;
  Sums sums;
  float* left;

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    const int columns = shape.columns();
    const Quotient at = divide(i, shape.channels / columns);
    const Tile tile{shape, at.quotient, at.remainder * columns};
    auto* const shared = reinterpret_cast<float*>(team.shared());
    if (columns == kMostColumns)
      sum_tile<kMostColumns / kStrips>(team, tile, sums.body(tile), left, shared);
    else
      sum_tile<kMostColumns / kStrips / 2>(team, tile, sums.body(tile), left, shared);
  }
};

template <std::size_t kLabelSize, class Sums>
void sum_tiles(const char (&label)[kLabelSize], const ExecutionSpace& space, const TileShape& shape,
               const Sums& sums, float* left) {
  device::parallel_teams(label, space, shape.tiles() * (shape.channels / shape.columns()),
                         SumTiles<Sums>{shape, sums, left});
}

template <class T>
struct MomentsInMemory {
  const T* x;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION auto body(const Tile& tile) const {
    return TileMoments<T, false>{tile, tile.rows_in(x), nullptr};
  }
};

template <class T, Activation kFn, bool kSkip, bool kTwo, bool kMask>
struct GradientsInMemory {
  NormBackwardReduce<T> in;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION auto body(const Tile& tile) const {
    return TileGradients<T, kFn, kSkip, kTwo, kMask>{tile, tile.rows_in(in.dy), in, in.dz};
  }
};

template <class T>
void sum_gradients(const ExecutionSpace& space, const NormShape& shape,
                   const NormBackwardReduce<T>& in) {
  dispatch_reduce(in, [&]<Activation kFn, bool kSkip, bool kTwo, bool kMask>() {
    sum_tiles("norm tiles", space, shape.tile_shape(),
              GradientsInMemory<T, kFn, kSkip, kTwo, kMask>{in}, in.scratch.sums);
  });
}

/// Two totals of a channel.
struct Totals {
  Accumulator first;
  Accumulator second;
};

/// Of TileMoments: mean and sum of squared deviations, from deviations of the tiles' means from the
/// first one (Chan, Golub and LeVeque 1979).
struct JoinMoments {
  TileShape shape;
  const float* left;

  KOKKOS_INLINE_FUNCTION void add(std::int64_t tile, std::int64_t c, Totals& sums) const {
    const float* const own = left + 2 * tile * shape.channels + c;
    const auto rows = static_cast<Accumulator>(static_cast<std::int64_t>(shape.rows_of(tile)));
    const Accumulator apart = static_cast<Accumulator>(*own) - static_cast<Accumulator>(left[c]);
    sums.first += rows * apart;
    sums.second += static_cast<Accumulator>(own[shape.channels]) + rows * apart * apart;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Moments total(std::int64_t c, const Totals& sums) const {
    const Accumulator apart = sums.first / static_cast<Accumulator>(shape.rows);
    return {static_cast<Accumulator>(left[c]) + apart,
            not_negative(sums.second - sums.first * apart)};
  }
};

/// Of TileGradients: the sums of dz and of dz xhat.
struct JoinGradients {
  TileShape shape;
  const float* left;
  const float* statistics;

  KOKKOS_INLINE_FUNCTION void add(std::int64_t tile, std::int64_t c, Totals& sums) const {
    const float* const own = left + 2 * tile * shape.channels + c;
    sums.first += static_cast<Accumulator>(*own);
    sums.second += static_cast<Accumulator>(own[shape.channels]);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Totals total(std::int64_t c, const Totals& sums) const {
    const float inverse = statistics[shape.channels + c];
    return {sums.first, sums.second * static_cast<Accumulator>(inverse)};
  }
};

/// Joins the tiles of 8 neighboring channels (32 bytes): lane l of 64 takes tiles l, l + 64, ...,
/// and the lanes are joined in ascending order. finish(c, total) computes the results for a
/// channel.
template <class Join, class Finish>
struct JoinTiles {
  static constexpr int kChannels = 8;
  static constexpr int kLanesOfChannel = 64;
  [[maybe_unused]] static constexpr int kThreads =
      device::threads_of_team(kChannels * kLanesOfChannel);
  [[maybe_unused]] static constexpr std::size_t kSharedBytes =
      kChannels * kLanesOfChannel * sizeof(Totals);

  Join join;
  Finish finish;

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    auto* const shared = reinterpret_cast<Totals*>(team.shared());
    const std::int64_t tiles = join.shape.tiles();
    for (int k = team.rank(); k < kChannels * kLanesOfChannel; k += team.size()) {
      Totals sums{};
      for (std::int64_t tile = k / kChannels; tile < tiles; tile += kLanesOfChannel)
        join.add(tile, i * kChannels + k % kChannels, sums);
      shared[k] = sums;
    }
    team.wait();
    for (int k = team.rank(); k < kChannels; k += team.size()) {
      Totals all{};
      for (int lane = 0; lane < kLanesOfChannel; ++lane) {
        all.first += shared[lane * kChannels + k].first;
        all.second += shared[lane * kChannels + k].second;
      }
      const std::int64_t c = i * kChannels + k;
      finish(c, join.total(c, all));
    }
  }
};

template <class Join, class Finish>
void join_tiles(const ExecutionSpace& space, const Join& join, const Finish& finish) {
  using Kernel = JoinTiles<Join, Finish>;
  device::parallel_teams("norm join", space, join.shape.channels / Kernel::kChannels,
                         Kernel{join, finish});
}

struct FinishStatistics {
  StatisticsOf result;
  TileShape shape;
  float* statistics;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t c, const Moments& all) const {
    result.write(statistics, shape.channels, c, all, static_cast<Accumulator>(shape.rows));
  }
};

/// The moments of one part of a batch.
struct FinishMoments {
  std::int64_t channels;
  Accumulator* moments;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t c, const Moments& all) const {
    moments[c] = all.mean;
    moments[channels + c] = all.squares;
  }
};

struct FinishGradients {
  ParameterSums parameters;
  Coefficients coefficients;
  float* sums;  ///< those that become coefficients
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t c, const Totals& all) const {
    const ParameterGradient own{static_cast<float>(all.second), static_cast<float>(all.first)};
    parameters.store(c, own);
    sums[c] = own.beta;
    sums[coefficients.shape.channels + c] = own.gamma;
    coefficients(c);
  }
};

/// The sums of one part of a batch, which are also its parameter gradients.
struct FinishPart {
  ParameterSums parameters;
  std::int64_t channels;
  Accumulator* sums;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t c, const Totals& all) const {
    sums[c] = all.first;
    sums[channels + c] = all.second;
    parameters.store(c, {static_cast<float>(all.second), static_cast<float>(all.first)});
  }
};

}  // namespace

template <class T>
void norm_statistics(const ExecutionSpace& space, const NormShape& shape, float* statistics,
                     RunningSums running, NormScratch scratch, const T* x, float epsilon) {
  sum_tiles("norm tiles", space, shape.tile_shape(), MomentsInMemory<T>{x}, scratch.sums);
  join_statistics(space, shape, statistics, running, scratch.sums, epsilon);
}

void join_statistics(const ExecutionSpace& space, const NormShape& shape, float* statistics,
                     RunningSums running, const float* left, float epsilon) {
  const TileShape tiles = shape.tile_shape();
  join_tiles(space, JoinMoments{tiles, left},
             FinishStatistics{{running, epsilon}, tiles, statistics});
}

template <class T>
void norm_moments(const ExecutionSpace& space, const NormShape& shape, Accumulator* moments,
                  NormScratch scratch, const T* x) {
  const TileShape tiles = shape.tile_shape();
  sum_tiles("norm tiles", space, tiles, MomentsInMemory<T>{x}, scratch.sums);
  join_tiles(space, JoinMoments{tiles, scratch.sums}, FinishMoments{tiles.channels, moments});
}

template <class T>
void norm_gradients(const ExecutionSpace& space, const NormShape& shape,
                    const NormBackwardReduce<T>& args) {
  sum_gradients(space, shape, args);
  join_gradients(space, shape, args, args.scratch.sums);
}

template <class T>
void join_gradients(const ExecutionSpace& space, const NormShape& shape,
                    const NormBackwardReduce<T>& args, const float* left) {
  const Coefficients coefficients{
      shape, 1, args.statistics, args.gamma, args.coefficients, args.coefficients};
  join_tiles(space, JoinGradients{shape.tile_shape(), left, args.statistics},
             FinishGradients{parameter_sums(args), coefficients, args.coefficients});
}

template <class T>
void norm_sums(const ExecutionSpace& space, const NormShape& shape, Accumulator* sums,
               const NormBackwardReduce<T>& args) {
  sum_gradients(space, shape, args);
  join_tiles(space, JoinGradients{shape.tile_shape(), args.scratch.sums, args.statistics},
             FinishPart{parameter_sums(args), shape.channels, sums});
}

#define MILLRACE_TILE_NORMS(T)                              \
  template decltype(norm_statistics<T>) norm_statistics<T>; \
  template decltype(norm_moments<T>) norm_moments<T>;       \
  template decltype(norm_gradients<T>) norm_gradients<T>;   \
  template decltype(norm_sums<T>) norm_sums<T>;             \
  template decltype(join_gradients<T>) join_gradients<T>;
MILLRACE_TILE_NORMS(bfloat16)
MILLRACE_TILE_NORMS(float16)

}  // namespace millrace::ops::tiles
