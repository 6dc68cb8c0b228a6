// SPDX-License-Identifier: Apache-2.0
#include "io/data/record_frame.hpp"
#include "io/data/little_endian.hpp"
#include "shards.hpp"

namespace millrace::io {
namespace {

std::vector<Frame> frames_of(const fs::path& path, std::span<const std::uint64_t> known = {}) {
  ByteWindow file(path);
  std::vector<Frame> frames;
  FrameWalk walk(file, known);
  for (Frame frame = walk.next(); frame.kind != Frame::Kind::End; frame = walk.next())
    frames.push_back(frame);
  return frames;
}

/// Three records of 100, 0 and 3 bytes: frames at 0, 116 and 132, and the end at 151.
void write_three(const fs::path& path) {
  Shard shard;
  shard.append(Bytes(100, std::byte{7}));
  shard.append({});
  shard.append(bytes_of("abc"));
  shard.write(path);
}

struct RecordFrameTest : testing::Test {
  const TemporaryDirectory root;
};

TEST_F(RecordFrameTest, KnownBytes) {
  Bytes bytes;
  append_frame(bytes_of("123456789"), bytes);
  ASSERT_EQ(bytes.size(), 25u);
  EXPECT_EQ(load_little<std::uint64_t>(bytes.data()), 9u);
  // The CRC-32C of "123456789" is e3069283.
  EXPECT_EQ(load_little<std::uint32_t>(bytes.data() + 21),
            ((0xe3069283u >> 15) | (0xe3069283u << 17)) + 0xa282ead8u);
}

TEST_F(RecordFrameTest, ReadsWhatTensorFlowWrote) {
  const auto data = real_data("tfrecord_imagenet_format");
  if (!data) GTEST_SKIP() << "no shards of TensorFlow's beside the project";
  const fs::path path = *data / "train-00000-of-00008";
  const Bytes bytes = load(path);
  std::size_t count = 0;
  Bytes copy;
  for (const Frame& frame : frames_of(path)) {
    ASSERT_EQ(frame.kind, Frame::Kind::Record);
    const auto rest =
        std::span(bytes).subspan(frame.begin + kFrameHeadBytes, frame.payload_bytes() + 4);
    EXPECT_TRUE(payload_is_whole(rest));
    append_frame(rest.first(frame.payload_bytes()), copy);
    ++count;
  }
  EXPECT_EQ(count, 64u);
  EXPECT_EQ(copy, bytes);
}

TEST_F(RecordFrameTest, WalksOverEveryRecord) {
  write_three(root / "a");
  const auto frames = frames_of(root / "a");
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0].payload_bytes(), 100u);
  EXPECT_EQ(frames[1].begin, 116u);
  EXPECT_EQ(frames[1].payload_bytes(), 0u);
  EXPECT_EQ(frames[2].begin, 132u);
  EXPECT_EQ(frames[2].end, 151u);
}

TEST_F(RecordFrameTest, ContinuesAfterADamagedLength) {
  const fs::path path = root / "a";
  for (std::uint64_t byte = 0; byte < kFrameHeadBytes; ++byte) {
    write_three(path);
    flip_byte(path, byte);
    const auto frames = frames_of(path);
    ASSERT_EQ(frames.size(), 3u) << byte;
    EXPECT_EQ(frames[0].kind, Frame::Kind::Damage);
    EXPECT_EQ(frames[0].problem, "record length checksum mismatch");
    EXPECT_EQ(frames[0].end, 116u);
    EXPECT_EQ(frames[1].kind, Frame::Kind::Record);
    EXPECT_EQ(frames_of(path, std::vector<std::uint64_t>{0, 116, 132}).size(), 3u);
    // Known offsets are used only if a record begins there.
    EXPECT_EQ(frames_of(path, std::vector<std::uint64_t>{0, 50, 140}).size(), 3u);
  }
}

/// Writes a header at `offset` of `bytes` whose record extends to 100 bytes before the end of the
/// file.
void put_false_head(Bytes& file, std::size_t offset) {
  const std::uint64_t length = file.size() - offset - kFrameBytes - 100;
  store_little(length, file.data() + offset);
  const auto head = std::span(file).subspan(offset, 8);
  store_little(masked_crc32c(head), file.data() + offset + 8);
}

