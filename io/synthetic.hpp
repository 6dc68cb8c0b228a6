// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "io/dataset.hpp"

namespace millrace::io {

struct SyntheticOptions {
  Shape image_shape{32, 32, 3};
  std::int64_t classes = 10;
  std::int64_t size = 50'000;  ///< samples the set claims to have: an epoch of what it stands for
  std::uint64_t seed = 0;
};

/// A data set that costs nothing to read, for measuring everything else: one image and one label,
/// repeated. As in the IPU trainer the pixels are normal with mean 127 and deviation 60, cut at two
/// deviations and rounded to whole numbers, and neither normalised nor augmented. Error(Config) for
/// an extent below 1.
[[nodiscard]] std::unique_ptr<Dataset> make_synthetic(const SyntheticOptions& options);

}  // namespace millrace::io
