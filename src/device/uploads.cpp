// SPDX-License-Identifier: Apache-2.0
#include "device/uploads.hpp"

#include <cstring>
#include <vector>

#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/fake_device.hpp"

namespace millrace::device {

#if MILLRACE_ON_HOST == 0
/// A stream beside that of the kernels.
class Uploads::Queue {
 public:
  void start(std::byte* device, const std::byte* host, std::int64_t bytes) {
    const auto n = static_cast<std::size_t>(bytes);
    Kokkos::deep_copy(space_, BytesIn<std::byte, MemorySpace>(device, n),
                      BytesIn<const std::byte, Kokkos::HostSpace>(host, n));
  }
  void wait() { space_.fence(); }

 private:
  ExecutionSpace space_ = Kokkos::Experimental::partition_space(ExecutionSpace(), 1)[0];
};
#elif defined(MILLRACE_FAKE_DEVICE)
/// Every other copy is made at once, although kernels may still wait in their queue, and the rest
/// as late as possible: whoever reuses memory too early, or does not wait, gets other bits.
class Uploads::Queue {
 public:
  void start(std::byte* device, const std::byte* host, std::int64_t bytes) {
    early_ = !early_;
    if (early_)
      copy({device, host, bytes});
    else
      late_.push_back({device, host, bytes});
  }
  void wait() {
    for (const Upload& upload : late_) copy(upload);
    late_.clear();
  }

 private:
  struct Upload {
    std::byte* device;
    const std::byte* host;
    std::int64_t bytes;
  };
  static void copy(const Upload& upload) {
    const fake::Access access;
    std::memcpy(upload.device, upload.host, static_cast<std::size_t>(upload.bytes));
  }

  bool early_ = false;
  std::vector<Upload> late_;
};
#else
class Uploads::Queue {
 public:
  void start(std::byte* device, const std::byte* host, std::int64_t bytes) {
    copy_to_device(device, host, bytes);
  }
  void wait() {}
};
#endif

Uploads::Uploads() : queue_(std::make_unique<Queue>()) {}
Uploads::~Uploads() { queue_->wait(); }
void Uploads::start(std::byte* device, const std::byte* host, std::int64_t bytes) {
  queue_->start(device, host, bytes);
}
void Uploads::wait() { queue_->wait(); }

}  // namespace millrace::device
