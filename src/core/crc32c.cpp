// SPDX-License-Identifier: Apache-2.0
#include "core/crc32c.hpp"

#include <isa-l/crc.h>

#include <algorithm>

namespace millrace {

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
  return ~crc;
}

}  // namespace millrace
