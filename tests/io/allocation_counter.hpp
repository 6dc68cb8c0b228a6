// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::io {

/// Calls of operator new by all threads of this test program so far.
[[nodiscard]] std::int64_t allocation_count() noexcept;

}  // namespace millrace::io
