// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "device/tensor.hpp"

namespace millrace::device {

/// Alignment of every buffer: a cache line, which is also enough for vector loads.
inline constexpr std::int64_t kAlignment = 64;

[[nodiscard]] constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// The memory of one device: a single allocation of a size computed in advance. It is set to zero,
/// which also places its pages, and on a busy machine takes seconds. Errors: Config, with the size,
/// if the device does not have enough memory.
class Arena {
 public:
  /// `placed` is called after each of the pieces() of the memory.
  explicit Arena(std::int64_t bytes, const std::function<void()>& placed = {});

  [[nodiscard]] static std::int64_t pieces(std::int64_t bytes);

  [[nodiscard]] std::byte* at(std::int64_t offset) const { return base_.get() + offset; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

 private:
  std::int64_t bytes_;
  std::shared_ptr<std::byte> base_;
};

/// Host memory that the device copies its input from. It is page-locked if kernels run on a GPU, so
/// that copies reach full speed. Aligned to kAlignment. Release it before the Environment is
/// destroyed. Errors: Config, with the size, if there is not enough memory.
[[nodiscard]] std::shared_ptr<std::byte> host_buffer(std::size_t bytes);

/// Sets device memory to zero bytes and waits; `bytes` is a multiple of 8.
void clear(std::byte* device, std::int64_t bytes);

/// Copies between host and device memory and waits.
void copy_to_device(std::byte* device, const std::byte* host, std::int64_t bytes);
/// Copies within device memory and waits. The two ranges must not overlap.
void copy_within(std::byte* to, const std::byte* from, std::int64_t bytes);
void copy_to_host(std::byte* host, const std::byte* device, std::int64_t bytes);

struct HostCopy {
  std::byte* host = nullptr;
  const std::byte* device = nullptr;
  std::int64_t bytes = 0;
};
/// Makes several copies; if the device is the host's cores, all its threads share the work.
void copy_to_host(std::span<const HostCopy> copies);

}  // namespace millrace::device
