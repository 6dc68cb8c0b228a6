// SPDX-License-Identifier: Apache-2.0
#include "device/host_buffer.hpp"

#include <cstdint>
#include <exception>

#include "core/text.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"

namespace millrace::device {

std::shared_ptr<std::byte> host_buffer(std::size_t bytes) {
  const std::size_t total = bytes + static_cast<std::size_t>(kAlignment);
  std::byte* allocation = nullptr;
  try {
    allocation = static_cast<std::byte*>(Kokkos::kokkos_malloc<FeedingSpace>("feed", total));
  } catch (const std::exception&) {
    allocation = nullptr;
  }
  if (allocation == nullptr)
    fail(ErrorKind::Config,
         "out of host memory: cannot allocate {} for images to be copied to the device; use a "
         "smaller --batch-size",
         human_bytes(static_cast<std::int64_t>(total)));
  const std::shared_ptr<std::byte> owner(
      allocation, [](std::byte* memory) { Kokkos::kokkos_free<FeedingSpace>(memory); });
  const auto up = static_cast<std::uintptr_t>(kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(allocation);
  return {owner, allocation + (up - address % up) % up};
}

}  // namespace millrace::device
