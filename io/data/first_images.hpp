// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "io/data/dataset.hpp"

namespace millrace::io {

/// The first `size` images of a set, which has at least as many.
[[nodiscard]] std::shared_ptr<const Dataset> first_images(std::shared_ptr<const Dataset> set,
                                                          std::int64_t size);

}  // namespace millrace::io
