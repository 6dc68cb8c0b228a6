// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace millrace::io {

/// The elements of a storage of PyTorch.
struct TorchType {
  std::string_view storage;  ///< its class
  std::string_view name;     ///< of the type in safetensors
  std::int64_t bytes = 0;    ///< of an element
};
inline constexpr std::array kTorchTypes = std::to_array<TorchType>({{"FloatStorage", "F32", 4},
                                                                    {"DoubleStorage", "F64", 8},
                                                                    {"HalfStorage", "F16", 2},
                                                                    {"BFloat16Storage", "BF16", 2},
                                                                    {"LongStorage", "I64", 8},
                                                                    {"IntStorage", "I32", 4},
                                                                    {"ShortStorage", "I16", 2},
                                                                    {"CharStorage", "I8", 1},
                                                                    {"ByteStorage", "U8", 1},
                                                                    {"BoolStorage", "BOOL", 1}});

/// nullptr for an unknown class.
[[nodiscard]] constexpr const TorchType* find_torch_type(std::string_view storage) {
  for (const TorchType& type : kTorchTypes)
    if (type.storage == storage) return &type;
  return nullptr;
}

}  // namespace millrace::io
