// SPDX-License-Identifier: Apache-2.0
#include "io/images/augmentation.hpp"

#include <nlohmann/json.hpp>

#include "tests/io/images/test_images.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temporary_directory.hpp"

namespace millrace::io {
namespace {

using Pixels = std::vector<std::uint8_t>;

/// The checksum of zlib and Python.
std::uint32_t crc32_of(std::span<const std::uint8_t> bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const std::uint8_t byte : bytes) {
    crc ^= byte;
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xedb88320U : 0U);
  }
  return ~crc;
}

/// A picture with room for its operations.
struct Picture {
  explicit Picture(int width, int height)
      : pixels(make_image(width, height).bytes),
        scratch(pixels.size()),
        rgb{.bytes = pixels, .height = height, .width = width} {}
  Pixels pixels;
  Pixels scratch;
  RgbImage rgb;
};

void expect_recorded(const nlohmann::json& golden, const Picture& picture) {
  const Pixels row(picture.pixels.begin(), picture.pixels.begin() + 3 * picture.rgb.width);
  std::string hex;
  for (const std::uint8_t byte : std::span(row).last(48)) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  EXPECT_EQ(hex, golden.at("row")) << golden;
  EXPECT_EQ(crc32_of(picture.pixels), golden.at("crc32")) << golden;
}

AugmentOp op_named(const std::string& name) {
  const std::array<std::string_view, kAugmentOps> names = {
      "Identity", "ShearX",   "ShearY",    "TranslateX", "TranslateY", "Rotate",       "Brightness",
      "Color",    "Contrast", "Sharpness", "Posterize",  "Solarize",   "AutoContrast", "Equalize"};
  return static_cast<AugmentOp>(std::ranges::find(names, name) - names.begin());
}

void expect_golden(const nlohmann::json& golden) {
  for (const auto& [key, values] : golden.at("strengths").items()) {
    std::istringstream words(key);
    std::string name;
    int width = 0;
    int height = 0;
    words >> name >> width >> height;
    for (std::int32_t magnitude = 0; magnitude <= kMostMagnitude; ++magnitude)
      EXPECT_EQ(strength_of(op_named(name), magnitude, height, width),
                values.at(static_cast<std::size_t>(magnitude)).get<double>())
          << key << " " << magnitude;
  }
  ASSERT_GE(golden.at("cases").size(), 400u);
  for (const nlohmann::json& one : golden.at("cases")) {
    Picture picture(one.at("width"), one.at("height"));
    const AugmentOp op = op_named(one.at("op"));
    EXPECT_TRUE(one.at("sign") == 1.0 || is_signed(op));
    const double strength =
        strength_of(op, one.at("magnitude"), picture.rgb.height, picture.rgb.width);
    apply(op, one.at("sign").get<double>() * strength, picture.rgb, picture.scratch);
    expect_recorded(one, picture);
  }
  for (const nlohmann::json& one : golden.at("jitters")) {
    Picture picture(one.at("width"), one.at("height"));
    const std::string what = one.at("what");
    const auto factor = one.at("value").get<float>();
    if (what == "brightness") adjust_brightness(picture.rgb, factor);
    if (what == "contrast") adjust_contrast(picture.rgb, factor);
    if (what == "saturation") adjust_saturation(picture.rgb, factor);
    if (what == "hue") shift_hue(picture.rgb, one.at("value"));
    expect_recorded(one, picture);
  }
}

TEST(AugmentationTest, PixelsAndStrengthsAreThoseOfTorchvisionAndPillow) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/torchvision/augment.json");
  expect_golden(nlohmann::json::parse(file));
}

