// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "io/data/dataset.hpp"

namespace millrace::io {

struct SyntheticOptions {
  Shape image_shape{32, 32, 3};
  std::int64_t classes = 10;
  std::int64_t size = 50'000;  ///< number of samples that the set reports
  std::uint64_t seed = 0;
};

/// A data set without reading cost, for benchmarks: one image and one label, repeated. As in the
/// IPU trainer, the pixels are normally distributed with mean 127 and deviation 60, truncated at
/// two deviations and rounded to integers, and neither normalized nor augmented. Error(Config) for
/// an extent below 1.
[[nodiscard]] std::unique_ptr<Dataset> make_synthetic(const SyntheticOptions& options);

}  // namespace millrace::io
