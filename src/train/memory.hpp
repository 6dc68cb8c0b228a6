// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::train {

/// Resident memory of this process now, and the most it ever had, in bytes (0 where the system does
/// not tell).
[[nodiscard]] std::int64_t resident_bytes();
[[nodiscard]] std::int64_t peak_resident_bytes();
/// Memory of the machine that programs may still take; 0 where that is unknown.
[[nodiscard]] std::int64_t available_bytes();
/// All memory of the machine; 0 where that is unknown.
[[nodiscard]] std::int64_t machine_bytes();

/// What HDF5 takes for itself and for each data set of an open file of so many tensors; measured.
[[nodiscard]] constexpr std::int64_t open_checkpoint_bytes(std::int64_t tensors) {
  return 4'000'000 + 32'000 * tensors;
}

}  // namespace millrace::train
