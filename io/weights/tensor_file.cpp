// SPDX-License-Identifier: Apache-2.0
#include "io/weights/tensor_file.hpp"

#include <array>
#include <fstream>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "io/weights/keras_file.hpp"
#include "io/weights/torch_file.hpp"

namespace millrace::io {

void TensorFile::add(const std::string& name, std::string type, std::vector<std::int64_t> shape,
                     std::vector<std::byte> bytes) {
  if (tensors_.contains(name))
    fail(ErrorKind::Data, "{}: there are two tensors {}", path_.string(), name);
  bytes_.push_back(std::move(bytes));
  tensors_.emplace(name, SafeTensor{std::move(type), std::move(shape), bytes_.back()});
}

TensorFile read_tensor_file(const std::filesystem::path& path) {
  std::array<char, 8> head{};
  std::ifstream stream(path, std::ios::binary);
  stream.read(head.data(), head.size());
  const std::string_view first(head.data(), static_cast<std::size_t>(stream.gcount()));
  if (first.starts_with("PK\x03\x04")) return read_torch_file(path);
  if (first == "\x89HDF\r\n\x1a\n") return read_keras_file(path);
  if (first.starts_with("\x80\x02") && first.size() > 3 && first[2] == '\x8a')
    fail(ErrorKind::Data,
         "{}: PyTorch before 1.6 wrote this file; load it and save it again with a newer PyTorch, "
         "or as safetensors",
         path.string());
  SafeTensorsFile file(path);
  TensorFile result(path);
  for (const auto& [name, tensor] : file.tensors())
    result.add(name, tensor.type, tensor.shape, {tensor.data.begin(), tensor.data.end()});
  return result;
}

}  // namespace millrace::io
