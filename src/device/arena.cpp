// SPDX-License-Identifier: Apache-2.0
#include "device/arena.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <vector>

#include "core/text.hpp"
#include "device/compat.hpp"
#include "device/fake_queue.hpp"
#include "device/queues.hpp"

namespace millrace::device {
namespace {

using Bytes = BytesIn<std::byte, MemorySpace>;
using HostBytes = BytesIn<std::byte, Kokkos::HostSpace>;
using ConstBytes = BytesIn<const std::byte, MemorySpace>;
using ConstHostBytes = BytesIn<const std::byte, Kokkos::HostSpace>;

// Clears words, so that Kokkos does not call memset on a class type.
struct Clear {
  std::uint64_t* words;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { words[i] = 0; }
};

/// Memory with the alignment of buffers; null if there is not enough.
template <class Space>
std::shared_ptr<std::byte> allocate(const char* label, std::int64_t bytes) {
  std::byte* allocation = nullptr;
  try {
    allocation = static_cast<std::byte*>(
        Kokkos::kokkos_malloc<Space>(label, static_cast<std::size_t>(bytes + kAlignment)));
  } catch (const std::exception&) {
    allocation = nullptr;
  }
  if (allocation == nullptr) return nullptr;
  const std::shared_ptr<std::byte> owner(
      allocation, [](std::byte* memory) { Kokkos::kokkos_free<Space>(memory); });
  const auto up = static_cast<std::uintptr_t>(kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(allocation);
  return {owner, allocation + (up - address % up) % up};
}

std::shared_ptr<std::byte> device_memory(std::int64_t bytes) {
  if constexpr (kFakeDevice) {
    return fake::allocate(bytes);
  } else {
    return allocate<MemorySpace>("arena", bytes);
  }
}

/// Copies bytes, at least one of whose ends is device memory, after all kernels, and waits; not for
/// uploads, which a copy without a space would wait for.
template <class To, class From>
void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes == 0) return;  // an empty range may have no address
  const auto n = static_cast<std::size_t>(bytes);
  if constexpr (kFakeDevice) {
    fake::Queue::of_kernels().run();
    const fake::Access access;
    std::memcpy(to, from, n);
  } else if constexpr (kOnCores) {
    std::memcpy(to, from, n);
  } else {
    const ExecutionSpace space;
    Kokkos::deep_copy(space, To(to, n), From(from, n));
    space.fence();
  }
}

constexpr std::int64_t kClearedAtOnce = std::int64_t{512} << 20;

}  // namespace

Arena::Arena(std::int64_t bytes, const std::function<void()>& placed)
    : bytes_(aligned(bytes)), base_(device_memory(bytes_)) {
  if (base_ == nullptr)
    fail(ErrorKind::Config,
         "out of device memory: cannot allocate {} for activations and weights; use a smaller "
         "`batch-size`, `recompute` segments or `precision` 16.32",
         human_bytes(bytes_));
  for (std::int64_t at = 0; at < bytes_; at += kClearedAtOnce) {
    clear(base_.get() + at, std::min(kClearedAtOnce, bytes_ - at));
    if (placed) placed();
  }
}

std::int64_t Arena::pieces(std::int64_t bytes) {
  return (aligned(bytes) + kClearedAtOnce - 1) / kClearedAtOnce;
}

std::shared_ptr<std::byte> host_buffer(std::size_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  std::shared_ptr<std::byte> buffer = allocate<FeedingSpace>("feed", size);
  if (buffer == nullptr)
    fail(ErrorKind::Config,
         "out of host memory: cannot allocate {} for images to be copied to the device; use a "
         "smaller `batch-size`",
         human_bytes(size + kAlignment));
  return buffer;
}

void queue_clear(const ExecutionSpace& space, std::byte* device, std::int64_t bytes) {
  parallel("clear", space, bytes / 8, Clear{reinterpret_cast<std::uint64_t*>(device)});
}

void clear(std::byte* device, std::int64_t bytes) {
  const ExecutionSpace space;
  queue_clear(space, device, bytes);
  fence(space);
}

void copy_to_device(std::byte* device, const std::byte* host, std::int64_t bytes) {
  copy<Bytes, ConstHostBytes>(device, host, bytes);
}

void copy_within(std::byte* to, const std::byte* from, std::int64_t bytes) {
  copy<Bytes, ConstBytes>(to, from, bytes);
}

void copy_to_host(std::byte* host, const std::byte* device, std::int64_t bytes) {
  copy<HostBytes, ConstBytes>(host, device, bytes);
}

#if MILLRACE_ON_HOST && !defined(MILLRACE_FAKE_DEVICE)
void copy_to_host(std::span<const HostCopy> copies) {
  constexpr std::int64_t kPiece = 1 << 20;  // so that threads share large tensors as well
  std::vector<HostCopy> pieces;
  for (const HostCopy& copy : copies)
    for (std::int64_t at = 0; at < copy.bytes; at += kPiece)
      pieces.push_back({copy.host + at, copy.device + at, std::min(kPiece, copy.bytes - at)});
  const ExecutionSpace space;
  parallel("copy to host", space, std::ssize(pieces), [&pieces](std::int64_t i) {
    const HostCopy& piece = pieces[static_cast<std::size_t>(i)];
    std::memcpy(piece.host, piece.device, static_cast<std::size_t>(piece.bytes));
  });
  fence(space);
}
#else
void copy_to_host(std::span<const HostCopy> copies) {
  for (const HostCopy& copy : copies) copy_to_host(copy.host, copy.device, copy.bytes);
}
#endif

}  // namespace millrace::device
