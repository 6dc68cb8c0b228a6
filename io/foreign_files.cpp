// SPDX-License-Identifier: Apache-2.0
#include "io/foreign_files.hpp"

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::io {

void lacks_tool(std::string_view what, std::string_view tool) {
  fail(ErrorKind::Usage, "{}: this program was built without the tool {}: see MILLRACE_TOOLS", what,
       tool);
}

bool is_network_file(const std::filesystem::path& path) {
  return to_lower(path.extension().string()) == ".onnx";
}

bool holds_foreign_weights(const std::filesystem::path& path) {
  constexpr auto kEndings = std::to_array<std::string_view>(
      {".onnx", ".safetensors", ".pth", ".pt", ".h5", ".hdf5", ".keras"});
  return std::ranges::find(kEndings, to_lower(path.extension().string())) != kEndings.end();
}

ForeignFiles::ForeignFiles()
    : open_network([](const std::filesystem::path& path) -> NetworkFile {
        lacks_tool(path.string(), "onnx");
      }),
      format_network(
          [](const models::Graph& graph, const ParameterValues&,
             const ExportNotes&) -> std::string { lacks_tool(graph.name + ".onnx", "onnx"); }),
      open_weights([](const std::filesystem::path& path) -> NetworkFile {
        lacks_tool(path.string(), "weights");
      }),
      require_export([](const std::string& folder) { lacks_tool(folder, "weights"); }),
      export_run(
          [](const std::filesystem::path&, const std::string& folder) -> std::vector<std::string> {
            lacks_tool(folder, "weights");
          }) {}

}  // namespace millrace::io
