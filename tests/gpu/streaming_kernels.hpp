// SPDX-License-Identifier: Apache-2.0
//
// Millrace's own streaming kernels, each with the memory that it must read and write at least:
// every activation, gradient, weight and slot once. Left out are scratch, statistics and other
// arrays of a few values a channel or a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/arena.hpp"
#include "device/tensor.hpp"

namespace millrace::gpu {

/// The sizes of a network's largest activations. The first ones are those of ResNet-50 with 256
/// images: 56 x 56 x 256 behind its first blocks.
struct StreamSizes {
  std::int64_t batch = 256;
  std::int64_t side = 56;
  std::int64_t channels = 256;
  std::int64_t parameters = 25'557'032;

  [[nodiscard]] std::int64_t rows() const { return batch * side * side; }
  [[nodiscard]] std::int64_t elements() const { return rows() * channels; }
};

/// Device memory with 64 bytes behind it that no kernel may touch.
class Buffer {
 public:
  static constexpr std::int64_t kGuard = 64;
  explicit Buffer(std::int64_t bytes) : bytes_(bytes), arena_(bytes + kGuard) {}

  [[nodiscard]] std::byte* at() const { return arena_.at(0); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_;
  device::Arena arena_;
};

/// A kernel with its memory. `queue` launches it.
struct StreamingKernel {
  std::vector<Buffer> reads;    ///< read from end to end, not written
  std::vector<Buffer> writes;   ///< written from end to end, not read
  std::vector<Buffer> updates;  ///< both
  std::vector<Buffer> others;   ///< not counted
  std::function<void(const device::ExecutionSpace&)> queue;

  /// Bytes that it must move at least.
  [[nodiscard]] std::int64_t bytes() const;
};

/// Makes a kernel; it exists apart from its memory, because all of them do not fit at once.
struct StreamingRecipe {
  std::string name;
  std::function<StreamingKernel(const StreamSizes&)> make;
};

/// All kernels, for bfloat16 and for float32.
[[nodiscard]] std::vector<StreamingRecipe> streaming_recipes();

}  // namespace millrace::gpu
