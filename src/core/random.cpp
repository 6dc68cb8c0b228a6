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
