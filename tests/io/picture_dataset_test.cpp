// SPDX-License-Identifier: Apache-2.0
//
// Data sets of images: all ways of reading give the same pixels, and bad images are replaced.
#include "io/picture_dataset.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "io/prefetch.hpp"
#include "tests/io/images/pictures.hpp"

namespace millrace::io {
namespace {

constexpr std::int32_t kSide = 24;
constexpr std::int32_t kClasses = 3;

/// Images in memory; image i has class i % kClasses.
class MemorySource final : public EncodedSource {
 public:
  explicit MemorySource(std::int64_t pictures) {
    for (std::int64_t i = 0; i < pictures; ++i)
      files.push_back(encode_jpeg(make_picture(40 + static_cast<std::int32_t>(i), 33)));
  }
  [[nodiscard]] std::string name() const override { return "memory"; }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(files); }
  [[nodiscard]] std::int64_t classes() const override { return kClasses; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return static_cast<std::int32_t>(index % kClasses);
  }
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override {
    return files[static_cast<std::size_t>(index)].size();
  }
  [[nodiscard]] std::uint32_t fingerprint() const override { return 1; }
  EncodedImage read(std::int64_t index, ReadBuffer&) const override {
    if (index == unreadable) fail(ErrorKind::Data, "{}: data checksum mismatch", where(index));
    return {.bytes = files[static_cast<std::size_t>(index)], .boxes = {}};
  }
  [[nodiscard]] std::string where(std::int64_t index) const override {
    return "picture " + std::to_string(index);
  }
  [[nodiscard]] std::span<const std::string> notices() const override { return {}; }

  std::vector<Bytes> files;
  std::int64_t unreadable = -1;
};

PictureOptions options() { return {.preset = image_preset("tf"), .side = kSide, .report = {}}; }

using Pixels = std::vector<std::uint8_t>;

Pixels pixels_of(const Dataset& set, std::int64_t index, const ReadKey& key) {
  Pixels image(static_cast<std::size_t>(set.image_shape().elements()));
  PixelScaling scaling;
  (void)set.read_bytes(index, key, image, scaling);
  return image;
}

constexpr ReadKey kTraining{.seed = 7, .epoch = 2, .augment = true};

TEST(PictureDatasetTest, DrawsAreAFunctionOfSeedEpochAndIndex) {
  const auto set = make_picture_dataset(std::make_shared<MemorySource>(6), options());
  const Pixels image = pixels_of(*set, 4, kTraining);
  EXPECT_EQ(pixels_of(*set, 4, kTraining), image);
  EXPECT_NE(pixels_of(*set, 4, {.seed = 7, .epoch = 3, .augment = true}), image);
  EXPECT_NE(pixels_of(*set, 4, {.seed = 8, .epoch = 2, .augment = true}), image);
  const Pixels seen = pixels_of(*set, 4, {.seed = 7, .epoch = 2, .augment = false});
  EXPECT_EQ(pixels_of(*set, 4, {.seed = 9, .epoch = 5, .augment = false}), seen);
  EXPECT_NE(seen, image);
}

TEST(PictureDatasetTest, CopiesWithOtherBytesAreDetected) {
  const auto content = [](const std::shared_ptr<MemorySource>& source) {
    const auto set = make_picture_dataset(source, options());
    EXPECT_EQ(describe(*set), "memory, 6 images, crc32c 00000001");
    return describe_content(*set);
  };
  const auto source = std::make_shared<MemorySource>(6);
  const std::string before = content(source);
  EXPECT_EQ(content(std::make_shared<MemorySource>(6)), before);
  std::swap(source->files[3], source->files[4]);
  EXPECT_NE(content(source), before);
  std::swap(source->files[3], source->files[4]);
  source->unreadable = 5;  // reported when it is read
  EXPECT_NE(content(source), before);
}

TEST(PictureDatasetTest, HostAndDeviceNormaliseAlike) {
  const auto set = make_picture_dataset(std::make_shared<MemorySource>(2), options());
  const auto n = static_cast<std::size_t>(set->image_shape().elements());
  Pixels bytes(n);
  PixelScaling scaling;
  EXPECT_EQ(set->read_bytes(1, kTraining, bytes, scaling), Sample::Own);
  std::vector<float> expected(n);
  normalise_bytes(bytes, scaling, set->image_shape(), expected);
  std::vector<float> image(n);
  EXPECT_EQ(set->read(1, kTraining, image), Sample::Own);
  EXPECT_EQ(image, expected);
  std::vector<bfloat16> rounded(n);
  std::vector<float> scratch(n);
  EXPECT_EQ(set->read_rounded(1, kTraining, scratch, rounded), Sample::Own);
  for (std::size_t i = 0; i < n; ++i)
    ASSERT_EQ(to_float(rounded[i]), to_float(to_bfloat16(expected[i]))) << i;
}

// Label and crop stay: the next image of class 1 is cropped like image 1.
TEST(PictureDatasetTest, TheNextOfItsClassStandsInForABadPicture) {
  auto source = std::make_shared<MemorySource>(9);
  source->files[1].resize(source->files[1].size() / 2);
  source->files[8] = Bytes(100, std::byte{1});
  PictureOptions telling = options();
  std::vector<std::string> reported;
  telling.report = [&](const std::string& what) { reported.push_back(what); };
  const auto set = make_picture_dataset(source, telling);

  auto mended = std::make_shared<MemorySource>(9);
  mended->files[1] = mended->files[4];
  mended->files[8] = mended->files[2];  // after the last image of a class comes the first
  const auto expected = make_picture_dataset(mended, options());
  const ReadKey whole{.seed = 0, .epoch = 0, .augment = false};
  for (const std::int64_t index : {1, 8, 1, 8}) {
    EXPECT_EQ(pixels_of(*set, index, whole), pixels_of(*expected, index, whole)) << index;
    EXPECT_EQ(pixels_of(*set, 8, kTraining), pixels_of(*expected, 8, kTraining));
  }
  EXPECT_EQ(set->replaced(), reported);
  ASSERT_EQ(reported.size(), 2U);
  EXPECT_TRUE(reported[0].starts_with("picture 1: ")) << reported[0];
  EXPECT_TRUE(reported[1].starts_with("picture 8: ")) << reported[1];
}

TEST(PictureDatasetTest, ThePlaceOfABadPictureIsNamedOnce) {
  auto source = std::make_shared<MemorySource>(9);
  source->unreadable = 3;
  PictureOptions telling = options();
  std::vector<std::string> reported;
  telling.report = [&](const std::string& what) { reported.push_back(what); };
  const auto set = make_picture_dataset(source, telling);
  (void)pixels_of(*set, 3, kTraining);
  EXPECT_EQ(reported, std::vector<std::string>{"picture 3: data checksum mismatch"});
  EXPECT_EQ(set->replaced(), reported);
}

TEST(PictureDatasetTest, AClassWithoutAGoodPictureEndsTheRun) {
  auto source = std::make_shared<MemorySource>(6);
  source->files[2].clear();
  source->files[5].clear();
  const auto set = make_picture_dataset(source, options());
  try {
    (void)pixels_of(*set, 5, {});
    ADD_FAILURE() << "nothing stands in";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 3);
    EXPECT_STREQ(error.what(),
                 "picture 5: no image of class 2 can be decoded, so none can replace this one: "
                 "repair one, or leave the class out");
  }
}