// With the torchvision of this machine, which may be newer than the recorded one.
TEST(AugmentationTest, TorchvisionHereAgrees) {
  const char* const python = std::getenv("MILLRACE_TEST_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "MILLRACE_TEST_PYTHON names no Python";
  if (test::run_process(python, {"-c", "import torchvision, PIL"}).code != 0)
    GTEST_SKIP() << python << " has no torchvision";
  const test::TemporaryDirectory directory;
  const fs::path here = directory / "augment.json";
  const test::ProcessResult result = test::run_process(
      python, {MILLRACE_SOURCE_DIR "/tests/golden/record_torchvision.py", "--check", here});
  ASSERT_EQ(result.code, 0) << result.output;
  std::ifstream file(here);
  expect_golden(nlohmann::json::parse(file));
}

Pixels augmented(const Augmentation& augmentation, const DrawKey& key) {
  Picture picture(40, 30);
  augment_pixels(augmentation, key, picture.rgb, picture.scratch);
  return picture.pixels;
}

TEST(AugmentationTest, AFunctionOfSeedEpochAndIndex) {
  const Augmentation all{.operations = 2, .magnitude = 9, .brightness = 0.4, .hue = 0.1};
  const Pixels first = augmented(all, {.seed = 1, .epoch = 2, .index = 3});
  EXPECT_EQ(augmented(all, {.seed = 1, .epoch = 2, .index = 3}), first);
  int same = 0;
  for (std::uint64_t i = 0; i < 20; ++i) {
    same += augmented(all, {.seed = 4 + i, .epoch = 2, .index = 3}) == first ? 1 : 0;
    same += augmented(all, {.seed = 1, .epoch = 3 + i, .index = 3}) == first ? 1 : 0;
    same += augmented(all, {.seed = 1, .epoch = 2, .index = 4 + i}) == first ? 1 : 0;
  }
  EXPECT_EQ(same, 0);
  EXPECT_EQ(augmented({}, {.seed = 1, .epoch = 2, .index = 3}), make_image(40, 30).bytes);
}

// Fourteen operations, each as often as any other; nine of them with either sign.
TEST(AugmentationTest, OperationsAreDrawnEvenly) {
  constexpr int kImages = 2800;
  const Augmentation one{.operations = 1, .magnitude = 20};
  std::vector<std::pair<Pixels, int>> seen;
  for (const AugmentOp op : {AugmentOp::Rotate, AugmentOp::Solarize}) {
    for (const double sign : {1.0, -1.0}) {
      Picture picture(12, 10);
      apply(op, (is_signed(op) ? sign : 1.0) * strength_of(op, 20, 10, 12), picture.rgb,
            picture.scratch);
      seen.emplace_back(picture.pixels, 0);
    }
  }
  for (std::uint64_t i = 0; i < kImages; ++i) {
    Picture picture(12, 10);
    augment_pixels(one, {.seed = 7, .epoch = 0, .index = i}, picture.rgb, picture.scratch);
    for (auto& [pixels, count] : seen) count += pixels == picture.pixels ? 1 : 0;
  }
  EXPECT_NEAR(seen[0].second, kImages / 28, 40) << "rotated";
  EXPECT_NEAR(seen[1].second, kImages / 28, 40) << "rotated the other way";
  EXPECT_NEAR(seen[2].second, kImages / 14, 55) << "solarized";
}

TEST(ErasingTest, BoxesHaveTheAreaAndShapeOfTorchvision) {
  constexpr std::int32_t kSide = 64;
  constexpr int kImages = 4000;
  const Augmentation half{.erasing = 0.5};
  int erased = 0;
  double area = 0.0;
  for (std::uint64_t i = 0; i < kImages; ++i) {
    const PixelBox box = draw_erased(half, {.seed = 3, .epoch = 1, .index = i}, kSide, kSide);
    if (box == PixelBox{}) continue;
    ++erased;
    EXPECT_TRUE(box.top >= 0 && box.left >= 0 && box.bottom <= kSide && box.right <= kSide);
    const double share = static_cast<double>(box.pixels()) / (kSide * kSide);
    EXPECT_GT(share, 0.015);
    EXPECT_LT(share, 0.345);
    area += share;
  }
  EXPECT_NEAR(erased, kImages / 2, 150);
  EXPECT_NEAR(area / erased, 0.175, 0.01) << "uniform from 2 to 33 %";
  EXPECT_EQ(draw_erased({}, {.seed = 3, .epoch = 1, .index = 0}, kSide, kSide), PixelBox{});
}

}  // namespace
}  // namespace millrace::io
