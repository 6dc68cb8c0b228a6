// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/arena.hpp"
#include "ops/linear.hpp"

namespace millrace::ops {

/// Place of the kernel that a wrapping op makes for its inner op. If the inner op's passes read the
/// kernel, it follows the inner op's packed data. Otherwise only packing needs it, and it is in
/// scratch memory.
class InnerKernel {
 public:
  InnerKernel(const LinearOp& inner, std::int64_t bytes)
      : packed_(device::aligned(inner.bytes().packed_forward)),
        bytes_(device::aligned(bytes)),
        stays_(inner.bytes().reads_kernel) {}

  /// Bytes of `packed_forward`, including those of the inner op.
  [[nodiscard]] std::int64_t packed_bytes() const { return packed_ + (stays_ ? bytes_ : 0); }
  [[nodiscard]] std::int64_t scratch_bytes() const { return stays_ ? 0 : bytes_; }
  [[nodiscard]] std::byte* in(const LinearMemory& memory) const {
    return stays_ ? memory.packed_forward + packed_ : memory.scratch;
  }

 private:
  std::int64_t packed_;
  std::int64_t bytes_;
  bool stays_;
};

}  // namespace millrace::ops
