// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/transport.hpp"
#include "device/arena.hpp"

namespace millrace::pipeline {

/// How messages reach device memory in this build: directly if the host can read it, otherwise
/// through page-locked buffers of the host.
[[nodiscard]] constexpr comm::DeviceMemory device_memory() {
  comm::DeviceMemory memory{.copy_within = device::copy_within};
  if (device::kHostReadable) return memory;
  memory.copy_to_host = device::copy_to_host;
  memory.copy_to_device = device::copy_to_device;
  memory.host_buffer = device::host_buffer;
  return memory;
}

}  // namespace millrace::pipeline
