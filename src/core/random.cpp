// SPDX-License-Identifier: Apache-2.0
#include "core/random.hpp"

#include <bit>

#include "core/error.hpp"

namespace millrace {

std::uint64_t hash_name(std::string_view name) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ull;
  }
  return hash;
}

RandomBlock RandomStream::block(std::uint64_t hi, std::uint64_t lo) const noexcept {
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

Permutation::Permutation(std::uint64_t seed, std::uint64_t epoch, std::uint64_t size)
    : stream_(seed, RandomPurpose::DataOrder, epoch), size_(size), half_bits_(1) {
  MILLRACE_ASSERT(size > 0);
  const auto bits = static_cast<unsigned>(std::bit_width(size - 1));
  if (bits > 2) half_bits_ = (bits + 1) / 2;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const noexcept {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = index >> half_bits_;
    std::uint64_t right = index & mask;
    for (std::uint64_t round = 0; round < 8; ++round) {
      const std::uint64_t mixed = mix_bits(stream_.key ^ mix_bits(right ^ (round << 56)));
      const std::uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    index = (left << half_bits_) | right;
  } while (index >= size_);
  return index;
}

}  // namespace millrace