// If headers are valid and their payloads are not, each header makes the reader read the whole
// rest.
TEST_F(RecordFrameTest, TheSearchIsBounded) {
  constexpr std::size_t kHeads = 40;
  constexpr std::size_t kApart = 20;
  for (const bool are_known : {false, true}) {
    for (const std::size_t heads : {std::size_t{2}, kHeads}) {
      write_three(root / "a");
      const Bytes three = load(root / "a");
      Bytes file(10000, std::byte{1});
      std::vector<std::uint64_t> known;
      for (std::size_t i = 1; i <= heads; ++i) {
        put_false_head(file, i * kApart);
        if (are_known) known.push_back(i * kApart);
      }
      const std::uint64_t whole = file.size();
      if (are_known) known.push_back(whole);
      file.insert(file.end(), three.begin(), three.end());
      store(root / "b", file);
      const auto frames = frames_of(root / "b", known);
      EXPECT_EQ(frames[0].kind, Frame::Kind::Damage);
      const bool gives_up = heads == kHeads;
      EXPECT_EQ(frames.size(), gives_up ? 1u : 4u);
      EXPECT_EQ(frames[0].end, gives_up ? file.size() : whole);
      EXPECT_EQ(frames[0].problem.find("the rest of the file is left out") != std::string::npos,
                gives_up)
          << frames[0].problem;
    }
  }
}

TEST_F(RecordFrameTest, EveryCutIsFound) {
  const fs::path path = root / "a";
  for (std::uint64_t size = 0; size < 151; ++size) {
    write_three(path);
    cut(path, size);
    const auto frames = frames_of(path);
    const bool between = size == 0 || size == 116 || size == 132;
    const std::size_t whole = size < 116 ? 0 : size < 132 ? 1 : 2;
    ASSERT_EQ(frames.size(), whole + (between ? 0 : 1)) << size;
    if (between) continue;
    EXPECT_EQ(frames.back().kind, Frame::Kind::Damage) << size;
    EXPECT_NE(frames.back().problem.find("the file is truncated"), std::string::npos) << size;
    EXPECT_EQ(frames.back().end, size);
  }
}

/// The head of a record of so many bytes, in front of these.
Bytes with_head(std::uint64_t length, const Bytes& behind) {
  Bytes bytes(kFrameHeadBytes);
  store_little(length, bytes.data());
  store_little(masked_crc32c(std::span(bytes).first(8)), bytes.data() + 8);
  bytes.insert(bytes.end(), behind.begin(), behind.end());
  return bytes;
}

TEST_F(RecordFrameTest, LengthIsCheckedBeforeItIsUsed) {
  const fs::path path = root / "a";
  for (const std::uint64_t length :
       {kMaxRecordBytes + 1, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    store(path, with_head(length, Bytes(40)));
    const auto frames = frames_of(path);
    ASSERT_EQ(frames.size(), 1u);
    test::expect_in(frames[0].problem, {std::to_string(length)});
  }
  // The file is long enough for the record, but the record exceeds the limit.
  write_three(path);
  const Bytes three = load(path);
  for (const std::uint64_t length : {kMaxRecordBytes, kMaxRecordBytes + 1}) {
    store(path, with_head(length, three));
    fs::resize_file(path, kMaxRecordBytes + 1000);  // sparse
    ByteWindow file(path);
    const Frame frame = FrameWalk(file).next();
    const bool allowed = length == kMaxRecordBytes;
    EXPECT_EQ(frame.kind, allowed ? Frame::Kind::Record : Frame::Kind::Damage);
    EXPECT_EQ(frame.end, allowed ? length + kFrameBytes : kFrameHeadBytes);
    EXPECT_EQ(frame.problem,
              allowed ? "" : "a record of 67108865 bytes exceeds the limit of 67108864");
  }
}

// The first file is what Python's gzip makes of 15 bytes. The second is a record whose length,
// 559,903, is the bytes with which such files begin.
TEST_F(RecordFrameTest, GzipIsKnownByTheFirstBytes) {
  const fs::path path = root / "train-00000-of-00001";
  store(path, std::string_view("\x1f\x8b\x08\0\0\0\0\0\x02\x03\x63\x66\x80\0\x03\x43\x23\xe3"
                               "\xc4\xa4\x64\0\xbd\x3c\xf1\x52\x0f\0\0\0",
                               30));
  ByteWindow compressed(path);
  expect_error(ErrorKind::Data, {path.string() + ": is compressed with GZIP", "gunzip"},
               [&] { refuse_gzip(compressed); });
  Shard shard;
  shard.append(Bytes(559'903, std::byte{7}));
  shard.write(root / "long");
  ByteWindow records(root / "long");
  EXPECT_EQ(records.at(0, 3)[1], std::byte{0x8b});
  EXPECT_NO_THROW(refuse_gzip(records));
}

}  // namespace
}  // namespace millrace::io
