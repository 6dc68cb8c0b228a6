// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.hpp"
#include "tools/onnx/onnx_file.hpp"

namespace millrace::tools {
namespace {

void add_networks(io::ForeignFiles& files) {
  files.open_network = io::read_onnx;
  files.format_network = io::to_onnx;
}

}  // namespace

cli::Tool onnx_tool() { return {.add_to = add_networks}; }

}  // namespace millrace::tools
