// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "io/data/dataset.hpp"

namespace millrace::io {

enum class SyntheticImages {
  One,    ///< one image and one label, repeated
  Varied  ///< each sample has an image and a label of its own
};

struct SyntheticOptions {
  Shape image_shape{32, 32, 3};
  std::int64_t classes = 10;
  std::int64_t size = 50'000;  ///< number of samples that the set reports
  std::uint64_t seed = 0;
  SyntheticImages images = SyntheticImages::One;
};

/// A data set without reading cost, for benchmarks. As in the IPU trainer, the pixels are normally
/// distributed with mean 127 and deviation 60, truncated at two deviations and rounded to integers,
/// and neither normalized nor augmented. Error(Config) for an extent below 1.
///
/// Networks do not train on one repeated image: all its gradients point in the same direction, the
/// first kernels grow without bound, and their float16 products overflow.
[[nodiscard]] std::unique_ptr<Dataset> make_synthetic(const SyntheticOptions& options);

}  // namespace millrace::io
