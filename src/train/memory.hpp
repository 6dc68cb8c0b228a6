// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::train {

/// Resident memory of this process in bytes: now, and its peak. 0 if the system does not say.
[[nodiscard]] std::int64_t resident_bytes();
[[nodiscard]] std::int64_t peak_resident_bytes();
/// Memory of the machine that is still available, in bytes; 0 if unknown.
[[nodiscard]] std::int64_t available_bytes();
/// Total memory of the machine in bytes; 0 if unknown.
[[nodiscard]] std::int64_t machine_bytes();

/// Memory that HDF5 uses for itself and for the data sets of an open file; measured.
[[nodiscard]] constexpr std::int64_t open_checkpoint_bytes(std::int64_t tensors) {
  return 4'000'000 + 32'000 * tensors;
}

}  // namespace millrace::train
