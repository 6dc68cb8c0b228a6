// SPDX-License-Identifier: Apache-2.0
//
// What a network gets to see of a picture:
//
//   picture            box of it            scaled                  window: side x side
//   +------------+     +-------+            +-------------+         +-------+
//   |   +-----+  |     |       |  resample  |   +-----+   |   cut   |       |
//   |   |     |  | --> |       | ---------> |   |     |   |  -----> |       |  (mirrored or not)
//   |   +-----+  |     +-------+            |   +-----+   |         +-------+
//   +------------+                          +-------------+
//
// In training the box is drawn and the window shows all that is scaled; in validation the box is
// the picture and the window the middle of what is scaled.
#pragma once

#include <cstdint>

#include "core/image_records.hpp"

namespace millrace::io {

enum class Mirror : std::uint8_t { No, Yes };

struct ImageWindow {
  PixelBox box;                    ///< of the picture, in its pixels
  std::int32_t scaled_width = 0;   ///< that the box is resampled to
  std::int32_t scaled_height = 0;  ///< that the box is resampled to
  std::int32_t left = 0;           ///< of the window within what is scaled
  std::int32_t top = 0;            ///< of the window within what is scaled
  Mirror mirror = Mirror::No;
  friend bool operator==(const ImageWindow&, const ImageWindow&) = default;
};

}  // namespace millrace::io
