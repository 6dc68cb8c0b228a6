// SPDX-License-Identifier: Apache-2.0
//
// The part of an image that a network reads:
//
//   image              box of it            scaled                  window: side x side
//   +------------+     +-------+            +-------------+         +-------+
//   |   +-----+  |     |       |  resample  |   +-----+   |   cut   |       |
//   |   |     |  | --> |       | ---------> |   |     |   |  -----> |       |  (mirrored or not)
//   |   +-----+  |     +-------+            |   +-----+   |         +-------+
//   +------------+                          +-------------+
//
// In training the box is drawn at random and the window is the whole scaled box. In validation the
// box is the whole image and the window is the center of the scaled image.
#pragma once

#include <cstdint>

#include "core/image_records.hpp"

namespace millrace::io {

enum class Mirror : std::uint8_t { No, Yes };

struct ImageWindow {
  PixelBox box;                    ///< part of the image, in its pixels
  std::int32_t scaled_width = 0;   ///< width of the resampled box
  std::int32_t scaled_height = 0;  ///< height of the resampled box
  std::int32_t left = 0;           ///< of the window within the resampled box
  std::int32_t top = 0;            ///< of the window within the resampled box
  Mirror mirror = Mirror::No;
  friend bool operator==(const ImageWindow&, const ImageWindow&) = default;
};

}  // namespace millrace::io
