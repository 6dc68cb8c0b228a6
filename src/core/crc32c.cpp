// SPDX-License-Identifier: Apache-2.0
#include "core/crc32c.hpp"

#include <isa-l/crc.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace {
namespace {

#if defined(__x86_64__)
/// The library's AVX-512 code leaves the upper halves of registers in use. Code without AVX, which
/// is most of ours, then takes up to 20 times as long.
__attribute__((target("avx"))) void leave_upper_halves() noexcept { _mm256_zeroupper(); }
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // the library counts in int
  crc = ~crc;
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kMost);
    // The library only reads, but does not say so.
    auto* const begin =
        const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    crc = crc32_iscsi(begin, static_cast<int>(count), crc);
    bytes = bytes.subspan(count);
  }
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx") != 0) leave_upper_halves();
#endif
  return ~crc;
}

}  // namespace millrace
