// SPDX-License-Identifier: Apache-2.0
//
// The tf.Example of a picture: a map of names to lists of bytes, floats or whole numbers.
//
//   image/encoded          bytes  a JPEG or PNG file
//   image/class/label      int64  the class, from 1 on as the converter counts
//   image/class/text       bytes  its name, or nothing
//   image/object/bbox/...  float  xmin, ymin, xmax, ymax of every object, or nothing
//   image/height, width, colorspace, channels, class/synset, format, filename: written, not read
//
// Examples are read from protobuf's coded stream field by field, not into messages: a picture stays
// where it is, nothing is allocated, and a small record cannot swell into a large message. Writing
// uses the messages of example.proto.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/records/byte_window.hpp"
#include "io/records/encoded_source.hpp"

namespace millrace::io {

/// Limits on an Example.
inline constexpr int kMaxFeatures = 64;
inline constexpr int kMaxFeatureName = 256;
inline constexpr std::size_t kMaxBoxes = 1024;

/// What a picture's Example says.
struct Example {
  std::span<const std::byte> encoded;  ///< refers to the payload
  std::int64_t label = 0;              ///< as stored
  std::string_view text;               ///< refers to the payload; empty: none
};

/// Reads the payload of a record; boxes go to `buffer.boxes`. Returns what is wrong, or "": wrong
/// wire format, more than kMaxFeatures, a missing key, a list of the wrong type or length, boxes
/// that do not fit together or lie outside the picture.
[[nodiscard]] std::string parse_example(std::span<const std::byte> payload, Example& example,
                                        ReadBuffer& buffer);

/// Reads the label of the Example in [begin, begin + bytes) of a file and looks whether there is a
/// picture, past which it jumps; boxes are not looked at. Returns what is wrong, or "". Errors: Io.
[[nodiscard]] std::string parse_label(ByteWindow& file, std::uint64_t begin, std::uint64_t bytes,
                                      std::int64_t& label);

/// What the converter writes of a picture. Boxes are written where there are some.
struct ExampleContent {
  std::span<const std::byte> encoded;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t label = 0;
  std::string synset;
  std::string filename;
  std::span<const ObjectBox> boxes;
};

/// Writes the Example into `payload`; equal content gives equal bytes.
void write_example(const ExampleContent& content, std::vector<std::byte>& payload);

}  // namespace millrace::io
