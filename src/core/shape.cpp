// SPDX-License-Identifier: Apache-2.0
#include "core/shape.hpp"

#include <fmt/format.h>

fmt::format_context::iterator fmt::formatter<millrace::Shape>::format(
    const millrace::Shape& s, fmt::format_context& context) const {
  return fmt::format_to(context.out(), "{}x{}x{}", s.h, s.w, s.c);
}
