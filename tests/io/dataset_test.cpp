// SPDX-License-Identifier: Apache-2.0
#include "io/data/dataset.hpp"

#include "core/bfloat16.hpp"
#include "core/float16.hpp"
#include "core/random.hpp"
#include "io/data/cifar.hpp"
#include "io/data/loader.hpp"
#include "io/data/memory_dataset.hpp"
#include "io/data/synthetic.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/samples.hpp"
#include "tests/support/test.hpp"

namespace millrace::io {
namespace {

std::vector<std::int64_t> indices_of_epoch(const SampleOrder& order, std::int64_t epoch) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < order.size(); ++i) {
    const SampleOrder::Place place = order.at(epoch * order.size() + i);
    EXPECT_EQ(place.epoch, static_cast<std::uint64_t>(epoch));
    indices.push_back(place.index);
  }
  return indices;
}

/// One pixel after another.
template <class T>
std::vector<T> naive_normalise(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                               const Shape& shape) {
  std::vector<T> image;
  for (std::int64_t y = 0; y < shape.h; ++y)
    for (std::int64_t x = 0; x < shape.w; ++x)
      for (std::int64_t c = 0; c < shape.c; ++c) {
        const PixelBox& real = scaling.real;
        const PixelBox& erased = scaling.erased;
        const bool inside =
            y >= real.top && y < real.bottom && x >= real.left && x < real.right &&
            !(y >= erased.top && y < erased.bottom && x >= erased.left && x < erased.right);
        const auto byte = static_cast<float>(bytes[image.size()]);
        image.push_back(store_as<T>(inside ? (byte - scaling.mean[c]) * scaling.scale[c] : 0.0f));
      }
  return image;
}

template <class T>
void expect_naive(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                  const Shape& shape) {
  constexpr std::size_t kAlignment = 64;                                // of the memory of loaders
  std::vector<T> memory(bytes.size() + kAlignment, store_as<T>(7.0f));  // all must be written
  const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment;
  const auto image = std::span(memory).subspan((kAlignment - past) / sizeof(T), bytes.size());
  normalise_bytes<T>(bytes, scaling, shape, image);
  const std::vector<T> expected = naive_normalise<T>(bytes, scaling, shape);
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(image), std::as_bytes(std::span(expected))))
      << shape.h << "x" << shape.w << "x" << shape.c << ", real from " << scaling.real.left;
}

// Any number of channels, blocks that end in a row, and padding on every side.
TEST(NormaliseBytesTest, EveryTypeAgreesWithOnePixelAfterAnother) {
  for (const Shape shape : {Shape{32, 32, 3}, Shape{5, 7, 3}, Shape{3, 150, 3}, Shape{9, 11, 1},
                            Shape{6, 5, 2}, Shape{40, 13, 4}, Shape{160, 160, 3}}) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(shape.elements()));
    const RandomStream stream(3, RandomPurpose::GeneratedData);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::uint8_t>(stream.block(0, i)[0]);
    const auto h = static_cast<std::int32_t>(shape.h);
    const auto w = static_cast<std::int32_t>(shape.w);
    for (const PixelBox real :
         {PixelBox{0, 0, h, w}, PixelBox{2, 0, h, w}, PixelBox{0, 0, h - 1, w},
          PixelBox{1, 1, h, w}, PixelBox{0, 0, h - 2, w - 3}, PixelBox{}}) {
      const PixelScaling usual{.mean = {123.68f, 0.0f, 103.53f, 1.0f},
                               .scale = {0.0171f, 1.0f, 0.25f, 3.0f},
                               .real = real,
                               .erased = {.top = 1, .left = 2, .bottom = 3, .right = 4}};
      // Multiples of 1 + 2^-8 lie half-way between two numbers of bfloat16.
      const PixelScaling ties{.mean = {},
                              .scale = {0x1.01p0f, 0x1.01p0f, 0x1.01p0f, 0x1.01p0f},
                              .real = real,
                              .erased = {}};
      for (const PixelScaling& scaling : {usual, ties}) {
        expect_naive<float>(bytes, scaling, shape);
        expect_naive<bfloat16>(bytes, scaling, shape);
        expect_naive<float16>(bytes, scaling, shape);
      }
    }
  }
}

