// SPDX-License-Identifier: Apache-2.0
//
// Random numbers as a pure function of a key and a counter. There is no state, so the value for a
// sample, a weight or a dropout mask does not depend on threads, layout or restarts.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/portable.hpp"

namespace millrace {

/// Purpose of a stream of numbers; two purposes never share a stream.
enum class RandomPurpose : std::uint64_t {
  Initialise = 1,
  DataOrder,
  Augment,
  Dropout,
  DropConnect,
  Rounding,
  Mixing,
  SyntheticData,
  GeneratedData,
  HostFailures,
};

using RandomBlock = std::array<std::uint32_t, 4>;

/// Finalizer of splitmix64: spreads the bits of `x` over the whole word.
MILLRACE_FUNCTION std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// FNV-1a hash of a name, so that an op's stream depends on its name and not on where it runs.
[[nodiscard]] std::uint64_t hash_name(std::string_view name) noexcept;

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
struct RandomStream {
  std::uint64_t key = 0;

  /// Stream for (seed, purpose, stream): `stream` is hash_name of an op, an epoch, ...
  RandomStream(std::uint64_t seed, RandomPurpose purpose, std::uint64_t stream = 0)
      : key(mix_bits(mix_bits(seed ^ mix_bits(static_cast<std::uint64_t>(purpose))) ^ stream)) {}

  /// Four independent 32-bit numbers for the counter (hi, lo).
  [[nodiscard]] MILLRACE_FUNCTION RandomBlock block(std::uint64_t hi,
                                                    std::uint64_t lo) const noexcept {
    constexpr std::uint64_t kMultiplier0 = 0xD2511F53u;
    constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57u;
    RandomBlock x = {static_cast<std::uint32_t>(lo), static_cast<std::uint32_t>(lo >> 32),
                     static_cast<std::uint32_t>(hi), static_cast<std::uint32_t>(hi >> 32)};
    auto k0 = static_cast<std::uint32_t>(key);
    auto k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = kMultiplier0 * x[0];
      const std::uint64_t p1 = kMultiplier1 * x[2];
      x = {static_cast<std::uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<std::uint32_t>(p1),
           static_cast<std::uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<std::uint32_t>(p0)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return x;
  }
};

/// Uniform in [0, 1) with 24 bits, from one word of a block.
MILLRACE_FUNCTION float uniform01(std::uint32_t word) {
  // Signed, because vector units convert signed integers in one instruction.
  return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1.0p-24f;
}

/// Uniform in (0, 1) with 52 bits, from two words of a block: never 0, so its logarithm is finite.
MILLRACE_FUNCTION double uniform01_double(std::uint32_t a, std::uint32_t b) {
  const std::uint64_t word = (static_cast<std::uint64_t>(a) << 32) | b;
  return (static_cast<double>(word >> 12) + 0.5) * 0x1.0p-52;
}

/// Uniform integer in [0, n) from one word; the bias is below n / 2^32.
MILLRACE_FUNCTION std::uint32_t uniform_below(std::uint32_t word, std::uint32_t n) {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(word) * n) >> 32);
}

/// The next number of xoshiro128++ (Blackman and Vigna, "Scrambled linear pseudorandom number
/// generators", TOMS 2021), and advances its state. Seed a sequence with a block of a RandomStream;
/// its numbers are much cheaper than those of further blocks.
MILLRACE_FUNCTION std::uint32_t next_in_sequence(std::uint32_t& s0, std::uint32_t& s1,
                                                 std::uint32_t& s2, std::uint32_t& s3) {
  const std::uint32_t sum = s0 + s3;
  const std::uint32_t number = ((sum << 7) | (sum >> 25)) + s0;
  const std::uint32_t shifted = s1 << 9;
  s2 ^= s0;
  s3 ^= s1;
  s1 ^= s2;
  s0 ^= s3;
  s2 ^= shifted;
  s3 = (s3 << 11) | (s3 >> 21);
  return number;
}

/// A keyed permutation of [0, size): a balanced Feistel network of 8 rounds with cycle walking
/// (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Each element is
/// computed without the others, so every rank can compute the place of every sample.
class Permutation {
 public:
  /// `size` must not be 0.
  Permutation(std::uint64_t seed, std::uint64_t epoch, std::uint64_t size);
  [[nodiscard]] std::uint64_t operator()(std::uint64_t index) const noexcept;
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

 private:
  RandomStream stream_;
  std::uint64_t size_;
  unsigned half_bits_;
};

}  // namespace millrace
