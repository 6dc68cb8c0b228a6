// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "core/bfloat16.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"
#include "device/parallel.hpp"

namespace millrace::device {

template <class T>
[[nodiscard]] constexpr DType dtype_of() {
  if (std::is_same_v<T, float>) return DType::F32;
  return std::is_same_v<T, bfloat16> ? DType::BF16 : DType::F16;
}

/// Calls function.template operator()<T>() with the storage type that `type` names.
template <class Function>
decltype(auto) dispatch(DType type, Function&& function) {
  if (type == DType::F32) return function.template operator()<float>();
  if (type == DType::BF16) return function.template operator()<bfloat16>();
  if (type == DType::F16) return function.template operator()<float16>();
  fail(ErrorKind::Internal, "no kernels for storage type {}", name_of(type));
}

}  // namespace millrace::device
