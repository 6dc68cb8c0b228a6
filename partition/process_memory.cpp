// SPDX-License-Identifier: Apache-2.0
#include "partition/process_memory.hpp"

#include <algorithm>

namespace millrace::partition {

std::int64_t ProcessMemory::device_total() const {
  std::int64_t sum = 0;
  for (const DeviceMemory& device : devices) sum += device.total();
  return sum;
}

std::int64_t ProcessMemory::largest_device() const {
  std::int64_t largest = 0;
  for (const DeviceMemory& device : devices) largest = std::max(largest, device.total());
  return largest;
}

std::int64_t ProcessMemory::largest_device_with_rest() const {
  const auto count = std::max<std::int64_t>(1, std::ssize(devices));
  return largest_device() + (rest() + count - 1) / count;
}

}  // namespace millrace::partition
