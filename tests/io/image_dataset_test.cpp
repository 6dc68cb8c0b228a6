// SPDX-License-Identifier: Apache-2.0
//
// Data sets of images: samples are functions of their keys, bad images are replaced, and
// images may stay in memory.
#include "io/data/image_dataset.hpp"

#include <thread>

#include "core/error.hpp"
#include "io/data/class_names.hpp"
#include "io/data/dataset_kinds.hpp"
#include "io/data/loader.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/io/samples.hpp"
#include "tests/support/test.hpp"

namespace millrace::io {
namespace {

constexpr std::int32_t kSide = 24;
constexpr std::int32_t kClasses = 3;

/// Images in memory; image i has class i % kClasses.
class MemoryImages final : public ImageDataset {
 public:
  explicit MemoryImages(std::int64_t images) {
    for (std::int64_t i = 0; i < images; ++i)
      files.push_back(encode_jpeg(make_image(40 + static_cast<std::int32_t>(i), 33)));
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
  StoredImage stored(std::int64_t index, ReadBuffer&) const override {
    ++reads;
    if (index == unreadable) fail(ErrorKind::Data, "{}: data checksum mismatch", where(index));
    return {.bytes = files[static_cast<std::size_t>(index)], .boxes = {}};
  }
  [[nodiscard]] std::string where(std::int64_t index) const override {
    return "image " + std::to_string(index);
  }

  std::vector<Bytes> files;
  std::int64_t unreadable = -1;
  mutable std::atomic<std::int64_t> reads = 0;
};

std::shared_ptr<MemoryImages> images_of(std::int64_t images, const ReportBad& report = {}) {
  auto set = std::make_shared<MemoryImages>(images);
  set->prepare_for({.preset = image_preset("tf"), .side = kSide, .report = report});
  return set;
}

using Pixels = std::vector<std::uint8_t>;

Pixels pixels_of(const Dataset& set, std::int64_t index, const ReadKey& key) {
  Pixels image(static_cast<std::size_t>(set.image_shape().elements()));
  PixelScaling scaling;
  (void)set.read(index, key, image, scaling);
  return image;
}

constexpr ReadKey kTraining{.seed = 7, .epoch = 2, .augment = true};

TEST(ImageDatasetTest, AugmentationFollowsCropAndMirror) {
  const auto set = images_of(6);
  const Pixels cropped = pixels_of(*set, 4, kTraining);
  const Pixels seen = pixels_of(*set, 4, {});
  const Augmentation augmentation{.operations = 2, .magnitude = 9, .erasing = 1.0, .hue = 0.2};
  set->prepare_for(
      {.preset = image_preset("tf"), .side = kSide, .augmentation = augmentation, .report = {}});
  Pixels expected = cropped;
  Pixels scratch(expected.size());
  const DrawKey draw{.seed = kTraining.seed, .epoch = kTraining.epoch, .index = 4};
  augment_pixels(augmentation, draw, {.bytes = expected, .height = kSide, .width = kSide}, scratch);
  EXPECT_NE(expected, cropped);
  Pixels image(expected.size());
  PixelScaling scaling;
  (void)set->read(4, kTraining, image, scaling);
  EXPECT_EQ(image, expected);
  EXPECT_EQ(scaling.erased, draw_erased(augmentation, draw, kSide, kSide));
  EXPECT_NE(scaling.erased, PixelBox{});
  (void)set->read(4, {}, image, scaling);
  EXPECT_EQ(image, seen) << "validation is not augmented";
  EXPECT_EQ(scaling.erased, PixelBox{});
}

TEST(ImageDatasetTest, DrawsAreAFunctionOfSeedEpochAndIndex) {
  const auto set = images_of(6);
  const Pixels image = pixels_of(*set, 4, kTraining);
  EXPECT_EQ(pixels_of(*set, 4, kTraining), image);
  EXPECT_NE(pixels_of(*set, 4, {.seed = 7, .epoch = 3, .augment = true}), image);
  EXPECT_NE(pixels_of(*set, 4, {.seed = 8, .epoch = 2, .augment = true}), image);
  const Pixels seen = pixels_of(*set, 4, {.seed = 7, .epoch = 2, .augment = false});
  EXPECT_EQ(pixels_of(*set, 4, {.seed = 9, .epoch = 5, .augment = false}), seen);
  EXPECT_NE(seen, image);
}

TEST(ImageDatasetTest, CopiesWithOtherBytesAreDetected) {
  const auto set = images_of(6);
  EXPECT_EQ(describe(*set), "memory, 6 images, crc32c 00000001");
  const std::string before = describe_content(*set);
  EXPECT_EQ(describe_content(*images_of(6)), before);
  std::swap(set->files[3], set->files[4]);
  EXPECT_NE(describe_content(*set), before);
  std::swap(set->files[3], set->files[4]);
  set->unreadable = 5;  // reported when it is read
  EXPECT_NE(describe_content(*set), before);
}

// Label and crop stay: the next image of class 1 is cropped like image 1.
TEST(ImageDatasetTest, TheNextOfItsClassStandsInForABadImage) {
  std::vector<std::string> reported;
  const auto set = images_of(9, [&](const std::string& what) { reported.push_back(what); });
  set->files[1].resize(set->files[1].size() / 2);
  set->files[8] = Bytes(100, std::byte{1});
  set->unreadable = 3;  // its error names the place already

  const auto expected = images_of(9);
  expected->files[1] = expected->files[4];
  expected->files[8] = expected->files[2];  // after the last image of a class comes the first
  const ReadKey whole{.seed = 0, .epoch = 0, .augment = false};
  for (const std::int64_t index : {1, 8, 1, 8}) {
    EXPECT_EQ(pixels_of(*set, index, whole), pixels_of(*expected, index, whole)) << index;
    EXPECT_EQ(pixels_of(*set, 8, kTraining), pixels_of(*expected, 8, kTraining));
  }
  (void)pixels_of(*set, 3, whole);
  ASSERT_EQ(reported.size(), 3U);
  EXPECT_TRUE(reported[0].starts_with("image 1: ")) << reported[0];
  EXPECT_TRUE(reported[1].starts_with("image 8: ")) << reported[1];
  EXPECT_EQ(reported[2], "image 3: data checksum mismatch");
  std::ranges::sort(reported);
  EXPECT_EQ(set->replaced(), reported);
}

TEST(ImageDatasetTest, AClassWithoutAGoodImageEndsTheRun) {
  const auto set = images_of(6);
  set->files[2].clear();
  set->files[5].clear();
  expect_error(ErrorKind::Data,
               {"image 5: no image of class 2 can be decoded, so none can replace this one: "
                "repair one, or leave the class out"},
               [&] { (void)pixels_of(*set, 5, {}); });
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
TEST(ImageDatasetTest, StandInsAreReportedAndCounted) {
  const auto set = images_of(12);
  set->files[3].clear();
  set->files[7].clear();
  Pixels image(static_cast<std::size_t>(set->image_shape().elements()));
  PixelScaling scaling;
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(set->read(3, kTraining, image, scaling), Sample::StandIn);
    EXPECT_EQ(set->read(6, kTraining, image, scaling), Sample::Own);  // although it stands in for 3
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

TEST(ImageDatasetTest, NeitherThreadsNorMemoryChangeAnythingAndKeptImagesAreReadOnce) {
  const auto damaged = [] {
    const auto set = images_of(13);
    set->files[6].clear();
    return set;
  };
  const std::vector<std::byte> expected = epoch_of(damaged(), 0);
  for (const int threads : {0, 1, 4}) {
    EXPECT_EQ(epoch_of(damaged(), threads), expected);
    const auto kept = damaged();
    kept->keep_in_memory(1 << 30);
    EXPECT_EQ(epoch_of(kept, threads), expected);
    if (threads == 0) {
      EXPECT_EQ(kept->reads, 13);
    }
    const std::int64_t before = kept->reads;
    EXPECT_EQ(epoch_of(kept, threads), expected);
    EXPECT_EQ(kept->reads, before) << threads << " threads";
  }
}

TEST(ImageDatasetTest, MemoryIsBounded) {
  const auto set = images_of(13);
  set->keep_in_memory(1 << 30);
  const std::int64_t all = set->kept_bytes();
  std::int64_t stored = 0;
  for (const Bytes& file : set->files) stored += std::ssize(file);
  EXPECT_GT(all, stored);
  EXPECT_LT(all, stored + 13 * 256);
  const auto some = images_of(13);
  some->keep_in_memory(all / 2);
  EXPECT_EQ(some->kept_bytes(), all / 2);
  (void)epoch_of(some, 0);
  EXPECT_GT(some->reads, 13 + 4) << "what does not fit is read again";
  EXPECT_LT(some->reads, 26 - 4) << "what fits is not";
}

// ---- names of classes
// ----------------------------------------------------------------------------

TEST(ClassNamesTest, AreALineForEachClass) {
  const TemporaryDirectory folder;
  std::ofstream(folder / "names.txt") << "tench, Tinca tinca\n  goldfish \n\nshark";
  EXPECT_EQ(read_class_names(folder / "names.txt", 3).names,
            (std::vector<std::string>{"tench, Tinca tinca", "goldfish", "shark"}));
  expect_error(ErrorKind::Data, {"names.txt: 3 names of classes, but there are 1000 classes"},
               [&] { (void)read_class_names(folder / "names.txt", 1000); });
}

// NVIDIA's and Habana's networks count the background as class 0.
TEST(ClassNamesTest, ImageNetsListLeavesOutTheBackground) {
  const TemporaryDirectory folder;
  std::ofstream list(folder / "names.txt");
  for (int i = 0; i < 1000; ++i) list << "n" << i << "\tword " << i << "\n";
  list.close();
  const ClassNames whole = read_class_names(folder / "names.txt", 1000);
  EXPECT_EQ(whole.names.at(0), "n0 (word 0)");
  EXPECT_EQ(whole.notice, "");
  const ClassNames behind = read_class_names(folder / "names.txt", 1001);
  ASSERT_EQ(behind.names.size(), 1001u);
  EXPECT_EQ(behind.names[0], "background");
  EXPECT_EQ(behind.names[1], "n0 (word 0)");
  test::expect_in(behind.notice, {"class 0 is called background"});
  for (const std::int64_t classes : {999, 1002})
    expect_error(ErrorKind::Data, {"names.txt: 1000 names of classes, but there are "},
                 [&] { (void)read_class_names(folder / "names.txt", classes); });
}

}  // namespace
}  // namespace millrace::io