TEST(SampleOrderTest, EveryEpochHasEverySampleOnce) {
  for (const std::int64_t size : {1, 2, 3, 7, 64, 1000}) {
    const SampleOrder order = SampleOrder::shuffled(42, size);
    for (const std::int64_t epoch : {0, 1, 5}) {
      std::vector<int> seen(static_cast<std::size_t>(size), 0);
      for (const std::int64_t index : indices_of_epoch(order, epoch)) {
        ASSERT_GE(index, 0);
        ASSERT_LT(index, size);
        ++seen[static_cast<std::size_t>(index)];
      }
      EXPECT_EQ(seen, std::vector<int>(static_cast<std::size_t>(size), 1));
    }
  }
}

TEST(SampleOrderTest, EpochsAndSeedsHaveOrdersOfTheirOwn) {
  const SampleOrder order = SampleOrder::shuffled(1, 500);
  EXPECT_NE(indices_of_epoch(order, 0), indices_of_epoch(order, 1));
  EXPECT_NE(indices_of_epoch(order, 0), indices_of_epoch(SampleOrder::shuffled(2, 500), 0));
  EXPECT_EQ(indices_of_epoch(order, 3), indices_of_epoch(SampleOrder::shuffled(1, 500), 3));
}

TEST(SampleOrderTest, SequentialCountsUpEveryEpoch) {
  const SampleOrder order = SampleOrder::sequential(3);
  const std::vector<std::int64_t> expected = {0, 1, 2};
  for (const std::int64_t epoch : std::initializer_list<std::int64_t>{0, 7, 1'000'000'000'000})
    EXPECT_EQ(indices_of_epoch(order, epoch), expected);
}

TEST(SampleOrderTest, NeitherEmptyDataNorNegativePositionsHaveAnOrder) {
  expect_error(ErrorKind::Data, {"0 samples", "empty"}, [] { (void)SampleOrder::shuffled(0, 0); });
  expect_error(ErrorKind::Data, {"empty"}, [] { (void)SampleOrder::sequential(-1); });
  expect_error(ErrorKind::Internal, {"position >= 0"},
               [] { (void)SampleOrder::sequential(3).at(-1); });
}

/// Labels of a part, whose images are their own.
std::vector<std::int32_t> part_of(const std::vector<std::int32_t>& labels, std::int64_t size) {
  auto set = std::make_shared<MemoryDataset>("set", Shape{1, 1, 1}, 4);
  for (std::size_t i = 0; i < labels.size(); ++i)
    set->add(std::vector{static_cast<std::uint8_t>(10 * i + static_cast<std::size_t>(labels[i]))},
             labels[i], static_cast<float>(labels[i]));
  const std::shared_ptr<const Dataset> part = part_of_set(set, size);
  std::vector<std::int32_t> found;
  for (std::int64_t i = 0; i < part->size(); ++i) {
    std::vector<std::uint8_t> image(1);
    PixelScaling scaling;
    EXPECT_EQ(part->read(i, {}, image, scaling), Sample::Own);
    EXPECT_EQ(image[0] % 10, part->label(i)) << i;
    EXPECT_EQ(part->weight(i), static_cast<float>(part->label(i)));
    found.push_back(part->label(i));
  }
  return found;
}

// The first images of class folders are all of one class.
TEST(PartOfSetTest, IsOfAllClasses) {
  using Labels = std::vector<std::int32_t>;
  const Labels in_order = {0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3};
  EXPECT_EQ(part_of(in_order, 4), (Labels{0, 0, 1, 2}));
  EXPECT_EQ(part_of(in_order, 6), (Labels{0, 0, 0, 1, 1, 2}));
  EXPECT_EQ(part_of(in_order, 12), in_order);
  EXPECT_EQ(part_of({3, 0, 0, 1, 2, 2}, 3), (Labels{3, 0, 0})) << "the first of a mixed set";
}

// ---- small images -------------------------------------------------------------------------------

using Planes = std::array<std::uint8_t, kSmallPixels>;
using SmallImage = std::array<std::uint8_t, kSmallPixels>;

