// SPDX-License-Identifier: Apache-2.0
#include "io/data/packed_images.hpp"
#include "core/crc32c.hpp"
#include "io/data/dataset_kinds.hpp"
#include "io/data/little_endian.hpp"
#include "tests/io/records/shards.hpp"
#include "tools/data/pack.hpp"

namespace millrace::io {
namespace {

/// A fake: the height is `shorter_side`, the width is the file's length, and the pixels are the
/// file's bytes.
void shrink(std::span<const std::byte> file, std::int32_t shorter_side, PixelBuffer& out) {
  if (text_of(file).find("image 13") != std::string::npos) fail(ErrorKind::Data, "unlucky");
  out.height = shorter_side;
  out.width = static_cast<std::int32_t>(file.size());
  out.pixels.resize(std::size_t{3} * static_cast<std::size_t>(out.height) * file.size());
  for (std::size_t i = 0; i < out.pixels.size(); ++i) out.pixels[i] = file[i % file.size()];
}

PackOptions options_for(unsigned threads) {
  PackOptions options;
  options.shorter_side = 4;
  options.threads = threads;
  options.shrink = shrink;
  return options;
}

const std::vector<ObjectBox> kBoxes = {{0.1f, 0.2f, 0.3f, 0.4f}, {0.5f, 0.5f, 1.0f, 1.0f}};

std::unique_ptr<ImageDataset> source_of(const fs::path& root, std::size_t images) {
  Shard shard;
  for (std::size_t i = 0; i < images; ++i)
    shard.append(payload_of(i, 1 + static_cast<std::int64_t>(i % 5),
                            i % 3 == 0 ? std::span(kBoxes) : std::span<const ObjectBox>()));
  shard.write(root / "train-00000-of-00001");
  OpenOptions options;
  options.classes = 5;
  return open_image_dataset(root, Split::Train, options);
}

struct PackedImagesTest : testing::Test {
  /// A file of three images.
  [[nodiscard]] Bytes three() const {
    (void)write_packed_images(*source_of(root.path(), 3), root / "packed", options_for(1));
    return load(root / "packed");
  }
  const TemporaryDirectory root;
};

TEST_F(PackedImagesTest, HoldsWhatTheSourceHad) {
  const auto source = source_of(root.path(), 12);
  const fs::path path = root / "packed";
  const PackReport report = write_packed_images(*source, path, options_for(2));
  EXPECT_EQ(report.images, 12);
  EXPECT_EQ(report.bytes, fs::file_size(path));
  const PackedImages packed(path);
  ReadBuffer buffer;
  ASSERT_EQ(packed.size(), 12);
  EXPECT_EQ(packed.classes(), 5);
  EXPECT_EQ(packed.shorter_side(), 4);
  EXPECT_EQ(packed.fingerprint(), source->fingerprint());
  std::uint64_t largest = 0;
  for (std::int64_t i = 0; i < 12; ++i) largest = std::max(largest, packed.stored_bytes(i));
  EXPECT_GT(largest, 0u);
  EXPECT_EQ(packed.reading_bytes(2),
            2 * (static_cast<std::int64_t>(largest) + packed.image_shape().elements()));
  for (std::int64_t i = 0; i < 12; ++i) {
    const auto number = static_cast<std::size_t>(i);
    PixelBuffer expected;
    shrink(fake_image(number), 4, expected);
    const StoredImage image = packed.stored(i, buffer);
    EXPECT_EQ(image.height, expected.height);
    EXPECT_EQ(image.width, expected.width);
    EXPECT_TRUE(std::ranges::equal(image.bytes, expected.pixels));
    EXPECT_EQ(packed.label(i), i % 5);
    EXPECT_EQ(std::vector(image.boxes.begin(), image.boxes.end()),
              i % 3 == 0 ? kBoxes : std::vector<ObjectBox>());
  }
}

TEST_F(PackedImagesTest, BadImagesAreLeftOutInOrderWithAnyNumberOfThreads) {
  const auto source = source_of(root.path(), 20);
  std::vector<Bytes> files;
  for (const unsigned threads : {1u, 3u}) {
    PackOptions options = options_for(threads);
    options.max_bad_fraction = 0.1;
    std::vector<std::string> named;
    options.report_bad = [&](const std::string& problem) { named.push_back(problem); };
    options.shrink = [](std::span<const std::byte> file, std::int32_t side, PixelBuffer& out) {
      shrink(file, side, out);
      if (text_of(file).find("image 17") != std::string::npos) out.width = 16'385;
    };
    const PackReport report = write_packed_images(*source, root / "packed", options);
    EXPECT_EQ(report.images, 18);
    EXPECT_EQ(report.bad, 2);
    ASSERT_EQ(named.size(), 2u);
    test::expect_in(named[0], {"record 13 at offset"});
    test::expect_in(named[1], {"4 x 16385 pixels"});
    files.push_back(load(root / "packed"));
  }
  EXPECT_EQ(files[0], files[1]);
  const PackedImages packed(root / "packed");
  ASSERT_EQ(packed.size(), 18);
  for (std::int64_t i = 0; i < 18; ++i)
    EXPECT_EQ(packed.label(i), (i + (i >= 13 ? 1 : 0) + (i >= 16 ? 1 : 0)) % 5) << i;
}

TEST_F(PackedImagesTest, SizesAreBounded) {
  EXPECT_EQ(packed_size(500, 375, 256), (ImageSize{.height = 341, .width = 256}));
  EXPECT_EQ(packed_size(1, 1, 256), (ImageSize{.height = 256, .width = 256}));
  EXPECT_EQ(packed_size(1, 64, 256), (ImageSize{.height = 256, .width = 16'384}));
  expect_error(ErrorKind::Data, {"256 x 16640"}, [] { (void)packed_size(1, 65, 256); });
  expect_error(ErrorKind::Data, {"4194304 x 256"}, [] { (void)packed_size(16'384, 1, 256); });
}

TEST_F(PackedImagesTest, EveryFlippedByteIsFound) {
  const Bytes good = three();
  const PackedImages whole(good, "whole");
  ReadBuffer buffer;
  // Bytes between images belong to none.
  std::vector<bool> matters(good.size(), true);
  std::size_t end = 64;
  for (std::int64_t i = 0; i < 3; ++i) {
    const StoredImage image = whole.stored(i, buffer);
    const auto begin = static_cast<std::size_t>(image.bytes.data() - good.data());
    for (; end < begin; ++end) matters[end] = false;
    end = begin + (image.bytes.size() + 3) / 4 * 4 + image.boxes.size_bytes();
  }
  const auto table = load_little<std::uint64_t>(good.data() + 32);
  for (; end < table; ++end) matters[end] = false;
  for (std::size_t at = 0; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= std::byte{0x20};
    bool found = false;
    try {
      const PackedImages packed(bad, "bad");
      for (std::int64_t i = 0; i < packed.size(); ++i) (void)packed.stored(i, buffer);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Data);
      found = true;
    }
    ASSERT_EQ(found, matters[at]) << at;
  }
  for (std::size_t size = 0; size < good.size(); ++size)
    expect_error(ErrorKind::Data, {"cut.packed: "}, [&] {
      const auto part = std::span(good).first(size);
      const PackedImages packed(part, "cut.packed");
    });
}

TEST_F(PackedImagesTest, AFileTruncatedDuringReadingIsAnError) {
  (void)three();
  const fs::path path = root / "packed";
  const PackedImages packed(path);
  fs::resize_file(path, 100);
  ReadBuffer buffer;
  expect_error(ErrorKind::Data, {"packed"}, [&] { (void)packed.stored(2, buffer); });
}

TEST_F(PackedImagesTest, ATableWithACorrectChecksumIsStillChecked) {
  const Bytes good = three();
  const auto table = static_cast<std::size_t>(load_little<std::uint64_t>(good.data() + 32));
  for (const std::size_t field : {0u, 6u, 11u, 15u, 19u, 23u}) {
    Bytes bad = good;
    bad[table + field] ^= std::byte{0x41};
    store_little(crc32c(std::span(bad).subspan(table, 96)), bad.data() + table + 96);
    expect_error(ErrorKind::Data, {"image 0 of "}, [&] { const PackedImages p(bad, "bad"); });
  }
}

TEST_F(PackedImagesTest, ClassesAndBoxesWithCorrectChecksumsAreStillChecked) {
  Bytes classes = three();
  Bytes box = classes;
  store_little(std::uint64_t{1} << 40, classes.data() + 24);
  store_little(crc32c(std::span(classes).first(60)), classes.data() + 60);
  expect_error(ErrorKind::Data, {"1099511627776 classes exceed the limit of 1000000"},
               [&] { const PackedImages p(classes, "bad"); });
  // The first of two boxes of image 0.
  const auto table = static_cast<std::size_t>(load_little<std::uint64_t>(box.data() + 32));
  const auto begin = static_cast<std::size_t>(load_little<std::uint64_t>(box.data() + table));
  const auto bytes = static_cast<std::size_t>(PackedImages(box, "good").stored_bytes(0));
  store_little(std::uint32_t{0x7fc00000}, box.data() + begin + bytes - 2 * sizeof(ObjectBox));
  store_little(crc32c(std::span(box).subspan(begin, bytes)), box.data() + table + 24);
  store_little(crc32c(std::span(box).subspan(table, 96)), box.data() + table + 96);
  const PackedImages packed(box, "bad");
  ReadBuffer buffer;
  expect_error(ErrorKind::Data, {"bad, image 0 at offset 64: a box is not inside"},
               [&] { (void)packed.stored(0, buffer); });
  EXPECT_EQ(packed.stored(1, buffer).height, 4);
}

TEST_F(PackedImagesTest, OptionsOutOfRange) {
  const auto source = source_of(root.path(), 3);
  PackOptions options = options_for(1);
  options.shorter_side = 0;
  expect_error(ErrorKind::Config, {"0 pixels"},
               [&] { (void)write_packed_images(*source, root / "packed", options); });
}

}  // namespace
}  // namespace millrace::io
