// SPDX-License-Identifier: Apache-2.0
//
// What the networks of other libraries compute, as far as names and shapes of tensors do not show.
#pragma once

#include <string>

#include "io/weights/names.hpp"
#include "models/model_options.hpp"

namespace millrace::io {

/// Sets batch normalization, and the padding, epsilon, side of zero channels and order of strides
/// of the library's own networks.
void set_as_in(models::ModelOptions& options, WeightStyle style);

/// Why the library builds no network of this family and size, whose names the file would have:
/// "torchvision has no networks for images of CIFAR". Empty if it builds one.
[[nodiscard]] std::string why_absent(const models::ModelOptions& options, WeightStyle style);

/// The options that build the library's network of this family and size, with the classes, image
/// size and groups given.
[[nodiscard]] models::ModelOptions own_network(models::ModelOptions options, WeightStyle style);

}  // namespace millrace::io
