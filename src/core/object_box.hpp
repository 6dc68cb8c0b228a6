// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace {

/// Where an object is on a picture, in shares of its height and width: 0 <= top < bottom <= 1 and
/// 0 <= left < right <= 1. Data sets hold some, crops look at them.
struct ObjectBox {
  float top = 0.0f;
  float left = 0.0f;
  float bottom = 0.0f;
  float right = 0.0f;
  friend bool operator==(const ObjectBox&, const ObjectBox&) = default;
};

/// Whether the sides are as they should be; NaNs are not.
[[nodiscard]] constexpr bool is_within_picture(const ObjectBox& box) noexcept {
  return box.top >= 0.0f && box.top < box.bottom && box.bottom <= 1.0f && box.left >= 0.0f &&
         box.left < box.right && box.right <= 1.0f;
}

}  // namespace millrace
