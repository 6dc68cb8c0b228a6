// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <cstdint>

#include "core/portable.hpp"

namespace millrace {

/// Shape of one sample of an activation: height x width x channels (NHWC without N).
struct Shape {
  std::int64_t h = 1;
  std::int64_t w = 1;
  std::int64_t c = 1;
  [[nodiscard]] MILLRACE_FUNCTION constexpr std::int64_t elements() const noexcept {
    return h * w * c;
  }
  [[nodiscard]] MILLRACE_FUNCTION constexpr std::int64_t pixels() const noexcept { return h * w; }
  friend bool operator==(const Shape&, const Shape&) = default;
};

}  // namespace millrace

template <>
struct fmt::formatter<millrace::Shape> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  auto format(const millrace::Shape& s, fmt::format_context& context) const {
    return fmt::format_to(context.out(), "{}x{}x{}", s.h, s.w, s.c);
  }
};
