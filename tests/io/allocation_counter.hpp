// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::io {

/// Calls of operator new by all threads of this test program so far.
[[nodiscard]] std::int64_t allocation_count() noexcept;

/// Peak memory from operator new since construction, minus the memory in use at construction. Only
/// one object at a time.
class AllocationPeak {
 public:
  AllocationPeak() noexcept;
  [[nodiscard]] std::int64_t bytes() const noexcept;

 private:
  std::int64_t begin_;
};

}  // namespace millrace::io
