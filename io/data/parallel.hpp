// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace millrace::io {

/// Progress of a long task, in its own unit (bytes of files, images).
struct Progress {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
};
/// Called now and then, from one thread at a time. May be empty.
using ProgressCallback = std::function<void(const Progress&)>;
/// Called with messages for the user that cannot wait until the task ends, e.g. that it waits for
/// another process. May be empty.
using TellCallback = std::function<void(const std::string&)>;

/// Calls task(i) for every i below `count` in up to `threads` threads including this one, started
/// in ascending order. 0 threads: one per core. If the system cannot create all threads, the others
/// do the work. After an error no further task starts; the error of the smallest i is thrown when
/// all threads have ended.
void parallel_for(std::size_t count, unsigned threads,
                  const std::function<void(std::size_t)>& task);

/// Adds up the progress of threads and reports it at most a few times per second.
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
