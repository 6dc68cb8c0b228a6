// SPDX-License-Identifier: Apache-2.0
//
// Files of other libraries as named tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::io {

/// A tensor in row-major order. `type` is the name in safetensors: "F32", "F64", "I64", ...
struct SafeTensor {
  std::string type;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
  [[nodiscard]] std::int64_t elements() const noexcept;
  /// Converts to float32. Types: F64, F32, F16, BF16, integers, BOOL; Error(Data) for others.
  [[nodiscard]] std::vector<float> to_floats() const;
};

using SafeTensors = std::map<std::string, SafeTensor>;

/// The named tensors of a file of another library.
class TensorFile {
 public:
  explicit TensorFile(std::filesystem::path path) : path_(std::move(path)) {}
  TensorFile(TensorFile&&) = default;
  TensorFile& operator=(TensorFile&&) = default;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const SafeTensors& tensors() const { return tensors_; }
  /// What the file says besides: `__metadata__` of safetensors, or of Keras, as "model_config", the
  /// configuration of the network in JSON.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// What a reader chose and who asked for the file should know.
  [[nodiscard]] const std::vector<std::string>& notices() const { return notices_; }

  /// Keeps bytes to which tensors refer.
  std::span<const std::byte> keep(std::vector<std::byte> bytes) {
    return bytes_.emplace_back(std::move(bytes));
  }
  /// Adds a tensor of such bytes. Errors: Data if there is one of this name.
  void add(const std::string& name, SafeTensor tensor);
  void set_metadata(std::map<std::string, std::string> metadata) {
    metadata_ = std::move(metadata);
  }
  void add_notice(std::string text) { notices_.push_back(std::move(text)); }

 private:
  std::filesystem::path path_;
  SafeTensors tensors_;  ///< refers to bytes_
  std::vector<std::vector<std::byte>> bytes_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> notices_;
};

/// Reads a safetensors file, a file of torch.save (tensors alone: no code of its pickle is run), or
/// weights of Keras in HDF5 or in the archive of Keras 3, whichever it is by its first bytes. A
/// checkpoint of a training in PyTorch gives the state dictionary of its network. Errors: Data,
/// with the path; Io.
[[nodiscard]] TensorFile read_tensor_file(const std::filesystem::path& path);

// safetensors: 8 bytes of little-endian header length, a JSON header
//   {"__metadata__": {text: text}, "<name>": {"dtype", "shape", "data_offsets": [begin, end]},
//   ...},
// then raw row-major data. Every byte of it belongs to exactly one tensor.

/// The tensors in the bytes of a file, whose path begins messages. The bytes are untrusted: at most
/// 6 MiB of header; overflows, overlaps, gaps and duplicate names are errors. Errors: Data, naming
/// the tensor.
[[nodiscard]] TensorFile parse_safetensors(std::vector<std::byte> bytes,
                                           const std::filesystem::path& path);
/// The same of a file, whose header is checked before the data is read. Errors: Data; Io.
[[nodiscard]] TensorFile read_safetensors(const std::filesystem::path& path);
/// The bytes of a file with these tensors, in name order, and metadata.
[[nodiscard]] std::string format_safetensors(const SafeTensors& tensors,
                                             const std::map<std::string, std::string>& metadata);

/// The tensors of a file of torch.save: an archive with a pickle `data.pkl` and a file for each
/// storage, or what PyTorch wrote before 1.6. They are those of its dictionary, or of the entry
/// state_dict, model_state_dict, model or net of it. No code of the pickle is run. Errors: Data,
/// with the path; Io.
[[nodiscard]] TensorFile read_torch_file(const std::filesystem::path& path);
/// Whether a file that begins like this, with at least 9 bytes, is from before PyTorch 1.6.
[[nodiscard]] bool is_legacy_torch(std::string_view first);

/// The weights of a network that Keras saved as HDF5 (save_weights, or save of the whole network),
/// under the names of their layers: `conv1_conv/kernel:0`. Those of Keras 3 before 3.6 have numbers
/// instead, `conv2d/vars/0`, which a notice says. Errors: Data, with the path; Io.
[[nodiscard]] TensorFile read_keras_file(const std::filesystem::path& path);
/// Whether a zip archive is a network that Keras 3 saved: model.save("NAME.keras").
[[nodiscard]] bool is_keras_archive(const std::filesystem::path& path);
/// The weights in such an archive, likewise.
[[nodiscard]] TensorFile read_keras_archive(const std::filesystem::path& path);

}  // namespace millrace::io
