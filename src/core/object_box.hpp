// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace {

/// Bounding box of an object in an image, as fractions of its height and width: 0 <= top < bottom
/// <= 1 and 0 <= left < right <= 1. Some data sets contain boxes; random crops use them.
struct ObjectBox {
  float top = 0.0f;
  float left = 0.0f;
  float bottom = 0.0f;
  float right = 0.0f;
  friend bool operator==(const ObjectBox&, const ObjectBox&) = default;
};

/// Whether the box satisfies these bounds; false for NaNs.
[[nodiscard]] constexpr bool is_within_image(const ObjectBox& box) noexcept {
  return box.top >= 0.0f && box.top < box.bottom && box.bottom <= 1.0f && box.left >= 0.0f &&
         box.left < box.right && box.right <= 1.0f;
}

}  // namespace millrace
