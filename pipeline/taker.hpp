// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/arena.hpp"

namespace millrace::pipeline {

/// Hands out aligned ranges of the memory; without memory it only counts bytes.
class Taker {
 public:
  explicit Taker(std::byte* memory) : memory_(memory) {}
  std::byte* take_bytes(std::int64_t bytes) {
    const std::int64_t here = end_;
    end_ += device::aligned(bytes);
    return memory_ == nullptr ? nullptr : memory_ + here;
  }
  template <class T>
  T* take(std::int64_t elements) {
    return reinterpret_cast<T*>(take_bytes(elements * static_cast<std::int64_t>(sizeof(T))));
  }
  template <class T>
  const T* copy(const std::vector<T>& host) {
    T* here = take<T>(std::ssize(host));
    if (here != nullptr)
      device::copy_to_device(reinterpret_cast<std::byte*>(here),
                             reinterpret_cast<const std::byte*>(host.data()),
                             static_cast<std::int64_t>(host.size() * sizeof(T)));
    return here;
  }
  [[nodiscard]] std::int64_t bytes() const { return end_; }

 private:
  std::byte* memory_;
  std::int64_t end_ = 0;
};

}  // namespace millrace::pipeline
