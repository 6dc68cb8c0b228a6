// SPDX-License-Identifier: Apache-2.0
#include "core/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace millrace {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) != 0 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = make_table();

std::uint32_t crc_by_table(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  for (const std::byte b : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ std::to_integer<std::uint32_t>(b)) & 0xffu];
  }
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc_by_instruction(std::span<const std::byte> bytes,
                                                                   std::uint32_t crc) noexcept {
  std::uint64_t wide = crc;
  while (bytes.size() >= sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    wide = _mm_crc32_u64(wide, word);
    bytes = bytes.subspan(sizeof word);
  }
  auto narrow = static_cast<std::uint32_t>(wide);
  for (const std::byte b : bytes) narrow = _mm_crc32_u8(narrow, std::to_integer<std::uint8_t>(b));
  return narrow;
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~crc_by_instruction(bytes, ~crc);
#endif
  return ~crc_by_table(bytes, ~crc);
}

}  // namespace millrace