Planes random_planes(std::uint64_t seed) {
  const RandomStream stream(seed, RandomPurpose::GeneratedData);
  Planes planes;
  for (std::size_t i = 0; i < planes.size(); ++i)
    planes[i] = static_cast<std::uint8_t>(stream.block(0, i)[0]);
  return planes;
}

/// The recipe, literally: mirror, pad by four, crop.
SmallImage naive_decode(const Planes& planes, const Crop& crop) {
  SmallImage image{};
  for (std::int64_t y = 0; y < 32; ++y) {
    for (std::int64_t x = 0; x < 32; ++x) {
      const std::int64_t source_y = y + crop.top - 4;
      std::int64_t source_x = x + crop.left - 4;
      if (source_y < 0 || source_y >= 32 || source_x < 0 || source_x >= 32) continue;
      if (crop.mirror == Mirror::Yes) source_x = 31 - source_x;
      for (std::int64_t c = 0; c < 3; ++c)
        image[static_cast<std::size_t>((y * 32 + x) * 3 + c)] =
            planes[static_cast<std::size_t>(c * 1024 + source_y * 32 + source_x)];
    }
  }
  return image;
}

TEST(SmallImagesTest, EveryWindowAgreesWithTheRecipe) {
  const Planes planes = random_planes(1);
  for (const Mirror mirror : {Mirror::No, Mirror::Yes}) {
    for (std::int32_t top = 0; top <= 8; ++top) {
      for (std::int32_t left = 0; left <= 8; ++left) {
        const Crop crop{.mirror = mirror, .top = top, .left = left};
        SmallImage image;
        image.fill(77);  // every element must be written
        decode_bytes(planes, crop, image);
        ASSERT_EQ(image, naive_decode(planes, crop)) << top << " " << left;
      }
    }
  }
}

TEST(MemoryDatasetTest, AugmentsLikeTheRecipe) {
  const Planes planes = random_planes(1);
  SmallImage whole;
  decode_bytes(planes, {}, whole);
  MemoryDataset bytes("bytes", {32, 32, 3}, 1, {.mirrors = true, .padding = 4});
  MemoryDataset floats("floats", {32, 32, 3}, 1, {.mirrors = true, .padding = 4});
  for (int i = 0; i < 30; ++i) {
    bytes.add(whole, 0);
    floats.add(std::vector<float>(whole.begin(), whole.end()), 0);
  }
  for (std::int64_t i = 0; i < 30; ++i) {
    const ReadKey key{.seed = 5, .epoch = 3, .augment = i < 29};
    const Crop crop = draw_crop(key, i);
    const SmallImage expected = naive_decode(planes, crop);
    SmallImage image;
    PixelScaling scaling;
    (void)bytes.read(i, key, image, scaling);
    EXPECT_EQ(image, expected) << i;
    EXPECT_EQ(scaling.real, real_window(crop)) << i;
    std::vector<float> values(image.size());
    (void)floats.read_floats(i, key, values);
    EXPECT_TRUE(std::ranges::equal(values, expected)) << i;
  }
  expect_error(ErrorKind::Data, {"image 30 is of bytes, but those before are not"},
               [&] { floats.add(whole, 0); });
}

// Or a run would continue with other images.
TEST(MemoryDatasetTest, PixelsLabelsAndWeightsTellSetsApart) {
  const auto text = [](auto pixel, std::int32_t label, float weight) {
    MemoryDataset set("set", {1, 1, 1}, 2);
    set.add(std::vector{pixel}, label, weight);
    return describe(set);
  };
  for (const std::string& other : {text(2.0f, 0, 1.0f), text(1.0f, 1, 1.0f), text(1.0f, 0, 2.0f)})
    EXPECT_NE(other, text(1.0f, 0, 1.0f));
  EXPECT_NE(text(std::uint8_t{2}, 0, 1.0f), text(std::uint8_t{1}, 0, 1.0f));
  EXPECT_EQ(text(std::uint8_t{1}, 0, 1.0f), text(std::uint8_t{1}, 0, 1.0f));
}

