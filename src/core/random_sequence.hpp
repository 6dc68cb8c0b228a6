// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/portable.hpp"

namespace millrace {

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

}  // namespace millrace
