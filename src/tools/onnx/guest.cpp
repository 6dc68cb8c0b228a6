// SPDX-License-Identifier: Apache-2.0
#include "tools/onnx/onnx_file.hpp"
#include "train/summaries.hpp"

namespace millrace::tools {

void add_onnx(training::Guests& guests) {
  guests.files.open_network = io::read_onnx;
  guests.files.format_network = io::to_onnx;
}

}  // namespace millrace::tools
