// SPDX-License-Identifier: Apache-2.0
#include "io/images/presets.hpp"

#include "core/shape.hpp"
#include "io/data/dataset.hpp"
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

struct Row {
  const char* name;
  CropRule crop;
  Resampling resampling;
  CentreOffset centre;
  ImageNormalisation normalisation;
};

// Every number is written as in the original training, even if it is our default.
TEST(ImagePresetTest, RowsAreThoseOfTheTrainings) {
  using enum CentreOffset;
  constexpr double kThreeQuarters = 3.0 / 4.0;
  constexpr double kFourThirds = 4.0 / 3.0;
  const Row rows[] = {
      // sample_distorted_bounding_box(0.1, [0.75, 1.33], [0.05, 1], 100 attempts), the whole image
      // if they fail; flip, then resize_bilinear of TensorFlow 1; center of 256/224 at floor(d /
      // 2).
      {"tf",
       {CropDraw::Height, 0.05, 1.0, 0.75, 1.33, 100, 0.1, CropFallback::Whole, Down},
       {Filter::BilinearLegacy, MirrorStage::Before},
       Down,
       ImageNormalisation::MeanOnly},
      // DALI's random crop: area 0.05 to 1 today and 0.1 to 1 in 2019, aspect 0.75 to 1.33 and 0.8
      // to 1.25, 100 attempts.
      {"nvidia",
       {CropDraw::Area, 0.05, 1.0, 0.75, 1.33, 100, 0.1, CropFallback::CentreBox, Down},
       {Filter::Bilinear, MirrorStage::After},
       Down,
       ImageNormalisation::Nvidia},
      {"dali2019",
       {CropDraw::Area, 0.1, 1.0, 0.8, 1.25, 100, 0.1, CropFallback::CentreBox, Down},
       {Filter::Bilinear, MirrorStage::After},
       Down,
       ImageNormalisation::Dali2019},
      // One attempt at 8 % to 100 % and 3/4 to 4/3, otherwise the shorter side to 224 and its
      // center; resize_bicubic of TensorFlow 1, then the flip; every center at (d + 1) / 2.
      {"tpu",
       {CropDraw::Height, 0.08, 1.0, kThreeQuarters, kFourThirds, 1, 0.1,
        CropFallback::CentreOfScaled, Up},
       {Filter::BicubicLegacy, MirrorStage::After},
       Up,
       ImageNormalisation::Torch},
      // RandomResizedCrop, Resize, CenterCrop (which rounds as Python does) and Normalize, on PIL
      // images.
      {"torch",
       {CropDraw::Area, 0.08, 1.0, kThreeQuarters, kFourThirds, 10, 0.1, CropFallback::CentreBox,
        Down},
       {Filter::BilinearAntialiased, MirrorStage::After},
       Even,
       ImageNormalisation::Torch}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const ImagePreset& preset = image_preset(row.name);
    EXPECT_EQ(preset.crop, row.crop);
    EXPECT_EQ(preset.training, row.resampling);
    EXPECT_EQ(preset.validation, row.resampling);
    EXPECT_EQ(preset.evaluation,
              (EvaluationRule{.scaled = 256, .window = 224, .centre = row.centre}));
    EXPECT_EQ(preset.normalisation, row.normalisation);
  }
}

/// Normalized value of a gray pixel, from the recipes' own formulas.
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
    const PixelScaling scaling = scaling_of(statistics_of(one.normalisation), 1);
    EXPECT_EQ(scaling.real, (PixelBox{.bottom = 1, .right = 1}));
    const std::vector<std::uint8_t> bytes(3, 200);
    std::vector<float> values(3);
    normalise_bytes<float>(bytes, scaling, {1, 1, 3}, values);
    EXPECT_NEAR(static_cast<double>(values[0]), one.red, 2e-5);
    EXPECT_NEAR(static_cast<double>(values[1]), one.green, 2e-5);
    EXPECT_NEAR(static_cast<double>(values[2]), one.blue, 2e-5);
  }
}

}  // namespace
}  // namespace millrace::io
