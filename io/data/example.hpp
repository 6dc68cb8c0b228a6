// SPDX-License-Identifier: Apache-2.0
//
// The tf.Example of an image: a map of names to lists of bytes, floats or integers.
//
//   image/encoded          bytes  a JPEG or PNG file
//   image/class/label      int64  the class, from 1 on as the converter counts
//   image/object/bbox/...  float  xmin, ymin, xmax, ymax of every object, or nothing
//   image/height, width, colorspace, channels, class/synset, class/text, format, filename: not read
//
// Examples are read field by field (wire.hpp), not into messages: images are not copied (an index
// does not even read them), nothing is allocated, and a small record cannot expand into a large
// message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "io/data/files.hpp"
#include "io/data/image_dataset.hpp"

namespace millrace::io {

/// Limits on an Example.
inline constexpr int kMaxFeatures = 64;
inline constexpr int kMaxFeatureName = 256;
inline constexpr std::size_t kMaxBoxes = 1024;

/// Content of an image's Example.
struct Example {
  std::span<const std::byte> encoded;  ///< refers to the payload
  std::int64_t label = 0;              ///< as stored
};

/// Parses the payload of a record; boxes go to `buffer.boxes`. Returns the problem, or "": wrong
/// wire format, more than kMaxFeatures features, a missing key, a list of the wrong type or length,
/// inconsistent boxes, or boxes outside the image.
[[nodiscard]] std::string parse_example(std::span<const std::byte> payload, Example& example,
                                        ReadBuffer& buffer);

/// Reads the label of the Example in [begin, begin + bytes) of a file and checks that there is an
/// image, whose bytes it skips; boxes are ignored. Returns the problem, or "". Errors: Io.
[[nodiscard]] std::string parse_label(ByteWindow& file, std::uint64_t begin, std::uint64_t bytes,
                                      std::int64_t& label);

}  // namespace millrace::io
