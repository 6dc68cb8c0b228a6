// SPDX-License-Identifier: Apache-2.0
//
// Floats in device memory, which tests must not touch directly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/arena.hpp"

namespace millrace::test {

[[nodiscard]] inline std::vector<float> read_floats(const void* device, std::int64_t count) {
  std::vector<float> host(static_cast<std::size_t>(count));
  device::copy_to_host(reinterpret_cast<std::byte*>(host.data()),
                       static_cast<const std::byte*>(device),
                       static_cast<std::int64_t>(host.size() * sizeof(float)));
  return host;
}

inline void write_floats(float* device, std::span<const float> values) {
  device::copy_to_device(reinterpret_cast<std::byte*>(device),
                         reinterpret_cast<const std::byte*>(values.data()),
                         static_cast<std::int64_t>(values.size_bytes()));
}

}  // namespace millrace::test
