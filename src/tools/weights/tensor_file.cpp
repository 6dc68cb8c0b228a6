// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/tensor_file.hpp"

#include <array>
#include <cstdint>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.hpp"

namespace millrace::io {
namespace {

/// Whether a file that begins like this may be safetensors, whole or cut: they begin with the bytes
/// of their header, in 64 bits, and its brace.
bool may_be_safetensors(std::string_view first) {
  constexpr std::size_t kLength = sizeof(std::uint64_t);
  constexpr std::string_view kHigh("\0\0\0\0", 4);  // no header has 4 GiB
  return first.size() > kLength && first.substr(4, 4) == kHigh && first[kLength] == '{';
}

}  // namespace

void TensorFile::add(const std::string& name, SafeTensor tensor) {
  if (!tensors_.emplace(name, std::move(tensor)).second)
    fail(ErrorKind::Data, "{}: there are two tensors {}", path_.string(), name);
}

TensorFile read_tensor_file(const std::filesystem::path& path) {
  std::array<char, 9> head{};
  std::ifstream stream(path, std::ios::binary);
  stream.read(head.data(), head.size());
  const std::string_view first(head.data(), static_cast<std::size_t>(stream.gcount()));
  if (first.starts_with("PK\x03\x04"))
    return is_keras_archive(path) ? read_keras_archive(path) : read_torch_file(path);
  if (first.starts_with("\x89HDF\r\n\x1a\n")) return read_keras_file(path);
  if (is_legacy_torch(first)) return read_torch_file(path);
  std::error_code error;  // then read_safetensors() says why
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (!error && stream.is_open() && !stream.bad() && !may_be_safetensors(first))
    fail(ErrorKind::Data,
         "{}: its {} bytes are neither safetensors, nor a file of torch.save, nor HDF5: "
         "fetch it again, or save the weights as one of these",
         path.string(), bytes);
  return read_safetensors(path);
}

}  // namespace millrace::io
