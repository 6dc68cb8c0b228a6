// SPDX-License-Identifier: Apache-2.0
//
// safetensors files. The first byte of an input selects whether the length of the header is
// corrected first, so that the header ends with the last brace.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::fuzz {
namespace {

void repair(Bytes& file) {
  if (file.size() < 8) return;
  const auto last = std::find(file.rbegin(), file.rend() - 8, std::byte{'}'});
  const auto length = static_cast<std::uint64_t>(file.rend() - 8 - last);
  std::memcpy(file.data(), &length, sizeof length);
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  if (input.empty()) return;
  Bytes file(input.begin() + 1, input.end());
  if (input[0] != std::byte{0}) repair(file);
  fails_only_as(ErrorKind::Data, [&] {
    std::size_t bytes = 0;
    const std::size_t size = file.size();
    const std::byte* const begin = file.data();
    const io::TensorFile read = io::parse_safetensors(std::move(file), "input");
    for (const auto& [name, tensor] : read.tensors()) {
      bytes += tensor.data.size();
      require(tensor.data.empty() || (tensor.data.data() >= begin &&
                                      tensor.data.data() + tensor.data.size() <= begin + size),
              "tensors lie in the file");
      if (tensor.type.starts_with("F8")) continue;
      require(static_cast<std::int64_t>(tensor.to_floats().size()) == tensor.elements(),
              "a tensor has the elements of its shape");
    }
    require(bytes <= size, "tensors do not overlap");
  });
}

std::vector<Bytes> seeds() {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("b.c":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},)"
      R"("d":{"dtype":"I64","shape":[0,3],"data_offsets":[10,10]}})";
  Bytes file(8);
  const auto length = static_cast<std::uint64_t>(header.size());
  std::memcpy(file.data(), &length, sizeof length);
  const Bytes text = bytes_of(header);
  file.insert(file.end(), text.begin(), text.end());
  file.insert(file.end(), 10, std::byte{0x3f});
  return {tagged(0, file), tagged(1, file)};
}

}  // namespace millrace::fuzz
