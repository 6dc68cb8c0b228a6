// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace millrace {

/// A clock that is never set back.
[[nodiscard]] inline std::int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The time that cores have worked for this process, all of its threads together.
[[nodiscard]] std::int64_t processor_nanoseconds();

/// The seconds since it was made.
class Timer {
 public:
  [[nodiscard]] double seconds() const {
    return 1e-9 * static_cast<double>(steady_nanoseconds() - begin_);
  }

 private:
  std::int64_t begin_ = steady_nanoseconds();
};

/// The seconds since this process was started, or the one on this machine that started it and
/// passed its start on: the time that `time` shows.
[[nodiscard]] double process_seconds();
/// The value of this environment variable for processes that this one starts.
inline constexpr const char* kStartVariable = "MILLRACE_STARTED";
[[nodiscard]] std::string start_to_pass_on();

}  // namespace millrace
