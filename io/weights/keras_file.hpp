// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "io/weights/tensor_file.hpp"

namespace millrace::io {

/// The weights of a network that Keras saved as HDF5 (save_weights, or save of the whole network),
/// under the names of their layers: `conv1_conv/kernel:0`. Those of Keras 3 before 3.6 have numbers
/// instead, `conv2d/vars/0`, which a notice says. Errors: Data, with the path; Io.
[[nodiscard]] TensorFile read_keras_file(const std::filesystem::path& path);

/// Whether a zip archive is a network that Keras 3 saved: model.save("NAME.keras").
[[nodiscard]] bool is_keras_archive(const std::filesystem::path& path);
/// The weights in such an archive, likewise.
[[nodiscard]] TensorFile read_keras_archive(const std::filesystem::path& path);

}  // namespace millrace::io
