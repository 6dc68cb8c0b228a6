// SPDX-License-Identifier: Apache-2.0
#include "io/data/example.hpp"

#include "example.pb.h"
#include "shards.hpp"

namespace millrace::io {
namespace {

using wire::Feature;

const std::vector<ObjectBox> kBoxes = {{0.1f, 0.2f, 0.5f, 0.75f}, {0.0f, 0.0f, 1.0f, 1.0f}};

std::string problem_of(std::span<const std::byte> payload) {
  Example example;
  ReadBuffer buffer;
  return parse_example(payload, example, buffer);
}

/// The result of the label reader for the same payload, in the middle of a file.
std::string label_problem_of(std::span<const std::byte> payload, std::int64_t& label) {
  Bytes file(13, std::byte{0xff});
  file.insert(file.end(), payload.begin(), payload.end());
  file.resize(file.size() + 5, std::byte{0xff});
  ByteWindow window(file, "bytes");
  return parse_label(window, 13, payload.size(), label);
}

/// protobuf messages, for payloads that no converter produces.
class Message {
 public:
  Message() {
    const Bytes bytes = payload_of(1, 5, kBoxes);
    EXPECT_TRUE(message_.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  }
  auto& features() { return *message_.mutable_features()->mutable_feature(); }
  [[nodiscard]] Bytes bytes() const { return bytes_of(message_.SerializeAsString()); }

 private:
  wire::Example message_;
};

template <class Change>
std::string problem_after(Change change) {
  Message message;
  change(message.features());
  return problem_of(message.bytes());
}

std::string entry(const std::string& key, const std::string& list_kind_and_list) {
  return nested(1, nested(1, key) + nested(2, list_kind_and_list));
}

const std::string kEncoded = entry("image/encoded", nested(1, nested(1, "jpeg")));

TEST(ExampleTest, RoundTrip) {
  const Bytes payload = payload_of(33, 1000, kBoxes);
  Example example;
  ReadBuffer buffer;
  ASSERT_EQ(parse_example(payload, example, buffer), "");
  EXPECT_EQ(text_of(example.encoded), text_of(fake_image(33)));
  EXPECT_EQ(example.label, 1000);
  EXPECT_EQ(buffer.boxes, kBoxes);
  // The next one has no boxes.
  const Bytes second = payload_of(34, 2);
  ASSERT_EQ(parse_example(second, example, buffer), "");
  EXPECT_TRUE(buffer.boxes.empty());
}

TEST(ExampleTest, NumbersMayBePackedOrNot) {
  const std::string packed =
      nested(1, kEncoded + entry("image/class/label", nested(3, nested(1, "\x07"))));
  const std::string single =
      nested(1, kEncoded + entry("image/class/label", nested(3, std::string("\x08\x07"))));
  for (const std::string& payload : {packed, single}) {
    Example example;
    ReadBuffer buffer;
    EXPECT_EQ(parse_example(bytes_of(payload), example, buffer), "");
    EXPECT_EQ(example.label, 7);
    std::int64_t label = 0;
    EXPECT_EQ(label_problem_of(bytes_of(payload), label), "");
    EXPECT_EQ(label, 7);
  }
}

TEST(ExampleTest, FieldsInAnyOrderAndUnknownOnes) {
  const std::string label = entry("image/class/label", nested(3, nested(1, "\x07")));
  const std::string value_first =
      nested(1, nested(2, nested(3, nested(1, "\x07"))) + nested(1, "image/class/label"));
  const std::string unknown = nested(9, "whatever") + std::string("\x50\x01", 2);
  for (const std::string& features :
       {label + kEncoded, kEncoded + value_first, unknown + label + unknown + kEncoded + unknown}) {
    Example example;
    ReadBuffer buffer;
    const Bytes payload = bytes_of(unknown + nested(1, features));
    EXPECT_EQ(parse_example(payload, example, buffer), "");
    EXPECT_EQ(example.label, 7);
    EXPECT_EQ(text_of(example.encoded), "jpeg");
  }
}

TEST(ExampleTest, SaysWhatIsMissingOrWrong) {
  using Features = google::protobuf::Map<std::string, Feature>;
  EXPECT_EQ(problem_after([](Features& f) { f.erase("image/encoded"); }),
            "image/encoded is missing");
  EXPECT_EQ(problem_after([](Features& f) { f.erase("image/class/label"); }),
            "image/class/label is missing");
  EXPECT_EQ(problem_after(
                [](Features& f) { f["image/class/label"].mutable_bytes_list()->add_value("7"); }),
            "image/class/label contains bytes, expected integers");
  EXPECT_EQ(
      problem_after([](Features& f) { f["image/encoded"].mutable_int64_list()->add_value(7); }),
      "image/encoded contains integers, expected bytes");
  EXPECT_EQ(
      problem_after([](Features& f) { f["image/class/label"].mutable_int64_list()->add_value(8); }),
      "image/class/label contains 2 values, expected one");
  EXPECT_EQ(
      problem_after([](Features& f) { f["image/encoded"].mutable_bytes_list()->clear_value(); }),
      "image/encoded contains 0 values, expected one");
  EXPECT_EQ(problem_after([](Features& f) {
              for (int i = 0; i < 70; ++i) f[std::to_string(i)].mutable_int64_list();
            }),
            "the tf.Example has more than 64 features");
  EXPECT_EQ(problem_after([](Features& f) { f[std::string(257, 'x')].mutable_int64_list(); }),
            "the name of a feature has 257 bytes; the limit is 256");
}

TEST(ExampleTest, BoxesMustFitTogetherAndIntoTheImage) {
  using Features = google::protobuf::Map<std::string, Feature>;
  const auto set = [](Features& f, const char* side, float value) {
    f[std::string("image/object/bbox/") + side].mutable_float_list()->set_value(0, value);
  };
  EXPECT_EQ(problem_after([](Features& f) {
              f["image/object/bbox/xmin"].mutable_float_list()->add_value(0.5f);
            }),
            "image/object/bbox has 2 ymin, 3 xmin, 2 ymax and 2 xmax; the numbers must be equal");
  for (const float bad : {-0.1f, 0.9f, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()})
    EXPECT_TRUE(problem_after([&](Features& f) {
                  set(f, "ymin", bad);
                }).starts_with("box 0 of image/object/bbox is not inside the image: y "))
        << bad;
  EXPECT_NE(problem_after([&](Features& f) { set(f, "xmax", 1.01f); }), "");
  EXPECT_NE(problem_after([&](Features& f) {
              f["image/object/bbox/xmax"].mutable_int64_list()->add_value(1);
            }),
            "");
  EXPECT_EQ(problem_after([](Features& f) {
              for (int i = 0; i < 1023; ++i)
                f["image/object/bbox/xmin"].mutable_float_list()->add_value(0.5f);
            }),
            "image/object/bbox/xmin has more than 1024 values");
}

TEST(ExampleTest, NamesOfBoxesMayComeLast) {
  const auto side = [](const char* name, float value) {
    std::array<char, 4> bits{};
    std::memcpy(bits.data(), &value, bits.size());
    const std::string list = nested(2, nested(1, std::string(bits.data(), bits.size())));
    return nested(1, nested(2, list) + nested(1, std::string("image/object/bbox/") + name));
  };
  const std::string label = entry("image/class/label", nested(3, nested(1, "\x07")));
  const Bytes payload =
      bytes_of(nested(1, kEncoded + label + side("ymin", 0.25f) + side("xmin", 0.5f) +
                             side("ymax", 0.75f) + side("xmax", 1.0f)));
  Example example;
  ReadBuffer buffer;
  ASSERT_EQ(parse_example(payload, example, buffer), "");
  EXPECT_EQ(buffer.boxes, (std::vector<ObjectBox>{{0.25f, 0.5f, 0.75f, 1.0f}}));
}

TEST(ExampleTest, EveryTruncatedPayloadIsRejected) {
  const Bytes payload = payload_of(3, 4, kBoxes);
  for (std::size_t size = 0; size < payload.size(); ++size) {
    const auto part = std::span(payload).first(size);
    EXPECT_NE(problem_of(part), "") << size;
    std::int64_t label = 0;
    EXPECT_EQ(label_problem_of(part, label).empty(), problem_of(part).empty()) << size;
  }
}

TEST(ExampleTest, HostileNestingEnds) {
  std::string groups(100'000, '\x0b');  // field 1, start of a group, repeated
  EXPECT_EQ(problem_of(bytes_of(groups)), "the record is not a tf.Example");
  std::string deep = "x";
  for (int i = 0; i < 1000; ++i) deep = nested(1, deep);
  EXPECT_NE(problem_of(bytes_of(deep)), "");
}

// Unknown groups are skipped up to a nesting depth of eight.
TEST(ExampleTest, UnknownGroupsNestEightDeep) {
  const std::string label = entry("image/class/label", nested(3, nested(1, "\x07")));
  const std::string known = nested(1, kEncoded + label);
  for (const std::size_t depth : {8u, 9u}) {
    const Bytes payload = bytes_of(std::string(depth, '\x0b') + std::string(depth, '\x0c') + known);
    const std::string expected = depth == 8 ? "" : "the record is not a tf.Example";
    EXPECT_EQ(problem_of(payload), expected) << depth;
    std::int64_t found = 0;
    EXPECT_EQ(label_problem_of(payload, found), expected) << depth;
    EXPECT_EQ(wire::Example().ParseFromArray(payload.data(), static_cast<int>(payload.size())),
              true)
        << depth;
  }
}

TEST(ExampleTest, ReadsWhatTensorFlowWrote) {
  const auto data = real_data("tfrecord_imagenet_photos");
  if (!data) GTEST_SKIP() << "no photos beside the project";
  const Bytes bytes = load(*data / "train-00000-of-00002");
  ByteWindow file(bytes, "photos");
  std::size_t count = 0;
  FrameWalk walk(file);
  for (Frame frame = walk.next(); frame.kind == Frame::Kind::Record; frame = walk.next(), ++count) {
    Example example;
    ReadBuffer buffer;
    const auto payload =
        std::span(bytes).subspan(frame.begin + kFrameHeadBytes, frame.payload_bytes());
    ASSERT_EQ(parse_example(payload, example, buffer), "");
    EXPECT_TRUE(example.label >= 1 && example.label <= 1000) << example.label;
    EXPECT_EQ(example.encoded[0], std::byte{0xff});
    EXPECT_EQ(example.encoded[1], std::byte{0xd8});
  }
  EXPECT_EQ(count, 50u);
}

}  // namespace
}  // namespace millrace::io
