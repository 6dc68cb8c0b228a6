// SPDX-License-Identifier: Apache-2.0
//
// Matrices of weight gradients, and the gradients by loops in double.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "../support/cublas/stand_in.hpp"
#include "core/bfloat16.hpp"
#include "core/dtype.hpp"
#include "core/float16.hpp"
#include "ops/cublas/weight_product.hpp"

namespace millrace::ops::cublas::testing {

using millrace::testing::cublas::calls;
using millrace::testing::cublas::Kernel;
using millrace::testing::cublas::propose;

/// Bytes that begin `offset` behind a multiple of 256.
class Bytes {
 public:
  explicit Bytes(std::int64_t count, std::int64_t offset = 0)
      : blocks_(std::make_unique<std::vector<Block>>(
            static_cast<std::size_t>((count + offset) / 256 + 1))),
        offset_(offset) {}
  [[nodiscard]] std::byte* get() const { return blocks_->front().bytes.data() + offset_; }

 private:
  struct alignas(256) Block {
    std::array<std::byte, 256> bytes;
  };
  std::unique_ptr<std::vector<Block>> blocks_;
  std::int64_t offset_;
};

/// Numbers of a 16-bit type, as the library reads them and as they are.
struct Halves {
  Bytes stored;
  std::vector<double> values;
};

template <class Number>
Halves halves(std::int64_t count, DType type, const Number& number, std::int64_t offset = 0) {
  Halves made{Bytes(2 * count, offset), {}};
  for (std::int64_t i = 0; i < count; ++i) {
    std::byte* const at = made.stored.get() + 2 * i;
    const auto store = [&](auto value) {
      std::memcpy(at, &value, sizeof value);
      made.values.push_back(static_cast<double>(to_float(value)));
    };
    const float x = number(i);
    type == DType::BF16 ? store(store_as<bfloat16>(x)) : store(store_as<float16>(x));
  }
  return made;
}

/// Numbers between -1 and 1 that differ for each seed.
inline auto scattered(std::int64_t seed) {
  return [seed](std::int64_t i) {
    return static_cast<float>(((i + 1) * (2 * seed + 1) * 2'654'435'761 >> 7) % 2001 - 1000) *
           1e-3f;
  };
}

/// A micro-batch.
struct Batch {
  Halves x, dy;
};
inline Batch batch_of(const ProductShape& s, std::int64_t seed, std::int64_t offset = 0) {
  return {halves(s.rows * s.in, s.type, scattered(seed), offset),
          halves(s.rows * s.out, s.type, scattered(seed + 1000), offset)};
}

/// sums[out][in] += gradient; `magnitudes` likewise, of the absolute values.
inline void add_gradient(const ProductShape& s, const Batch& batch, std::vector<double>& sums,
                         std::vector<double>& magnitudes) {
  for (std::int64_t o = 0; o < s.out; ++o)
    for (std::int64_t i = 0; i < s.in; ++i)
      for (std::int64_t r = 0; r < s.rows; ++r) {
        const double product = batch.dy.values[static_cast<std::size_t>(r * s.out + o)] *
                               batch.x.values[static_cast<std::size_t>(r * s.in + i)];
        sums[static_cast<std::size_t>(o * s.in + i)] += product;
        magnitudes[static_cast<std::size_t>(o * s.in + i)] += product < 0 ? -product : product;
      }
}

}  // namespace millrace::ops::cublas::testing
