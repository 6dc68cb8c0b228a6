// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

/// Storage type of a tensor's elements.
enum class DType : std::uint8_t { F32, BF16, F16, U8, I32 };

[[nodiscard]] constexpr std::int64_t size_of(DType type) noexcept {
  switch (type) {
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::BF16:
    case DType::F16:
      return 2;
    case DType::U8:
      return 1;
  }
  return 0;
}

/// "float32", "bfloat16", "float16", "uint8", "int32".
[[nodiscard]] constexpr std::string_view name_of(DType type) noexcept {
  switch (type) {
    case DType::F32:
      return "float32";
    case DType::BF16:
      return "bfloat16";
    case DType::F16:
      return "float16";
    case DType::U8:
      return "uint8";
    case DType::I32:
      return "int32";
  }
  return "?";
}

/// A `precision` of A.M: storage type A of activations and of the compute copies of the weights,
/// and storage type M of the master weights.
struct Precision {
  DType activations = DType::BF16;
  DType master = DType::F32;
  friend bool operator==(const Precision&, const Precision&) = default;
};

}  // namespace millrace
