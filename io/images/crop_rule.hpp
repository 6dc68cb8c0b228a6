// SPDX-License-Identifier: Apache-2.0
//
// Which window of a picture a sample is: drawn at random in training, computed in validation.
//
// Two distributions of boxes are in use. TensorFlow's draws the *height*, uniformly between those
// of the smallest and the largest area at the drawn aspect ratio, and so prefers large boxes less
// than torchvision's, which draws the *area* uniformly and the logarithm of the aspect ratio. Both
// try again when a box does not fit.
#pragma once

#include <cstdint>
#include <span>

#include "core/object_box.hpp"
#include "io/images/header.hpp"
#include "io/images/window.hpp"

namespace millrace::io {

/// Which sample of which epoch: all that a draw depends on.
struct DrawKey {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;
};

/// What is uniformly distributed.
enum class CropDraw : std::uint8_t { Height, Area };

/// What is taken when every attempt failed: the whole picture; the largest centred box whose aspect
/// ratio is in range; or the picture scaled until its shorter side fits, and the centre of that.
enum class CropFallback : std::uint8_t { Whole, CentreBox, CentreOfScaled };

/// Where the centre of what is scaled begins, from the difference d of the sides: floor(d / 2), d /
/// 2 rounded up, or d / 2 rounded to an even number (as Python's round does).
enum class CentreOffset : std::uint8_t { Down, Up, Even };

struct CropRule {
  CropDraw draw = CropDraw::Height;
  double min_area = 0.05;    ///< share of the picture
  double max_area = 1.0;     ///< share of the picture
  double min_aspect = 0.75;  ///< width / height
  double max_aspect = 1.33;  ///< width / height
  std::int32_t attempts = 100;
  /// Share of at least one object (or of the picture, where no objects are known) that a box must
  /// cover; objects of less than a pixel do not count. Only with CropDraw::Height.
  double min_object_covered = 0.1;
  CropFallback fallback = CropFallback::Whole;
  CentreOffset centre = CentreOffset::Down;  ///< of CropFallback::CentreOfScaled
  friend bool operator==(const CropRule&, const CropRule&) = default;
};

/// How validation sees a picture: its shorter side is scaled to side x scaled / window (truncated),
/// the other one in proportion (truncated), and the centre is cut out.
struct EvaluationRule {
  std::int32_t scaled = 256;
  std::int32_t window = 224;
  CentreOffset centre = CentreOffset::Down;
  friend bool operator==(const EvaluationRule&, const EvaluationRule&) = default;
};

/// The training window of sample `key` in a picture of this size, scaled to side x side pixels and
/// mirrored with probability 1/2. The same key always gives the same window; keys that differ give
/// independent ones. `objects` may be empty.
[[nodiscard]] ImageWindow draw_window(const CropRule& rule, const DrawKey& key,
                                      const ImageHeader& picture,
                                      std::span<const ObjectBox> objects, std::int32_t side);

/// The validation window of side x side pixels.
[[nodiscard]] ImageWindow evaluation_window(const EvaluationRule& rule, const ImageHeader& picture,
                                            std::int32_t side);

}  // namespace millrace::io
