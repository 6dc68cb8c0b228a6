// SPDX-License-Identifier: Apache-2.0
//
// tf.Examples as the published converters write them, spelled out: readers are not tested with what
// our own converter makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/image_format.hpp"

namespace millrace::io {

inline std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}

/// A field of the wire format: its number, type 2, and the bytes.
inline std::string nested(int field, std::string_view bytes) {
  return std::string(1, static_cast<char>(field << 3 | 2)) + varint(bytes.size()) +
         std::string(bytes);
}

struct ExampleFields {
  std::string_view encoded;
  std::int64_t height = 1;
  std::int64_t width = 1;
  std::int64_t label = 0;
  std::string_view synset = "n1";
  std::string_view filename = "a";
  std::span<const ObjectBox> boxes = {};
};

/// The features in the order of their names.
inline std::vector<std::byte> example_bytes(const ExampleFields& fields) {
  const auto feature = [](std::string_view name, int kind, std::string_view values) {
    return nested(1, nested(1, name) + nested(2, nested(kind, nested(1, values))));
  };
  constexpr int kBytesList = 1;
  const auto number = [&](std::string_view name, std::int64_t value) {
    return feature(name, 3, varint(static_cast<std::uint64_t>(value)));
  };
  const auto side = [&](const std::string& name, float ObjectBox::*member) -> std::string {
    std::string values(4 * fields.boxes.size(), '\0');
    for (std::size_t i = 0; i < fields.boxes.size(); ++i)
      std::memcpy(values.data() + 4 * i, &(fields.boxes[i].*member), 4);
    return values.empty() ? "" : feature("image/object/bbox/" + name, 2, values);
  };
  const std::string example =
      nested(1, number("image/channels", 3) + number("image/class/label", fields.label) +
                    feature("image/class/synset", kBytesList, fields.synset) +
                    feature("image/colorspace", kBytesList, "RGB") +
                    feature("image/encoded", kBytesList, fields.encoded) +
                    feature("image/filename", kBytesList, fields.filename) +
                    feature("image/format", kBytesList, "JPEG") +
                    number("image/height", fields.height) + side("xmax", &ObjectBox::right) +
                    side("xmin", &ObjectBox::left) + side("ymax", &ObjectBox::bottom) +
                    side("ymin", &ObjectBox::top) + number("image/width", fields.width));
  const auto bytes = std::as_bytes(std::span(example));
  return {bytes.begin(), bytes.end()};
}

}  // namespace millrace::io
