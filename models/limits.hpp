// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::models {

/// Size limits of a network. They are far above what can be trained, and low enough that counts of
/// elements and bytes fit in 64 bits. GraphBuilder throws Error(Config) with the op, its number and
/// the limit when one is exceeded.
inline constexpr std::int64_t kMostChannels = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 32;  ///< of a value, for one image
inline constexpr std::int64_t kMostParameters = std::int64_t{1} << 40;  ///< of a tensor, and in all
inline constexpr std::int64_t kMostOps = 100'000;

}  // namespace millrace::models
