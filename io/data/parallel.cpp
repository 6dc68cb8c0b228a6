// SPDX-License-Identifier: Apache-2.0
#include "io/data/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "core/machine_limits.hpp"

namespace millrace::io {
namespace {

constexpr std::int64_t kTellEveryMs = 100;

std::int64_t now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

void parallel_for(std::size_t count, unsigned threads,
                  const std::function<void(std::size_t)>& task) {
  if (threads == 0) threads = static_cast<unsigned>(usable_cores());
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  std::size_t error_at = count;
  std::atomic<bool> stopped = false;
  const auto work = [&] {
    while (!stopped) {
      const std::size_t i = next++;
      if (i >= count) return;
      try {
        task(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        stopped = true;
        if (i < error_at) {
          error_at = i;
          error = std::current_exception();
        }
      }
    }
  };
  std::vector<std::jthread> helpers;
  const std::size_t wanted = std::min<std::size_t>(threads, count);
  helpers.reserve(wanted);
  try {
    for (std::size_t t = 1; t < wanted; ++t) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // continue with the threads created so far
  }
  work();
  for (std::jthread& helper : helpers) helper.join();
  if (error) std::rethrow_exception(error);
}

ProgressMeter::ProgressMeter(const ProgressCallback& callback, std::uint64_t total)
    : callback_(callback), progress_{.done = 0, .total = total} {}

void ProgressMeter::add(std::uint64_t done) {
  const std::lock_guard lock(mutex_);
  progress_.done += done;
  if (!callback_) return;
  const std::int64_t now = now_ms();
  if (progress_.done < progress_.total && now - last_told_ms_ < kTellEveryMs) return;
  last_told_ms_ = now;
  callback_(progress_);
}

}  // namespace millrace::io
