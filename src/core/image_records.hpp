// SPDX-License-Identifier: Apache-2.0
//
// What travels to a device beside the pixels and labels of a micro-batch: one record an image. The
// data side (io) fills them in, the kernels (ops) read them; here is what both know. Plain memory
// of fixed size, copied byte by byte.
#pragma once

#include <cstdint>

#include "core/portable.hpp"

namespace millrace {

/// Channels that an image handed over as bytes may have at most.
inline constexpr std::int64_t kMaxByteChannels = 4;

/// Rows [top, bottom) and columns [left, right) of an image; empty by default.
struct PixelBox {
  std::int32_t top = 0;
  std::int32_t left = 0;
  std::int32_t bottom = 0;
  std::int32_t right = 0;
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t pixels() const {
    return static_cast<std::int64_t>(bottom - top) * (right - left);
  }
  friend bool operator==(const PixelBox&, const PixelBox&) = default;
};

/// What makes the floats of an image from its bytes: (byte - mean) x scale by channel within
/// `real`, and 0 outside, where no pixel of the image lies (recipes pad after normalising).
struct PixelScaling {
  float mean[kMaxByteChannels] = {};
  float scale[kMaxByteChannels] = {};
  PixelBox real;
};

/// What an image of a micro-batch is mixed from; its label is mixed likewise. First two images are
/// added (mixup), then a box is cut from the sum of another image and put in (cutmix):
///
///   sum(n)   = share(n) x image(n) + (1 - share(n)) x image(partner(n))
///   mixed(n) = sum(donor(n)) within box(n), sum(n) outside
///   label(n) = area(n) x that of sum(donor(n)) + (1 - area(n)) x that of sum(n)
///
/// Partner and donor are indices within the micro-batch; area is the box's share of the image.
struct ImageMixing {
  float share = 1.0f;
  float area = 0.0f;
  std::int32_t partner = 0;
  std::int32_t donor = 0;
  PixelBox box;
  friend bool operator==(const ImageMixing&, const ImageMixing&) = default;
};

}  // namespace millrace
