// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace millrace {

/// What a network made of the images of a micro-batch.
struct NetworkOutput {
  std::span<const float> logits;         ///< a row for each image
  std::span<const std::int32_t> labels;  ///< by image
  std::span<const std::int64_t> images;  ///< their numbers in the data set
};

/// A loss of a program's own. Returns the loss of a micro-batch, usually the mean over its images,
/// and writes its derivatives by the logits to `gradient`; in a validation that is empty.
using LossFunction = std::function<double(const NetworkOutput& output, std::span<float> gradient)>;

}  // namespace millrace
