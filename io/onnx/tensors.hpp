// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "onnx.pb.h"

namespace millrace::io {

/// Where a file of ONNX came from: what begins messages about it, and the folder in which its
/// tensors may lie.
struct OnnxPlace {
  std::string label;
  std::filesystem::path folder;  ///< empty: no tensor may lie outside the file
};

/// The extents of a tensor. Errors: Data for extents and counts that no file has.
[[nodiscard]] std::vector<std::int64_t> extents_of(const onnx::TensorProto& tensor,
                                                   const OnnxPlace& place);

/// Whether the file, or the file beside it that it names, has the tensor's elements.
[[nodiscard]] bool has_elements(const onnx::TensorProto& tensor);

/// The elements as float32, from float, double, half and bfloat16. Errors: Data for other types,
/// and if their number is not that of the extents; Config if they lie outside the folder of the
/// file; Io.
[[nodiscard]] std::vector<float> floats_of(const onnx::TensorProto& tensor, const OnnxPlace& place);

/// Whether the elements are integers of 32 or 64 bits.
[[nodiscard]] bool has_integers(const onnx::TensorProto& tensor);

/// The elements of a small tensor that has integers, such as a shape. Errors: Data.
[[nodiscard]] std::vector<std::int64_t> integers_of(const onnx::TensorProto& tensor,
                                                    const OnnxPlace& place);

}  // namespace millrace::io
