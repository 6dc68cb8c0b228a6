// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "io/weights/tensor_file.hpp"

namespace millrace::io {

/// The weights of a network that Keras saved as HDF5 (save_weights, or save of the whole network),
/// under the names of their layers: `conv1_conv/kernel:0`. Errors: Data, with the path; Io.
[[nodiscard]] TensorFile read_keras_file(const std::filesystem::path& path);

}  // namespace millrace::io
