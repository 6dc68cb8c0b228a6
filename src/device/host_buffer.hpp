// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace millrace::device {

/// Host memory that the device copies its input from. It is page-locked if kernels run on a GPU, so
/// that copies reach full speed. Aligned to kAlignment. Release it before the Environment is
/// destroyed. Errors: Config, with the size, if there is not enough memory.
[[nodiscard]] std::shared_ptr<std::byte> host_buffer(std::size_t bytes);

}  // namespace millrace::device
