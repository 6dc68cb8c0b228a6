// SPDX-License-Identifier: Apache-2.0
//
// tf.Examples: nothing is read past the record, both readers agree, and if protobuf's own parser
// accepts the bytes, it finds the same image and label.
#include <algorithm>
#include <string>

#include "example.pb.h"
#include "io/data/example.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/io/records/example_bytes.hpp"

namespace millrace::fuzz {
namespace {

using namespace io;

/// Limits inputs because protobuf's objects for tiny fields are large; that is not tested here.
constexpr std::size_t kMaxCompared = 4096;

void compare_with_protobuf(std::span<const std::byte> input, const Example& example) {
  wire::Example message;
  if (input.size() > kMaxCompared ||
      !message.ParseFromArray(input.data(), static_cast<int>(input.size())))
    return;
  const auto& features = message.features().feature();
  const auto encoded = features.find("image/encoded");
  const auto label = features.find("image/class/label");
  // One parser merges duplicate features and the other replaces them; both are valid.
  if (encoded == features.end() || encoded->second.bytes_list().value_size() != 1) return;
  if (label == features.end() || label->second.int64_list().value_size() != 1) return;
  const std::string& bytes = encoded->second.bytes_list().value(0);
  require(std::ranges::equal(std::as_bytes(std::span(bytes)), example.encoded), "same image");
  require(label->second.int64_list().value(0) == example.label, "same label");
}

Bytes example(std::span<const ObjectBox> boxes) {
  return example_bytes({.encoded = std::string(40, 'U'), .label = 300, .boxes = boxes});
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  Example example;
  ReadBuffer buffer;
  const std::string problem = parse_example(input, example, buffer);
  ByteWindow file(input, "input");
  std::int64_t label = 0;
  const std::string label_problem = parse_label(file, 0, input.size(), label);
  if (!problem.empty()) return;
  require(label_problem.empty() && label == example.label, "both readers agree");
  const std::byte* const end = input.data() + input.size();
  require(example.encoded.data() >= input.data() &&
              example.encoded.data() + example.encoded.size() <= end,
          "the image is in the record");
  require(buffer.boxes.size() <= kMaxBoxes, "boxes are limited");
  compare_with_protobuf(input, example);
}

std::vector<Bytes> seeds() {
  const std::vector<ObjectBox> boxes = {{0.1f, 0.2f, 0.5f, 0.75f}, {0.0f, 0.0f, 1.0f, 1.0f}};
  return {example({}), example(boxes)};
}

}  // namespace millrace::fuzz
