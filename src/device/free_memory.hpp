// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace millrace::device {

/// Bytes of the device's own memory that are free now; none where kernels run on cores, with the
/// memory of the machine, or where the device does not say. Needs an Environment.
[[nodiscard]] std::optional<std::int64_t> free_memory();

/// Bytes of the device's own memory, free or not; none as above, and where there is no such device,
/// as a training can be planned without it.
[[nodiscard]] std::optional<std::int64_t> total_memory();

}  // namespace millrace::device
