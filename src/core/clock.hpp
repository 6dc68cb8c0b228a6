// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace millrace {

/// A clock that is never set back.
[[nodiscard]] inline std::int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The seconds since it was made.
class Timer {
 public:
  [[nodiscard]] double seconds() const {
    return 1e-9 * static_cast<double>(steady_nanoseconds() - begin_);
  }

 private:
  std::int64_t begin_ = steady_nanoseconds();
};

}  // namespace millrace
