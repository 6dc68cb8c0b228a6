// SPDX-License-Identifier: Apache-2.0
#include "io/data/dataset.hpp"

#include "core/random.hpp"
#include "io/data/memory_dataset.hpp"
#include "io/data/part_of_set.hpp"
#include "tests/io/fixtures.hpp"

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
  std::vector<T> image(bytes.size(), store_as<T>(7.0f));  // every element must be written
  normalise_bytes<T>(bytes, scaling, shape, image);
  const std::vector<T> expected = naive_normalise<T>(bytes, scaling, shape);
  EXPECT_TRUE(
      std::ranges::equal(std::as_bytes(std::span(image)), std::as_bytes(std::span(expected))))
      << shape.h << "x" << shape.w << "x" << shape.c << ", real from " << scaling.real.left;
}

// Any number of channels, blocks that end in a row, and padding on every side.
TEST(NormaliseBytesTest, EveryTypeAgreesWithOnePixelAfterAnother) {
  for (const Shape shape : {Shape{32, 32, 3}, Shape{5, 7, 3}, Shape{3, 150, 3}, Shape{9, 11, 1},
                            Shape{6, 5, 2}, Shape{40, 13, 4}}) {
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
  EXPECT_EQ(indices_of_epoch(order, 0), expected);
  EXPECT_EQ(indices_of_epoch(order, 7), expected);
}

TEST(SampleOrderTest, FarPositionsKeepTheirEpoch) {
  const SampleOrder order = SampleOrder::sequential(1'281'167);
  const std::int64_t position = 1'281'167LL * 1'000'000 + 17;
  EXPECT_EQ(order.at(position), (SampleOrder::Place{.epoch = 1'000'000, .index = 17}));
}

TEST(SampleOrderTest, EmptyDataHasNoOrder) {
  expect_error(ErrorKind::Data, {"0 samples", "empty"}, [] { (void)SampleOrder::shuffled(0, 0); });
  expect_error(ErrorKind::Data, {"empty"}, [] { (void)SampleOrder::sequential(-1); });
}

TEST(SampleOrderTest, NegativePositionsAreAnInternalError) {
  expect_error(ErrorKind::Internal, {"position >= 0"},
               [] { (void)SampleOrder::sequential(3).at(-1); });
}

/// Labels of a part, whose images are their own.
std::vector<std::int32_t> part_of(const std::vector<std::int32_t>& labels, std::int64_t size) {
  auto set = std::make_shared<MemoryDataset>("set", Shape{1, 1, 1}, 4);
  for (std::size_t i = 0; i < labels.size(); ++i)
    set->add(std::vector{static_cast<std::uint8_t>(10 * i + static_cast<std::size_t>(labels[i]))},
             labels[i]);
  const std::shared_ptr<const Dataset> part = part_of_set(set, size);
  std::vector<std::int32_t> found;
  for (std::int64_t i = 0; i < part->size(); ++i) {
    std::vector<std::uint8_t> image(1);
    PixelScaling scaling;
    EXPECT_EQ(part->read(i, {}, image, scaling), Sample::Own);
    EXPECT_EQ(image[0] % 10, part->label(i)) << i;
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

}  // namespace
}  // namespace millrace::io
