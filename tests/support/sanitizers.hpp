// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::test {

/// Whether the program runs under a sanitizer, whose memory then dominates the process.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace millrace::test
