// SPDX-License-Identifier: Apache-2.0
//
// Per-image records that are sent to a device along with the pixels and labels of a micro-batch. io
// fills them in and the kernels in ops read them. They are plain memory of fixed size and are
// copied byte by byte.
#pragma once

#include <cstdint>

#include "core/portable.hpp"

namespace millrace {

/// Maximum number of channels of an image that arrives as bytes.
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

/// Converts the bytes of an image to floats: (byte - mean) x scale per channel inside `real`, and 0
/// in the padding outside and in the box that is erased (recipes pad and erase after
/// normalization).
struct PixelScaling {
  float mean[kMaxByteChannels] = {};
  float scale[kMaxByteChannels] = {};
  PixelBox real;
  PixelBox erased;
};

/// How an image of a micro-batch is mixed; its label is mixed with the same weights. First two
/// images are blended (mixup), then a box of another blended image is pasted in (cutmix):
///
///   sum(n)   = share(n) x image(n) + (1 - share(n)) x image(partner(n))
///   mixed(n) = sum(donor(n)) within box(n), sum(n) outside
///   label(n) = area(n) x that of sum(donor(n)) + (1 - area(n)) x that of sum(n)
///
/// Partner and donor are indices within the micro-batch; area is the box's fraction of the image.
struct ImageMixing {
  float share = 1.0f;
  float area = 0.0f;
  std::int32_t partner = 0;
  std::int32_t donor = 0;
  PixelBox box;
  friend bool operator==(const ImageMixing&, const ImageMixing&) = default;
};

}  // namespace millrace
