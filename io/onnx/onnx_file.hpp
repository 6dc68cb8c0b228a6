// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.hpp"

namespace millrace::io {

/// Whether a path names a file of ONNX, by its ending.
[[nodiscard]] bool is_onnx(const std::filesystem::path& path);

/// A network in a file of ONNX that any program wrote. Its nodes become ops, each a layer with the
/// name of the node; what only passes values on, such as Identity or Flatten, becomes none. A file
/// that was written here gives the graph it was written from, dropout and layers included, if its
/// nodes are still those of that graph. The file is untrusted.
class OnnxFile {
 public:
  /// Reads a file of at most 2 GiB, and tensors that it has put into files beside it. Errors:
  /// Config, in one line, with all nodes that have no counterpart here; Data if the file is damaged
  /// or contradicts itself; Io.
  explicit OnnxFile(const std::filesystem::path& path);
  /// The same from the bytes of a file, whose tensors all lie in it. Messages begin with `label`;
  /// the graph has the name `name`.
  OnnxFile(std::string_view bytes, const std::string& label, const std::string& name);
  ~OnnxFile();
  OnnxFile(OnnxFile&&) noexcept;
  OnnxFile& operator=(OnnxFile&&) noexcept;

  [[nodiscard]] const models::Graph& graph() const;
  /// What the user should know, one line each.
  [[nodiscard]] const std::vector<std::string>& notices() const;
  /// What the file says besides the network.
  [[nodiscard]] std::map<std::string, std::string> metadata() const;
  /// Whether the file has the elements of all parameters.
  [[nodiscard]] bool has_values() const;
  /// The elements of a parameter of the graph, in the order that we keep them in. Errors: Data if
  /// the file has none, or another number than the shape says.
  [[nodiscard]] std::vector<float> values(models::ParameterId id) const;

 private:
  struct Content;
  void take(bool parsed, const std::string& name);
  std::unique_ptr<Content> content_;
};

}  // namespace millrace::io
