// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace millrace::comm {

/// What a process does between two looks at a message that has not arrived: nothing, which answers
/// fastest, or, where ranks share cores, a short sleep. A process that looks without pause takes
/// its core from the ranks that compute, and the system counts it as busy and moves nobody there.
class Patience {
 public:
  explicit Patience(bool sleeps) : sleeps_(sleeps) {}
  [[nodiscard]] bool sleeps() const { return sleeps_; }
  /// Call after a look that found nothing. Sleeps become longer, up to 0.2 ms.
  void pause();

 private:
  bool sleeps_;
  int looks_ = 0;
  std::chrono::microseconds sleep_{20};
};

/// Sleeps of the calling thread end on time and not, as by default on Linux, 50 us later.
void end_sleeps_on_time() noexcept;

}  // namespace millrace::comm
