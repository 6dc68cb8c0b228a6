// SPDX-License-Identifier: Apache-2.0
//
// Samples as a network sees them.
#pragma once

#include <cstdint>
#include <vector>

#include "io/data/dataset.hpp"

namespace millrace::io {

inline std::vector<float> image_of(const Dataset& dataset, std::int64_t index,
                                   const ReadKey& key = {}) {
  const Shape shape = dataset.image_shape();
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(shape.elements()));
  std::vector<float> image(bytes.size());
  PixelScaling scaling;
  static_cast<void>(dataset.read(index, key, bytes, scaling));
  normalise_bytes<float>(bytes, scaling, shape, image);
  return image;
}

}  // namespace millrace::io
