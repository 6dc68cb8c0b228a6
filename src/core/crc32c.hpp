// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

/// CRC-32C (Castagnoli; RFC 3720 appendix B.4) of `bytes`, continuing from `crc` (0 to start).
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes,
                                   std::uint32_t crc = 0) noexcept;

}  // namespace millrace
