// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include "core/text.hpp"
#include "tests/io/fixtures.hpp"
#include "tools/weights/safetensors.hpp"

namespace millrace::io {

/// Writes a safetensors file with these tensors.
inline void write_safetensors(const std::filesystem::path& path, const SafeTensors& tensors) {
  std::string header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header.empty() ? "" : ",", name, tensor.type, join(tensor.shape, ","),
                          begin, data.size());
  }
  header = "{" + header + "}";
  const std::uint64_t length = header.size();
  const std::string file =
      std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
  write_bytes(path, {reinterpret_cast<const std::uint8_t*>(file.data()), file.size()});
}

}  // namespace millrace::io
