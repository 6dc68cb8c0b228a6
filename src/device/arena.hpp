// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/tensor.hpp"

namespace millrace::device {

/// Every buffer starts at a multiple of this: a cache line, and what vector loads like.
inline constexpr std::int64_t kAlignment = 64;

[[nodiscard]] constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// The memory of one device: a single allocation whose size is known before it is made. Zeroed,
/// which also places its pages. Errors: Config, with the size, when the device has not that much.
class Arena {
 public:
  explicit Arena(std::int64_t bytes);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  [[nodiscard]] std::byte* at(std::int64_t offset) const { return base_ + offset; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* allocation_ = nullptr;
  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Sets device memory to zero bytes and waits; `bytes` is a multiple of 8.
void clear(std::byte* device, std::int64_t bytes);

/// Copies between host and device memory and waits.
void copy_to_device(std::byte* device, const std::byte* host, std::int64_t bytes);
/// Copies from one place of the device to another, which do not overlap, and waits.
void copy_within(std::byte* to, const std::byte* from, std::int64_t bytes);
void copy_to_host(std::byte* host, const std::byte* device, std::int64_t bytes);

struct HostCopy {
  std::byte* host = nullptr;
  const std::byte* device = nullptr;
  std::int64_t bytes = 0;
};
/// Many of them; where the device is the host's cores, all its threads share the work.
void copy_to_host(std::span<const HostCopy> copies);

}  // namespace millrace::device
