// SPDX-License-Identifier: Apache-2.0
//
// What the engine asks of the tools that know files of other programs (src/tools/onnx and
// src/tools/weights). A tool puts its functions in the places of those here; one that no tool has
// ends with an error that names the tool: the engine trains, restores and validates without any.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.hpp"
#include "models/model_options.hpp"

namespace millrace::io {

/// Errors: Usage, always: `what` asks for a tool that this program is built without.
[[noreturn]] void lacks_tool(std::string_view what, std::string_view tool);

/// Whether a path names a file of a network, by its ending: that of ONNX.
[[nodiscard]] bool is_network_file(const std::filesystem::path& path);

/// Whether a path names a file with weights, by its ending: that of ONNX, PyTorch or Keras.
[[nodiscard]] bool holds_foreign_weights(const std::filesystem::path& path);

/// A network in a file that another program wrote, with its weights.
struct NetworkFile {
  models::Graph graph;
  std::vector<std::string> notices;             ///< what the user should know, one line each
  std::map<std::string, std::string> metadata;  ///< what the file says besides the network
  /// The elements of a parameter of the graph, in the order that we keep them in. Errors: Data if
  /// the file has none, or another number than the shape says.
  std::function<std::vector<float>(models::ParameterId)> values;
  std::optional<models::ModelOptions> model =
      {};  ///< of a family that builds the network, if known
};

/// The values of a parameter in canonical order.
using ParameterValues = std::function<std::span<const float>(const models::Parameter&)>;
/// What an exported file says of its run, as its metadata.
using ExportNotes = std::map<std::string, std::string>;

struct ForeignFiles {
  ForeignFiles();

  /// Either of the next two.
  [[nodiscard]] NetworkFile open(const std::filesystem::path& path) const {
    return is_network_file(path) ? open_network(path) : open_weights(path);
  }

  /// Reads the network in a file, which is untrusted. Errors: Config, if it computes what no graph
  /// of ours does; Data if it is damaged; Io.
  NetworkFile (*open_network)(const std::filesystem::path& path);
  /// The bytes of such a file, which computes the logits of any number of images.
  std::string (*format_network)(const models::Graph& graph, const ParameterValues& values,
                                const ExportNotes& notes);
  /// Reads a file of weights alone: the network is the one that has exactly these. Errors: Data if
  /// there is none, or the file is damaged; Io.
  NetworkFile (*open_weights)(const std::filesystem::path& path);
  /// Finds out whether the weights of a run can be exported to `folder`, which may be one in its
  /// directory, "RUN_DIR/export", and leaves nothing there. Errors: Io.
  void (*require_export)(const std::string& folder);
  /// Writes the newest checkpoint of a run there, for other programs, and returns lines that say
  /// so. Errors: Io, Checkpoint.
  std::vector<std::string> (*export_run)(const std::filesystem::path& run_directory,
                                         const std::string& folder);
};

}  // namespace millrace::io
