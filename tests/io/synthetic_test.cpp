// SPDX-License-Identifier: Apache-2.0
#include "io/data/synthetic.hpp"

#include "tests/io/fixtures.hpp"
#include "tests/io/samples.hpp"

namespace millrace::io {
namespace {

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

TEST(SyntheticTest, PixelsAreNotNormalised) {
  const auto dataset = make_synthetic({.image_shape = {9, 7, 3}, .classes = 10, .size = 2});
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(dataset->image_shape().elements()));
  PixelScaling scaling;
  EXPECT_EQ(dataset->read(1, {}, bytes, scaling), Sample::Own);
  const std::vector<float> image = image_of(*dataset, 1);
  for (std::size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(image[i], static_cast<float>(bytes[i]));
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
  EXPECT_EQ(image_of(*make_synthetic(options), 0), image_of(*make_synthetic(options), 0));
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
