// SPDX-License-Identifier: Apache-2.0
//
// How recipes of streaming kernels are written: memory with values in it, and a list.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/bfloat16.hpp"
#include "core/float16.hpp"
#include "core/random.hpp"
#include "streaming_kernels.hpp"

namespace millrace::gpu {

/// Fills a buffer with values between `lowest` and 1, or with all bytes, that repeat.
template <class T>
void fill(const Buffer& buffer, float lowest) {
  constexpr std::int64_t kDifferent = 1 << 16;
  const std::int64_t elements = buffer.bytes() / static_cast<std::int64_t>(sizeof(T));
  const RandomStream stream(0, RandomPurpose::SyntheticData);
  std::vector<T> host(static_cast<std::size_t>(std::min(elements, kDifferent)));
  for (std::size_t i = 0; i < host.size(); ++i) {
    const std::uint32_t word = stream.block(0, i / 4)[i % 4];
    if constexpr (std::is_same_v<T, std::uint8_t>)
      host[i] = static_cast<T>(word);
    else
      host[i] = store_as<T>(lowest + (1.0f - lowest) * uniform01(word));
  }
  auto filled = static_cast<std::int64_t>(host.size() * sizeof(T));
  device::copy_to_device(buffer.at(), reinterpret_cast<const std::byte*>(host.data()), filled);
  while (filled < buffer.bytes()) {
    const std::int64_t more = std::min(filled, buffer.bytes() - filled);
    device::copy_within(buffer.at() + filled, buffer.at(), more);
    filled += more;
  }
}

/// Adds memory for `elements` numbers. Counters and flags stay zeros.
template <class T>
T* add(std::vector<Buffer>& to, std::int64_t elements, float lowest = -1.0f) {
  to.emplace_back(elements * static_cast<std::int64_t>(sizeof(T)));
  if constexpr (!std::is_same_v<T, std::uint32_t>) fill<T>(to.back(), lowest);
  return reinterpret_cast<T*>(to.back().at());
}

/// Adds a copy of the records.
template <class Record>
Record* add_records(std::vector<Buffer>& to, const std::vector<Record>& records) {
  const auto bytes = static_cast<std::int64_t>(records.size() * sizeof(Record));
  to.emplace_back(bytes);
  device::copy_to_device(to.back().at(), reinterpret_cast<const std::byte*>(records.data()), bytes);
  return reinterpret_cast<Record*>(to.back().at());
}

/// Recipes whose names begin with a storage type.
class List {
 public:
  explicit List(std::string type) : type_(std::move(type)) {}

  /// `make(kernel, sizes)` adds memory to a kernel and returns what launches it.
  template <class Make>
  void add(const std::string& name, const Make& make) {
    recipes.push_back({type_ + ' ' + name, [make](const StreamSizes& sizes) {
                         StreamingKernel kernel;
                         kernel.queue = make(kernel, sizes);
                         return kernel;
                       }});
  }
  std::vector<StreamingRecipe> recipes;

 private:
  std::string type_;
};

/// Adds pools and the preparation of images.
void add_windows(List& list, DType type);

}  // namespace millrace::gpu
