// SPDX-License-Identifier: Apache-2.0
#include "io/images/presets.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "core/shape.hpp"
#include "io/images/normalise.hpp"
#include "tests/io/fixtures.hpp"

namespace millrace::io {
namespace {

TEST(ImagePresetTest, NamesFindTheirPreset) {
  for (const char* const name : {"tf", "nvidia", "dali2019", "tpu", "torch"})
    EXPECT_EQ(image_preset(name).name, name);
  EXPECT_EQ(image_presets().size(), 5u);
  expect_error(ErrorKind::Config, {"\"caffe\"", "tf, nvidia, dali2019, tpu, torch"},
               [] { static_cast<void>(image_preset("caffe")); });
}

/// What a gray pixel becomes, from the recipes' own formulae.
TEST(ImagePresetTest, EveryRecipeNormalisesByItsNumbers) {
  struct Case {
    ImageNormalisation normalisation;
    double red, green, blue;  ///< of byte 200
  };
  const Case cases[] = {
      {ImageNormalisation::MeanOnly, 200 - 123.68, 200 - 116.78, 200 - 103.94},
      {ImageNormalisation::Torch, (200 / 255.0 - 0.485) / 0.229, (200 / 255.0 - 0.456) / 0.224,
       (200 / 255.0 - 0.406) / 0.225},
      {ImageNormalisation::Nvidia2019, (200 - 123.68) / 255, (200 - 116.78) / 255,
       (200 - 103.94) / 255},
      {ImageNormalisation::Dali2019, (200 - 121) / 70.0, (200 - 115) / 68.0, (200 - 100) / 71.0},
      {ImageNormalisation::Nvidia, (200 - 123.68) / 58.395, (200 - 116.28) / 57.12,
       (200 - 103.53) / 57.385},
  };
  for (const Case& one : cases) {
    const PixelScaling scaling = scaling_of(one.normalisation, 1);
    EXPECT_EQ(scaling.real, (PixelBox{.bottom = 1, .right = 1}));
    const std::vector<std::uint8_t> bytes(3, 200);
    std::vector<float> values(3);
    normalise_pixels(bytes, scaling, std::span(values));
    EXPECT_NEAR(static_cast<double>(values[0]), one.red, 2e-5);
    EXPECT_NEAR(static_cast<double>(values[1]), one.green, 2e-5);
    EXPECT_NEAR(static_cast<double>(values[2]), one.blue, 2e-5);
  }
}

TEST(NormalisePixelsTest, GivesTheBitsOfTheGeneralForm) {
  for (const std::int32_t side : {1, 3, 5, 16, 31}) {
    const Shape shape{side, side, 3};
    const auto count = static_cast<std::size_t>(shape.elements());
    std::vector<std::uint8_t> bytes(count);
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i * 37 + i / 256);
    // Multiples of 1 + 2^-8 lie half-way between two numbers of bfloat16.
    PixelScaling ties;
    for (float& scale : ties.scale) scale = 0x1.01p0f;
    for (const PixelScaling& scaling : {scaling_of(ImageNormalisation::MeanOnly, side),
                                        scaling_of(ImageNormalisation::Nvidia, side), ties}) {
      std::vector<float> expected(count), values(count);
      for (std::size_t i = 0; i < count; ++i)
        expected[i] = (static_cast<float>(bytes[i]) - scaling.mean[i % 3]) * scaling.scale[i % 3];
      normalise_pixels(bytes, scaling, std::span(values));
      EXPECT_EQ(values, expected);
      std::vector<bfloat16> halves(count);
      normalise_pixels(bytes, scaling, std::span(halves));
      std::vector<float16> ieee(count);
      normalise_pixels(bytes, scaling, std::span(ieee));
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(halves[i].bits, to_bfloat16(expected[i]).bits);
        ASSERT_EQ(ieee[i].bits, to_float16(expected[i]).bits);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::io
