// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.hpp"
#include "tools/onnx/onnx_file.hpp"

namespace millrace::tools {

cli::Tool onnx_tool() {
  return {.add_to = [](io::ForeignFiles& files) {
    files.open_network = io::read_onnx;
    files.format_network = io::to_onnx;
  }};
}

}  // namespace millrace::tools
