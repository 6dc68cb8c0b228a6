// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::models {

/// What a network may have at most: far beyond all that can be trained, and so little that counts
/// of elements and bytes never leave 64 bits. GraphBuilder ends with Error(Config) where one is
/// passed, naming the op, its number and the bound.
inline constexpr std::int64_t kMostChannels = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 32;  ///< of a value, of one image
inline constexpr std::int64_t kMostParameters = std::int64_t{1} << 40;  ///< of a tensor, and of all
inline constexpr std::int64_t kMostOps = 100'000;

}  // namespace millrace::models
