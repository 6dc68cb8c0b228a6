// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "io/records/encoded_source.hpp"

namespace millrace::io {

/// Calls task(i) for every i below `count` in up to `threads` threads, this one among them, begun
/// in ascending order; 0 threads are as many as the machine has cores, and where the system refuses
/// some those that it gave do the work. Of errors the one of the
/// smallest i is thrown when all threads have ended; after the first no further task begins.
void parallel_for(std::size_t count, unsigned threads,
                  const std::function<void(std::size_t)>& task);

/// Adds up what threads have done, and tells it at most some times a second.
class ProgressMeter {
 public:
  ProgressMeter(const ProgressCallback& callback, std::uint64_t total);
  void add(std::uint64_t done);

 private:
  const ProgressCallback& callback_;
  std::mutex mutex_;
  Progress progress_;
  std::int64_t last_told_ms_ = 0;
};

}  // namespace millrace::io
