// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::partition {

/// Memory of one device of a run by its use, in bytes. Exact.
struct DeviceMemory {
  std::int32_t replica = 0;
  std::int32_t device = 0;
  std::int64_t state = 0;        ///< weights, gradients, optimizer state, running statistics
  std::int64_t activations = 0;  ///< values and their gradients in all slots
  std::int64_t kernels = 0;      ///< packed weights, and scratch of the kernels
  std::int64_t sums = 0;         ///< scratch for sums over replicas
  std::int64_t images = 0;       ///< images that stay on the device
  [[nodiscard]] std::int64_t total() const { return state + activations + kernels + sums + images; }
  friend bool operator==(const DeviceMemory&, const DeviceMemory&) = default;
};

/// Memory of one process of a run at its peak by its use, in bytes: what its devices need, and the
/// rest, which lies in host memory. Where kernels run on cores, all of it is memory of the machine.
struct ProcessMemory {
  std::int32_t rank = 0;
  std::vector<DeviceMemory> devices;
  std::int64_t base = 0;         ///< in use before the devices have memory: measured in a process
  std::int64_t margin = 0;       ///< for what libraries take later; the same for every process
  std::int64_t messages = 0;     ///< copies in host memory, where MPI cannot reach the device
  std::int64_t loader = 0;       ///< batches of images, and what reads them
  std::int64_t checkpoints = 0;  ///< copies of the tensors, and of the writer
  std::int64_t other = 0;        ///< weights that are read or drawn, and traces

  [[nodiscard]] std::int64_t device_total() const {
    std::int64_t sum = 0;
    for (const DeviceMemory& device : devices) sum += device.total();
    return sum;
  }
  [[nodiscard]] std::int64_t rest() const {
    return base + margin + messages + loader + checkpoints + other;
  }
  [[nodiscard]] std::int64_t peak() const { return device_total() + rest(); }
  /// The largest of its devices, each with an equal part of the rest.
  [[nodiscard]] std::int64_t largest_device_with_rest() const {
    const auto count = std::max<std::int64_t>(1, std::ssize(devices));
    return largest_device() + (rest() + count - 1) / count;
  }
  /// The largest of its devices alone.
  [[nodiscard]] std::int64_t largest_device() const {
    std::int64_t largest = 0;
    for (const DeviceMemory& device : devices) largest = std::max(largest, device.total());
    return largest;
  }
  friend bool operator==(const ProcessMemory&, const ProcessMemory&) = default;
};

/// Memory of devices, in bytes.
struct DeviceUse {
  std::int64_t need = 0;  ///< of the largest device: what counts against `device-memory`
  std::int64_t rest = 0;  ///< of that, what a device needs besides its stages; the most of all
};

/// A table with one line per device, and one with a line per process.
[[nodiscard]] std::string to_text(std::span<const ProcessMemory> processes);

}  // namespace millrace::partition
