// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "io/data/dataset.hpp"

namespace millrace::io {

/// `size` images of a set, which has at least as many: the first ones, or, if the set is in the
/// order of its classes, evenly spaced ones, so that they are of all classes. The same for each
/// number.
[[nodiscard]] std::shared_ptr<const Dataset> part_of_set(std::shared_ptr<const Dataset> set,
                                                         std::int64_t size);

}  // namespace millrace::io
