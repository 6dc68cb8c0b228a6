// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/transport.hpp"
#include "device/arena.hpp"

namespace millrace::pipeline {

/// Whether messages between ranks go through page-locked buffers of the host, because MPI does not
/// reach the memory of this build's device.
[[nodiscard]] bool stages_messages();

/// How messages reach device memory in this build.
[[nodiscard]] comm::DeviceMemory device_memory();

}  // namespace millrace::pipeline
