// SPDX-License-Identifier: Apache-2.0
//
// Products for tests, in place of ops/cutlass/products.cpp: plain loops compute a tile into shared
// memory, and what comes after it is the same code.
#include "ops/cutlass/products.hpp"

#include "device/teams.hpp"

namespace millrace::ops::tiles {
namespace {

/// Writes the rows of a tile.
template <class T>
struct Copy {
  T* out;
  template <int W>
  void run(const device::Team& team, const Tile& tile, const Rows<T>& rows, float*) const {
    constexpr int kColumns = kStrips * W;
    for (int k = team.rank(); k < tile.rows() * kColumns; k += team.size())
      out[tile.offset(k / kColumns, k % kColumns)] = *rows.at(k / kColumns, k % kColumns);
  }
};

/// Adds them up with the body that make(tile, rows) returns.
template <class Make>
struct Sum {
  Make make;
  float* left;
  template <int W, class T>
  void run(const device::Team& team, const Tile& tile, const Rows<T>& rows, float* shared) const {
    sum_tile<W>(team, tile, make(tile, rows), left, shared);
  }
};

template <class T, class Use>
struct Product {
  static constexpr int kThreads = device::threads_of_team(tiles::kThreads);
  static constexpr std::size_t kRowBytes = sizeof(T) * kRows * kMostColumns;
  static constexpr std::size_t kSharedBytes =
      kRowBytes + sizeof(float) * shared_floats(kMostColumns);

  TileShape shape;
  Operands<T> operands;
  Result result;
  Use use;

  float value(std::int64_t row, std::int64_t column) const {
    float sum = 0.0f;
    for (std::int64_t k = 0; k < operands.inner; ++k) {
      const T* const w = operands.kernel + (result == Result::Y ? column * operands.inner + k
                                                                : k * shape.channels + column);
      sum += to_float(operands.rows[row * operands.inner + k]) * to_float(*w);
    }
    return sum;
  }
  void operator()(const device::Team& team, std::int64_t i) const {
    const int columns = shape.columns();
    const std::int64_t across = shape.channels / columns;
    const Tile tile{shape, i / across, i % across * columns};
    auto* const rows = reinterpret_cast<T*>(team.shared());
    for (int k = team.rank(); k < tile.rows() * columns; k += team.size())
      rows[k] = store_as<T>(value(tile.number * kRows + k / columns, tile.channel + k % columns));
    team.wait();
    auto* const sums = reinterpret_cast<float*>(team.shared() + kRowBytes);
    if (columns == kMostColumns)
      use.template run<kMostColumns / kStrips>(team, tile, Rows<T>{rows, columns}, sums);
    else
      use.template run<kMostColumns / kStrips / 2>(team, tile, Rows<T>{rows, columns}, sums);
  }
};

template <class T, class Use>
void launch(const device::ExecutionSpace& space, const TileShape& shape,
            const Operands<T>& operands, Result result, const Use& use) {
  device::parallel_teams("product", space, shape.tiles() * (shape.channels / shape.columns()),
                         Product<T, Use>{shape, operands, result, use});
}

}  // namespace

bool has_products() { return true; }

template <class T>
void multiply(const device::ExecutionSpace& space, const TileShape& shape,
              const Operands<T>& operands, Result result, T* out) {
  launch(space, shape, operands, result, Copy<T>{out});
}

template <class T>
void multiply_moments(const device::ExecutionSpace& space, const TileShape& shape,
                      const Operands<T>& operands, T* y, float* left) {
  const auto make = [y](const Tile& tile, const Rows<T>& rows) {
    return TileMoments<T, true>{tile, rows, y};
  };
  launch(space, shape, operands, Result::Y, Sum<decltype(make)>{make, left});
}

template <class T>
void multiply_gradients(const device::ExecutionSpace& space, const TileShape& shape,
                        const Operands<T>& operands, const NormBackwardReduce<T>& in, T* out,
                        float* left) {
  const auto sum = [&]<bool kAdded>() {
    const auto make = [in, out](const Tile& tile, const Rows<T>& rows) {
      return TileGradients<T, Activation::Relu, kAdded, kAdded, kAdded, true>{tile, rows, in, out};
    };
    launch(space, shape, operands, Result::Dx, Sum<decltype(make)>{make, left});
  };
  if (in.skip_used)
    sum.template operator()<true>();
  else
    sum.template operator()<false>();
}

MILLRACE_PRODUCTS(bfloat16)
MILLRACE_PRODUCTS(float16)

}  // namespace millrace::ops::tiles
