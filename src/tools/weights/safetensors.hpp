// SPDX-License-Identifier: Apache-2.0
//
// safetensors: 8 bytes of little-endian header length, a JSON header
//   {"__metadata__": {text: text}, "<name>": {"dtype", "shape", "data_offsets": [begin, end]},
//   ...},
// then raw row-major data. Every byte of it belongs to exactly one tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::io {

/// One tensor of a safetensors file. `type` is the format's own name: "F32", "F64", "I64", ...
struct SafeTensor {
  std::string type;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
  [[nodiscard]] std::int64_t elements() const noexcept;
  /// Converts to float32. Types: F64, F32, F16, BF16, integers, BOOL; Error(Data) for others.
  [[nodiscard]] std::vector<float> to_floats() const;
};

using SafeTensors = std::map<std::string, SafeTensor>;

/// Parses the bytes of a file; the result refers to them. Error messages begin with `label` (a
/// path). The bytes are untrusted: at most 6 MiB of header; overflows, overlaps, gaps and duplicate
/// names are errors. Errors: Data, naming the tensor.
[[nodiscard]] SafeTensors parse_safetensors(std::span<const std::byte> bytes,
                                            std::string_view label);
/// What `__metadata__` of the same bytes says. Errors: as above.
[[nodiscard]] std::map<std::string, std::string> parse_safetensors_metadata(
    std::span<const std::byte> bytes, std::string_view label);

/// The bytes of a file with these tensors, in name order, and metadata.
[[nodiscard]] std::string format_safetensors(const SafeTensors& tensors,
                                             const std::map<std::string, std::string>& metadata);

/// A safetensors file in memory. Its header is checked before the data is read. Errors: Data, with
/// the path and the tensor; Io.
class SafeTensorsFile {
 public:
  explicit SafeTensorsFile(const std::filesystem::path& path);
  SafeTensorsFile(SafeTensorsFile&&) = default;
  SafeTensorsFile& operator=(SafeTensorsFile&&) = default;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const SafeTensors& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return metadata_;
  }
  [[nodiscard]] const SafeTensor& at(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::vector<std::byte> bytes_;
  SafeTensors tensors_;  ///< refers to bytes_, which a move does not relocate
  std::map<std::string, std::string> metadata_;
};

}  // namespace millrace::io
