// SPDX-License-Identifier: Apache-2.0
#include "io/data/cifar.hpp"

#include "core/random.hpp"
#include "tests/support/test.hpp"

namespace millrace::io {
namespace {

using Planes = std::array<std::uint8_t, kSmallPixels>;
using Image = std::array<std::uint8_t, kSmallPixels>;

Planes random_planes(std::uint64_t seed) {
  const RandomStream stream(seed, RandomPurpose::GeneratedData);
  Planes planes;
  for (std::size_t i = 0; i < planes.size(); ++i)
    planes[i] = static_cast<std::uint8_t>(stream.block(0, i)[0]);
  return planes;
}

/// The recipe, literally: mirror, pad by four, crop.
Image naive_decode(const Planes& planes, const Crop& crop) {
  Image image{};
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
        Image image;
        image.fill(77);  // every element must be written
        decode_bytes(planes, crop, image);
        ASSERT_EQ(image, naive_decode(planes, crop)) << top << " " << left;
      }
    }
  }
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

}  // namespace
}  // namespace millrace::io