/// All batches of an epoch from the loader.
std::vector<std::byte> epoch_of(const std::shared_ptr<const Dataset>& set, int threads) {
  Loader loader(set, SampleOrder::shuffled(3, set->size()),
                {.batch_size = 4,
                 .type = DType::BF16,
                 .threads = threads,
                 .seed = 3,
                 .augment = true,
                 .end_position = 2 * set->size()});
  std::vector<std::byte> all;
  while (const Batch* batch = loader.next())
    all.insert(all.end(), batch->images.begin(), batch->images.end());
  return all;
}

// Every read reports a stand-in, regardless of earlier reads, and batches count it.
TEST(PictureDatasetTest, StandInsAreReportedAndCounted) {
  auto source = std::make_shared<MemorySource>(12);
  source->files[3].clear();
  source->files[7].clear();
  const auto set = make_picture_dataset(source, options());
  std::vector<float> image(static_cast<std::size_t>(set->image_shape().elements()));
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(set->read(3, kTraining, image), Sample::StandIn);
    EXPECT_EQ(set->read(6, kTraining, image), Sample::Own);  // although it stands in for 3
  }
  for (const int threads : {0, 3})
    for (const DType type : {DType::F32, DType::BF16, DType::F16, DType::U8}) {
      Loader loader(set, SampleOrder::sequential(set->size()),
                    {.batch_size = 4, .type = type, .threads = threads, .end_position = 12});
      std::vector<std::int64_t> counts;
      while (const Batch* batch = loader.next()) counts.push_back(batch->stand_ins);
      EXPECT_EQ(counts, (std::vector<std::int64_t>{1, 1, 0}));
      EXPECT_EQ(loader.stand_ins(), 2);
    }
}

TEST(PictureDatasetTest, ThreadsChangeNothing) {
  auto source = std::make_shared<MemorySource>(13);
  source->files[6].clear();
  const auto set = make_picture_dataset(source, options());
  const std::vector<std::byte> one = epoch_of(set, 0);
  EXPECT_EQ(epoch_of(set, 1), one);
  EXPECT_EQ(epoch_of(set, 4), one);
}

}  // namespace
}  // namespace millrace::io
