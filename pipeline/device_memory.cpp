// SPDX-License-Identifier: Apache-2.0
#include "pipeline/device_memory.hpp"

#include <memory>

#include "comm/world.hpp"
#include "device/compat.hpp"
#include "device/queues.hpp"

namespace millrace::pipeline {
namespace {

/// Behind or among the kernels of the default execution space, on which all kernels run.
class QueueMark final : public comm::Mark {
 public:
  void after_kernels() override { event.mark(device::ExecutionSpace()); }
  [[nodiscard]] bool reached() override { return event.reached(); }
  void wait() override { event.wait(); }
  void delay_kernels() override { device::wait_for(device::ExecutionSpace(), event); }

  device::Event event;
};

device::Event& event_of(comm::Mark& mark) { return static_cast<QueueMark&>(mark).event; }
const device::Event& event_of(const comm::Mark& mark) {
  return static_cast<const QueueMark&>(mark).event;
}

class LibraryMessages final : public comm::MessageQueue {
 public:
  void wait_for(const comm::Mark& mark) override { queue_.wait_for(event_of(mark)); }
  void mark(comm::Mark& mark) override { queue_.mark(event_of(mark)); }
  [[nodiscard]] void* handle() const override { return queue_.handle(); }

 private:
  device::SideQueue queue_{device::SideQueue::Served::First};
};

class Queues final : public comm::DeviceQueues {
 public:
  [[nodiscard]] std::string place() override { return device::device_place(); }
  [[nodiscard]] std::unique_ptr<comm::Mark> make_mark() override {
    // Not before there are messages: the device may not be ready before.
    if (!copies_) copies_ = std::make_unique<Copies>();
    return std::make_unique<QueueMark>();
  }
  [[nodiscard]] std::unique_ptr<comm::MessageQueue> make_message_queue() override {
    return std::make_unique<LibraryMessages>();
  }
  [[nodiscard]] std::shared_ptr<std::byte> device_buffer(std::size_t bytes) override {
    const auto arena = std::make_shared<device::Arena>(static_cast<std::int64_t>(bytes));
    return {arena, arena->at(0)};
  }
  [[nodiscard]] std::shared_ptr<std::byte> host_buffer(std::size_t bytes) override {
    return device::host_buffer(bytes);
  }
  void copy_to_host(std::byte* host, const std::byte* device, std::int64_t bytes,
                    const comm::Mark& after, comm::Mark& done) override {
    copies_->to_host.wait_for(event_of(after));
    copies_->to_host.to_host(host, device, bytes);
    copies_->to_host.mark(event_of(done));
  }
  void copy_to_device(std::byte* device, const std::byte* host, std::int64_t bytes,
                      const comm::Mark& after, comm::Mark& done) override {
    copies_->to_device.wait_for(event_of(after));
    copies_->to_device.to_device(device, host, bytes);
    copies_->to_device.mark(event_of(done));
  }

 private:
  /// Two, because devices copy both ways at once, and no way waits for the other's marks.
  struct Copies {
    device::SideQueue to_host;
    device::SideQueue to_device;
  };
  std::unique_ptr<Copies> copies_;
};

/// Whether MPI says that it reads and writes memory of this kind of device.
bool mpi_reaches_device() {
#if defined(KOKKOS_ENABLE_CUDA)
  return comm::reaches_cuda_memory();
#elif defined(KOKKOS_ENABLE_HIP)
  return comm::reaches_rocm_memory();
#else
  return false;
#endif
}

void copy_within(std::byte* to, const std::byte* from, std::int64_t bytes) {
  device::queue_copy(device::ExecutionSpace(), device::Direction::Within, to, from, bytes);
}

}  // namespace

comm::DeviceMemory device_memory() {
  comm::DeviceMemory memory{.copy_within = copy_within};
  if constexpr (device::kHasQueues) memory.queues = std::make_shared<Queues>();
  memory.is_staged = !device::kHostReadable && !mpi_reaches_device();
  return memory;
}

}  // namespace millrace::pipeline
