// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::test {

/// Whether a sanitizer watches the program, whose own memory then is most of the process.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace millrace::test