TEST(MemoryDatasetTest, HasAClassForEachName) {
  const std::vector<std::string> names = {"cat", "dog", "owl"};
  MemoryDataset set("animals", {1, 1, 1}, names);
  EXPECT_EQ(set.classes(), 3);
  EXPECT_EQ(set.class_names(), names);
  EXPECT_TRUE(MemoryDataset("numbers", {1, 1, 1}, 3).class_names().empty());
  expect_error(ErrorKind::Data, {"label 3, but the labels are 0 to 2"},
               [&] { set.add(std::vector<std::uint8_t>{1}, 3); });
}

TEST(MemoryDatasetTest, RefusesImagesThatCannotBe) {
  for (const Shape shape : {Shape{0, 1, 1}, Shape{1, 65'536, 1}, Shape{1 << 30, 1 << 30, 16}})
    expect_error(ErrorKind::Config, {"every extent is 1 to 65535"},
                 [&] { MemoryDataset("set", shape, 1); });
}

TEST(SmallImagesTest, ValidationSeesTheImageItself) {
  const Crop crop = draw_crop({.seed = 5, .epoch = 3, .augment = false}, 77);
  EXPECT_EQ(crop, (Crop{.mirror = Mirror::No, .top = 4, .left = 4}));
}

TEST(SmallImagesTest, WindowsAreKeyedBySeedEpochAndIndex) {
  const auto draw = [](std::uint64_t seed, std::uint64_t epoch, std::int64_t first) {
    std::vector<Crop> crops;
    for (std::int64_t i = 0; i < 20; ++i)
      crops.push_back(draw_crop({.seed = seed, .epoch = epoch, .augment = true}, first + i));
    return crops;
  };
  EXPECT_EQ(draw(1, 2, 0), draw(1, 2, 0));
  EXPECT_NE(draw(1, 2, 0), draw(2, 2, 0));
  EXPECT_NE(draw(1, 2, 0), draw(1, 3, 0));
  EXPECT_NE(draw(1, 2, 0), draw(1, 2, 20));
}

TEST(SmallImagesTest, AllWindowsAreEquallyLikely) {
  constexpr int kPerWindow = 200;
  constexpr int kWindows = 2 * 9 * 9;
  std::map<std::tuple<Mirror, int, int>, int> counts;
  for (std::int64_t i = 0; i < kPerWindow * kWindows; ++i) {
    const Crop crop = draw_crop({.seed = 9, .epoch = 0, .augment = true}, i);
    ++counts[{crop.mirror, crop.top, crop.left}];
  }
  ASSERT_EQ(counts.size(), static_cast<std::size_t>(kWindows));
  double chi_squared = 0.0;
  for (const auto& [window, count] : counts) {
    const double difference = count - kPerWindow;
    chi_squared += difference * difference / kPerWindow;
  }
  // 161 degrees of freedom: mean 161, deviation 18.
  EXPECT_LT(chi_squared, 161.0 + 5.0 * 18.0);
}

TEST(SmallImagesTest, FlatImagesDivideByTheFloorOfTheDeviation) {
  for (const std::uint8_t level : {std::uint8_t{0}, std::uint8_t{255}}) {
    Planes planes;
    planes.fill(level);
    const PixelScaling scaling = standardisation_of(planes);
    EXPECT_FLOAT_EQ(scaling.scale[0], std::sqrt(3072.0f));
    EXPECT_EQ(scaling.mean[0], static_cast<float>(level));
  }
  Planes nearly_flat{};
  nearly_flat[5] = 1;  // deviation sqrt(p - p^2) with p = 1/3072 is just below the floor sqrt(p)
  EXPECT_FLOAT_EQ(standardisation_of(nearly_flat).scale[1], std::sqrt(3072.0f));
}

TEST(SmallImagesTest, RealWindowIsWhereTheImageShows) {
  EXPECT_EQ(real_window({}), (PixelBox{.top = 0, .left = 0, .bottom = 32, .right = 32}));
  EXPECT_EQ(real_window({.top = 0, .left = 8}),
            (PixelBox{.top = 4, .left = 0, .bottom = 32, .right = 28}));
  EXPECT_EQ(real_window({.top = 7, .left = 1}),
            (PixelBox{.top = 0, .left = 3, .bottom = 29, .right = 32}));
}

// ---- synthetic ----------------------------------------------------------------------------------

TEST(SyntheticTest, RepeatsOneImageAndOneLabel) {
  const auto dataset =
      make_synthetic({.image_shape = {8, 6, 3}, .classes = 1000, .size = 1'281'167, .seed = 4});
  EXPECT_EQ(dataset->size(), 1'281'167);
  EXPECT_EQ(dataset->image_shape(), (Shape{8, 6, 3}));
  EXPECT_EQ(dataset->classes(), 1000);
  EXPECT_EQ(dataset->label(0), dataset->label(1'281'166));
  EXPECT_EQ(image_of(*dataset, 0),
            image_of(*dataset, 99, {.seed = 1, .epoch = 2, .augment = true}));
}

TEST(SyntheticTest, SamplesMayDiffer) {
  const SyntheticOptions options{
      .image_shape = {32, 32, 3}, .classes = 1000, .size = 100, .images = SyntheticImages::Varied};
  const auto dataset = make_synthetic(options);
  std::set<std::vector<float>> images;
  std::set<std::int32_t> labels;
  for (std::int64_t i = 0; i < dataset->size(); ++i) {
    images.insert(image_of(*dataset, i));
    labels.insert(dataset->label(i));
  }
  EXPECT_EQ(images.size(), 100u);
  EXPECT_GT(labels.size(), 80u);
  EXPECT_EQ(image_of(*dataset, 7), image_of(*make_synthetic(options), 7));
  EXPECT_EQ(image_of(*dataset, 0), image_of(*make_synthetic({.size = 1}), 0));
}

TEST(SyntheticTest, PixelsAreATruncatedNormal) {
  const auto dataset = make_synthetic({.image_shape = {224, 224, 3}, .classes = 1000, .size = 1});
  const std::vector<float> image = image_of(*dataset, 0);
  const auto [least, most] = std::minmax_element(image.begin(), image.end());
  EXPECT_GE(*least, 7.0f);
  EXPECT_LE(*most, 247.0f);
  EXPECT_LT(*least, 8.0f);
  EXPECT_GT(*most, 246.0f);
  const auto count = static_cast<double>(image.size());
  double mean = 0.0;
  for (const float pixel : image) mean += static_cast<double>(pixel) / count;
  double variance = 0.0;
  for (const float pixel : image)
    variance += std::pow(static_cast<double>(pixel) - mean, 2) / count;
  EXPECT_NEAR(mean, 127.0, 0.5);
  // A normal distribution truncated at two deviations keeps 0.8796 of its deviation.
  EXPECT_NEAR(std::sqrt(variance), 60.0 * 0.8796, 0.5);
}

TEST(SyntheticTest, SeedsDifferAndLabelsStayInRange) {
  std::vector<int> seen(3, 0);
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto dataset =
        make_synthetic({.image_shape = {2, 2, 1}, .classes = 3, .size = 5, .seed = seed});
    ASSERT_GE(dataset->label(0), 0);
    ASSERT_LT(dataset->label(0), 3);
    ++seen[static_cast<std::size_t>(dataset->label(0))];
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 0), 0);
  const SyntheticOptions options{.image_shape = {4, 4, 3}, .classes = 10, .size = 5, .seed = 1};
  SyntheticOptions other = options;
  other.seed = 2;
  EXPECT_NE(image_of(*make_synthetic(options), 0), image_of(*make_synthetic(other), 0));
}

TEST(SyntheticTest, ImpossibleNumbersAreRefused) {
  expect_error(ErrorKind::Config, {"0 images", "at least 1"}, [] {
    (void)make_synthetic({.image_shape = {4, 4, 3}, .classes = 10, .size = 0});
  });
  expect_error(ErrorKind::Config, {"4x-1x3"}, [] {
    (void)make_synthetic({.image_shape = {4, -1, 3}, .classes = 10, .size = 1});
  });
  expect_error(ErrorKind::Config, {"4x4x5", "channels at most 4"}, [] {
    (void)make_synthetic({.image_shape = {4, 4, 5}, .classes = 2, .size = 3});
  });
  expect_error(ErrorKind::Config, {"0 classes"}, [] {
    (void)make_synthetic({.image_shape = {4, 4, 3}, .classes = 0, .size = 1});
  });
}

}  // namespace
}  // namespace millrace::io
