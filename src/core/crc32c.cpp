// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C is the remainder of a polynomial over GF(2) modulo P. The checksum of a byte sequence is
// therefore the sum of the checksums of its parts, each shifted by the length of what follows. Two
// methods use this:
//
//   - The crc32 instruction processes 8 bytes in 3 cycles, and one can start every cycle. Three
//     blocks are processed side by side; the first two results are then shifted by multiplying with
//     a power of x (pclmul).
//   - Without that instruction, eight tables shift the eight bytes of a word at once ("slicing by
//     8").
#include "core/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78u;  // bit 31 is x^0, bit 0 is x^31

/// value x X mod P
constexpr std::uint32_t times_x(std::uint32_t value) {
  return (value >> 1) ^ ((value & 1u) != 0 ? kPolynomial : 0u);
}

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

/// tables[k][b] is the contribution of byte b when k more bytes follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t value = b;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    tables[0][b] = value;
  }
  for (std::size_t k = 1; k < tables.size(); ++k)
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xffu];
    }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint32_t crc_by_table(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  while (bytes.size() >= 8) {
    std::uint32_t next = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const auto mixed = (crc >> (8 * k)) ^ std::to_integer<std::uint32_t>(bytes[k]);
      next ^= kTables[7 - k][mixed & 0xffu] ^
              kTables[3 - k][std::to_integer<std::uint32_t>(bytes[4 + k])];
    }
    crc = next;
    bytes = bytes.subspan(8);
  }
  for (const std::byte b : bytes)
    crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(b)) & 0xffu];
  return crc;
}

#if defined(__x86_64__)

constexpr std::size_t kBlock = 1344;  // bytes of each of the three streams; a multiple of 8

/// x^n mod P
constexpr std::uint32_t power_of_x(std::size_t n) {
  std::uint32_t value = 0x80000000u;
  for (std::size_t i = 0; i < n; ++i) value = times_x(value);
  return value;
}

/// Factor that shifts a remainder by `count` bytes. The product of two reflected 32-bit numbers
/// carries an extra factor x, and the instruction that reduces it multiplies by x^32, so the factor
/// is x^33 smaller.
constexpr std::uint32_t shift_by(std::size_t count) { return power_of_x(8 * count - 33); }

constexpr std::uint32_t kShiftOne = shift_by(kBlock);
constexpr std::uint32_t kShiftTwo = shift_by(2 * kBlock);

__attribute__((target("sse4.2"))) std::uint64_t next_word(std::uint64_t crc,
                                                          const std::byte* at) noexcept {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return _mm_crc32_u64(crc, word);
}

__attribute__((target("sse4.2"))) std::uint32_t crc_by_instruction(std::span<const std::byte> bytes,
                                                                   std::uint32_t crc) noexcept {
  std::uint64_t wide = crc;
  while (bytes.size() >= sizeof(std::uint64_t)) {
    wide = next_word(wide, bytes.data());
    bytes = bytes.subspan(sizeof(std::uint64_t));
  }
  auto narrow = static_cast<std::uint32_t>(wide);
  for (const std::byte b : bytes) narrow = _mm_crc32_u8(narrow, std::to_integer<std::uint8_t>(b));
  return narrow;
}

__attribute__((target("sse4.2,pclmul"))) std::uint64_t shifted(std::uint64_t crc,
                                                               std::uint32_t shift) noexcept {
  const __m128i product =
      _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<std::int64_t>(crc)),
                           _mm_cvtsi64_si128(static_cast<std::int64_t>(shift)), 0);
  return _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product)));
}

__attribute__((target("sse4.2,pclmul"))) std::uint32_t crc_by_three_streams(
    std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  std::uint64_t a = crc;
  while (bytes.size() >= 3 * kBlock) {
    const std::byte* const at = bytes.data();
    std::uint64_t b = 0;
    std::uint64_t c = 0;
    for (std::size_t i = 0; i < kBlock; i += sizeof(std::uint64_t)) {
      a = next_word(a, at + i);
      b = next_word(b, at + kBlock + i);
      c = next_word(c, at + 2 * kBlock + i);
    }
    a = shifted(a, kShiftTwo) ^ shifted(b, kShiftOne) ^ c;
    bytes = bytes.subspan(3 * kBlock);
  }
  return crc_by_instruction(bytes, static_cast<std::uint32_t>(a));
}

#endif

using Method = std::uint32_t (*)(std::span<const std::byte>, std::uint32_t) noexcept;

Method best_method() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") != 0)
    return __builtin_cpu_supports("pclmul") != 0 ? crc_by_three_streams : crc_by_instruction;
#endif
  return crc_by_table;
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  static const Method method = best_method();
  return ~method(bytes, ~crc);
}

std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  return ~crc_by_table(bytes, ~crc);
}

}  // namespace millrace
