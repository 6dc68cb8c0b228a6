// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace millrace::device {

/// Copies to the device that run beside its kernels, in a queue of their own. Until wait(), the
/// host's bytes must not change, and nothing may touch the device's. On cores they are done at
/// once.
class Uploads {
 public:
  Uploads();
  /// Waits.
  ~Uploads();
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  /// `host` should be a host_buffer(): other memory is copied more slowly, and not beside kernels.
  void start(std::byte* device, const std::byte* host, std::int64_t bytes);
  void wait();

 private:
  class Queue;
  std::unique_ptr<Queue> queue_;
};

}  // namespace millrace::device
