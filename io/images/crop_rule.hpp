// SPDX-License-Identifier: Apache-2.0
//
// Which window of an image a sample shows: drawn at random in training, computed in validation.
//
// There are two distributions of boxes. TensorFlow draws an aspect ratio and then the *height*,
// uniformly between those of the smallest and the largest area. torchvision draws the *area*
// uniformly and the logarithm of the aspect ratio uniformly; its boxes are larger on average. Both
// try again if a box does not fit.
#pragma once

#include <cstdint>
#include <span>

#include "core/object_box.hpp"
#include "io/images/header.hpp"

namespace millrace::io {

/// Sample and epoch. A draw depends on nothing else.
struct DrawKey {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;
};

/// What is uniformly distributed.
enum class CropDraw : std::uint8_t { Height, Area };

/// The box if every attempt failed: the whole image; the largest centered box whose aspect ratio is
/// in range; or the center of the image scaled to the shorter side.
enum class CropFallback : std::uint8_t { Whole, CentreBox, CentreOfScaled };

/// Offset of the centered window, from the difference d of the sides: floor(d / 2), d / 2 rounded
/// up, or d / 2 rounded half to even (as Python's round does).
enum class CentreOffset : std::uint8_t { Down, Up, Even };

struct CropRule {
  CropDraw draw = CropDraw::Height;
  double min_area = 0.05;    ///< share of the image
  double max_area = 1.0;     ///< share of the image
  double min_aspect = 0.75;  ///< width / height
  double max_aspect = 1.33;  ///< width / height
  std::int32_t attempts = 100;
  /// Share of at least one object (or of the image, if it has no objects) that a box must cover;
  /// objects smaller than a pixel are ignored. Only with CropDraw::Height.
  double min_object_covered = 0.1;
  CropFallback fallback = CropFallback::Whole;
  CentreOffset centre = CentreOffset::Down;  ///< of CropFallback::CentreOfScaled
  friend bool operator==(const CropRule&, const CropRule&) = default;
};

/// Validation: the shorter side is scaled to side x scaled / window (truncated), the other side in
/// proportion (truncated), and the center is cropped.
struct EvaluationRule {
  std::int32_t scaled = 256;
  std::int32_t window = 224;
  CentreOffset centre = CentreOffset::Down;
  friend bool operator==(const EvaluationRule&, const EvaluationRule&) = default;
};

/// The training window of sample `key` in an image of this size, scaled to side x side pixels and
/// mirrored with probability 1/2. Equal keys give equal windows; different keys give independent
/// ones. `objects` may be empty.
[[nodiscard]] ImageWindow draw_window(const CropRule& rule, const DrawKey& key,
                                      const ImageHeader& image, std::span<const ObjectBox> objects,
                                      std::int32_t side);

/// The shorter side of a scaled image of a validation, of which side x side pixels are cropped.
[[nodiscard]] std::int32_t scaled_side(const EvaluationRule& rule, std::int32_t side);
/// The validation window of side x side pixels.
[[nodiscard]] ImageWindow evaluation_window(const EvaluationRule& rule, const ImageHeader& image,
                                            std::int32_t side);

}  // namespace millrace::io
