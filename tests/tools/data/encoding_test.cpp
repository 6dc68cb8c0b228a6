// SPDX-License-Identifier: Apache-2.0
//
// What the tools write: JPEGs, tf.Examples and files of records.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "example.pb.h"
#include "io/images/reader.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/io/records/shards.hpp"
#include "tools/data/image_codec.hpp"
#include "tools/data/write_records.hpp"

namespace millrace::io {
namespace {

// At quality 100 only the color conversion rounds: a few levels at most.
TEST(EncoderTest, WhatIsWrittenIsReadBackAlmostEqual) {
  const Image image = make_image(61, 43);
  const std::vector<std::byte> file = encode_rgb_jpeg(image.view(), 100);
  const ImageHeader header = read_header(file);
  EXPECT_EQ(header.width, 61);
  EXPECT_EQ(header.height, 43);
  EXPECT_EQ(header.colours, ColourSpace::YCbCr);
  EXPECT_FALSE(header.progressive);
  ImageDecoder decoder;
  const Image back = copy_of(decode(decoder, file).view);
  ASSERT_EQ(back.bytes.size(), image.bytes.size());
  for (std::size_t i = 0; i < back.bytes.size(); ++i)
    ASSERT_LE(std::abs(back.bytes[i] - image.bytes[i]), 4) << i;
  EXPECT_EQ(encode_rgb_jpeg(image.view(), 100), file);
}

const std::vector<ObjectBox> kBoxes = {{0.1f, 0.2f, 0.5f, 0.75f}, {0.0f, 0.0f, 1.0f, 1.0f}};

// Shards that are converted again are the same files.
TEST(WriteExampleTest, WritesTheConvertersKeysAsProtobufDoes) {
  for (const std::vector<ObjectBox>& boxes : {kBoxes, {}}) {
    const Bytes image = fake_image(7);
    Bytes payload;
    write_example({.encoded = image,
                   .height = 3,
                   .width = 4,
                   .label = -1,
                   .synset = "n00000001",
                   .filename = "n00000007.JPEG",
                   .boxes = boxes},
                  payload);
    EXPECT_EQ(payload, payload_of(7, -1, boxes)) << "what the tests of the reader read";
    wire::Example message;
    ASSERT_TRUE(message.ParseFromArray(payload.data(), static_cast<int>(payload.size())));
    std::string bytes;
    {
      google::protobuf::io::StringOutputStream stream(&bytes);
      google::protobuf::io::CodedOutputStream out(&stream);
      out.SetSerializationDeterministic(true);  // sorts the map by name
      ASSERT_TRUE(message.SerializeToCodedStream(&out));
    }
    EXPECT_EQ(text_of(payload), bytes);
  }
}

TEST(RecordWriterTest, WritesTheFramesOfItsPayloads) {
  const TemporaryDirectory root;
  RecordWriter writer(root / "a");
  Shard expected;
  for (const std::size_t bytes : {100u, 0u, 3u}) {
    writer.append(Bytes(bytes, std::byte{7}));
    expected.append(Bytes(bytes, std::byte{7}));
    EXPECT_EQ(writer.bytes(), expected.bytes());
  }
  writer.commit();
  expected.write(root / "b");
  EXPECT_EQ(load(root / "a"), load(root / "b"));
}

TEST(RecordWriterTest, LeavesAWholeFileOrNone) {
  const TemporaryDirectory root;
  {
    RecordWriter writer(root / "a");
    writer.append(bytes_of("abc"));
    EXPECT_FALSE(fs::exists(root / "a"));
  }
  EXPECT_TRUE(fs::is_empty(root.path()));
  RecordWriter writer(root / "b");
  expect_error(ErrorKind::Data, {"67108865 bytes", "67108864"},
               [&] { writer.append(Bytes(kMaxRecordBytes + 1)); });
}

}  // namespace
}  // namespace millrace::io
