// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace millrace::device {

/// Host memory from which the device is fed: page-locked where kernels run on a GPU, which then
/// copies it at full speed, plain otherwise. Begins at a multiple of kAlignment, and must be gone
/// before the Environment is. Errors: Config, with the size, when there is not that much.
[[nodiscard]] std::shared_ptr<std::byte> host_buffer(std::size_t bytes);

}  // namespace millrace::device
