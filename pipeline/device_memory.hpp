// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/transport.hpp"
#include "device/arena.hpp"

namespace millrace::pipeline {

/// How messages reach device memory in this build.
[[nodiscard]] comm::DeviceMemory device_memory();

}  // namespace millrace::pipeline
