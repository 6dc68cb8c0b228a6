// SPDX-License-Identifier: Apache-2.0
#include "io/images/presets.hpp"

#include <random>

#include "tests/support/test.hpp"

namespace millrace::io {
namespace {

constexpr std::int32_t kSide = 224;
constexpr std::uint64_t kDraws = 20000;

ImageHeader image_of(std::int32_t width, std::int32_t height) {
  return {.format = ImageFormat::Jpeg, .width = width, .height = height};
}

PixelBox whole_of(const ImageHeader& image) {
  return {.bottom = image.height, .right = image.width};
}

// ---- independent implementation of the distributions --------------------------------------------

/// Uses another random generator than the crops.
class Numbers {
 public:
  explicit Numbers(unsigned seed) : engine_(seed) {}
  double between(double a, double b) { return std::uniform_real_distribution(a, b)(engine_); }
  int whole(int a, int b) { return std::uniform_int_distribution(a, b)(engine_); }  // both included

 private:
  std::mt19937 engine_;
};

/// Pixels from a to b that are also from c to d.
int common(int a, int b, int c, int d) { return std::max(std::min(b, d) - std::max(a, c), 0); }

double share_covered(const PixelBox& box, const PixelBox& object) {
  const double all = (object.bottom - object.top) * (object.right - object.left);
  if (all < 1) return -1;
  return common(box.top, box.bottom, object.top, object.bottom) *
         common(box.left, box.right, object.left, object.right) / all;
}

/// Enumerates heights instead of computing bounds by formula.
PixelBox naive_tensorflow(const CropRule& rule, const ImageHeader& image,
                          const std::vector<PixelBox>& objects, Numbers& numbers) {
  const double area = double{1} * image.width * image.height;
  for (int attempt = 0; attempt < rule.attempts; ++attempt) {
    const double aspect = numbers.between(rule.min_aspect, rule.max_aspect);
    int highest = static_cast<int>(std::lrint(std::sqrt(rule.max_area * area / aspect)));
    while (highest > image.height || std::lrint(highest * aspect) > image.width) --highest;
    int lowest = static_cast<int>(std::lrint(std::sqrt(rule.min_area * area / aspect)));
    lowest = std::min(lowest, highest);
    int height = numbers.whole(lowest, highest);
    const auto width_of = [&](int h) { return static_cast<int>(std::lrint(h * aspect)); };
    if (height * width_of(height) < rule.min_area * area) ++height;
    if (height * width_of(height) > rule.max_area * area) --height;
    const int width = width_of(height);
    if (width * height < rule.min_area * area || width * height > rule.max_area * area) continue;
    if (width > image.width || height > image.height || width < 1 || height < 1) continue;
    PixelBox box;
    if (height < image.height) box.top = numbers.whole(0, image.height - height - 1);
    if (width < image.width) box.left = numbers.whole(0, image.width - width - 1);
    box.bottom = box.top + height;
    box.right = box.left + width;
    for (const PixelBox& object : objects)
      if (share_covered(box, object) >= rule.min_object_covered) return box;
  }
  return whole_of(image);
}

PixelBox naive_torch(const CropRule& rule, const ImageHeader& image, Numbers& numbers) {
  for (int attempt = 0; attempt < rule.attempts; ++attempt) {
    const double area = numbers.between(rule.min_area, rule.max_area) * image.width * image.height;
    const double aspect =
        std::exp(numbers.between(std::log(rule.min_aspect), std::log(rule.max_aspect)));
    const int width = static_cast<int>(std::lrint(std::sqrt(area * aspect)));
    const int height = static_cast<int>(std::lrint(std::sqrt(area / aspect)));
    if (width < 1 || height < 1 || width > image.width || height > image.height) continue;
    const int top = numbers.whole(0, image.height - height);
    const int left = numbers.whole(0, image.width - width);
    return {top, left, top + height, left + width};
  }
  return {};  // the images below always find one, or the test fails
}

// ---- comparison ---------------------------------------------------------------------------------

/// Compared features of a box.
const std::map<std::string, std::function<double(const PixelBox&)>> kFeatures = {
    {"height", [](const PixelBox& b) { return b.bottom - b.top; }},
    {"width", [](const PixelBox& b) { return b.right - b.left; }},
    {"area", [](const PixelBox& b) { return static_cast<double>(b.pixels()); }},
    {"aspect",
     [](const PixelBox& b) { return double{1} * (b.right - b.left) / (b.bottom - b.top); }},
    {"top", [](const PixelBox& b) { return b.top; }},
    {"left", [](const PixelBox& b) { return b.left; }},
    {"middle", [](const PixelBox& b) { return b.left + b.right + 0.37 * (b.top + b.bottom); }},
};

/// Kolmogorov-Smirnov distance of two samples, in units of its critical value at a significance of
/// 1e-6.
double distance_of(std::vector<double> a, std::vector<double> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  double greatest = 0;
  std::size_t j = 0;
  for (std::size_t i = 0; i < a.size();) {
    const double value = a[i];
    while (i < a.size() && a[i] <= value) ++i;
    while (j < b.size() && b[j] <= value) ++j;
    const double difference = static_cast<double>(i) / static_cast<double>(a.size()) -
                              static_cast<double>(j) / static_cast<double>(b.size());
    greatest = std::max(greatest, std::abs(difference));
  }
  const double count = static_cast<double>(a.size()) / 2;
  return greatest / std::sqrt(-std::log(0.5e-6) / 2 / count);
}

using Boxes = std::vector<PixelBox>;

Boxes drawn_boxes(const CropRule& rule, const ImageHeader& image,
                  const std::vector<ObjectBox>& objects) {
  Boxes boxes;
  for (std::uint64_t i = 0; i < kDraws; ++i)
    boxes.push_back(
        draw_window(rule, {.seed = 3, .epoch = 1, .index = i}, image, objects, kSide).box);
  return boxes;
}

double greatest_distance(const Boxes& a, const Boxes& b, std::string& feature) {
  double greatest = 0;
  for (const auto& [name, measure] : kFeatures) {
    std::vector<double> of_a, of_b;
    for (const PixelBox& box : a) of_a.push_back(measure(box));
    for (const PixelBox& box : b) of_b.push_back(measure(box));
    const double distance = distance_of(of_a, of_b);
    if (distance > greatest) feature = name;
    greatest = std::max(greatest, distance);
  }
  return greatest;
}

struct Scene {
  ImageHeader image;
  std::vector<ObjectBox> objects;
  std::vector<PixelBox> object_pixels;
};

std::vector<Scene> scenes() {
  const auto without = [](std::int32_t width, std::int32_t height) {
    const ImageHeader image = image_of(width, height);
    return Scene{image, {}, {whole_of(image)}};
  };
  return {without(500, 375),
          without(120, 400),
          without(64, 48),
          {image_of(400, 300),
           {{0.1f, 0.05f, 0.35f, 0.3f}, {0.5f, 0.5f, 0.501f, 0.501f}},
           {{30, 20, 105, 120}, {150, 200, 150, 200}}},
          {image_of(400, 300),
           {{0.0f, 0.0f, 0.5f, 0.25f}, {0.6f, 0.7f, 0.9f, 1.0f}},
           {{0, 0, 150, 100}, {180, 280, 270, 400}}}};
}

TEST(CropRuleTest, HeightsAreDrawnAsByTensorFlow) {
  for (const char* const name : {"tf", "tpu"}) {
    CropRule rule = image_preset(name).crop;
    rule.fallback = CropFallback::Whole;
    for (const Scene& scene : scenes()) {
      if (!scene.objects.empty()) rule.min_object_covered = 0.5;
      Numbers numbers(17);
      Boxes expected;
      for (std::uint64_t i = 0; i < kDraws; ++i)
        expected.push_back(naive_tensorflow(rule, scene.image, scene.object_pixels, numbers));
      std::string feature;
      const Boxes drawn = drawn_boxes(rule, scene.image, scene.objects);
      EXPECT_LT(greatest_distance(drawn, expected, feature), 1.0)
          << name << ": " << scene.image.width << " x " << scene.image.height << ": " << feature;
    }
  }
}

/// Frequency of boxes by sides (height, width) from one attempt in an image at one aspect ratio; a
/// rejected box gives the whole image.
using Shares = std::map<std::pair<int, int>, double>;

Shares shares_of_one_attempt(const CropRule& rule, int width, int height) {
  const double aspect = rule.min_aspect;
  const auto width_of = [&](int h) { return static_cast<int>(std::lrint(h * aspect)); };
  const auto height_of = [&](double area) {
    return static_cast<int>(std::lrint(std::sqrt(area / aspect)));
  };
  const double least = rule.min_area * width * height;
  const double most = rule.max_area * width * height;
  int highest = height_of(most);
  while (highest > height || width_of(highest) > width) --highest;
  const int lowest = std::min(height_of(least), highest);
  Shares shares;
  for (int drawn = lowest; drawn <= highest; ++drawn) {
    int h = drawn;
    if (h * width_of(h) < least) ++h;
    if (h * width_of(h) > most) --h;
    const int area = h * width_of(h);
    const bool good =
        area > 0 && area >= least && area <= most && h <= height && width_of(h) <= width;
    shares[good ? std::pair(h, width_of(h)) : std::pair(height, width)] +=
        1.0 / (highest - lowest + 1);
  }
  return shares;
}

// In a small image one row is a large share, so the test sees how boxes that rounding made too
// small, too large or too wide are treated.
TEST(CropRuleTest, OneAttemptInASmallImageRoundsAsTensorFlow) {
  constexpr int kCount = 800;
  CropRule rule{.attempts = 1, .min_object_covered = 0.0};
  for (const double aspect : {0.5, 0.75, 1.0, 1.33, 1.5})
    for (const auto& [least, most] : {std::pair{0.05, 1.0}, {0.05, 0.3}, {0.3, 0.5}})
      for (int width = 1; width <= 7; ++width)
        for (int height = 1; height <= 7; ++height) {
          rule.min_aspect = rule.max_aspect = aspect;
          rule.min_area = least;
          rule.max_area = most;
          Shares differences = shares_of_one_attempt(rule, width, height);
          for (std::uint64_t i = 0; i < kCount; ++i) {
            const PixelBox box =
                draw_window(rule, {.seed = 9, .index = i}, image_of(width, height), {}, 8).box;
            differences[{box.bottom - box.top, box.right - box.left}] -= 1.0 / kCount;
          }
          // Five standard deviations of the most frequent box.
          for (const auto& [sides, difference] : differences)
            ASSERT_NEAR(difference, 0.0, 0.09)
                << sides.second << " x " << sides.first << " of " << width << " x " << height
                << ", aspect ratio " << aspect << ", area " << least << " to " << most;
        }
}

TEST(CropRuleTest, AreasAreDrawnAsByTorchvision) {
  for (const char* const name : {"torch", "nvidia"}) {
    const CropRule& rule = image_preset(name).crop;
    for (const ImageHeader& image : {image_of(500, 375), image_of(64, 48)}) {
      Numbers numbers(18);
      Boxes expected;
      for (std::uint64_t i = 0; i < kDraws; ++i) {
        expected.push_back(naive_torch(rule, image, numbers));
        ASSERT_GT(expected.back().pixels(), 0);
      }
      std::string feature;
      EXPECT_LT(greatest_distance(drawn_boxes(rule, image, {}), expected, feature), 1.0)
          << name << ": " << feature;
    }
  }
}

TEST(CropRuleTest, BoxesKeepTheirBounds) {
  for (const ImagePreset& preset : image_presets()) {
    const CropRule& rule = preset.crop;
    for (const auto& [width, height] :
         {std::pair{500, 375}, {375, 500}, {30, 20}, {1, 1}, {2000, 3}, {3, 2000}}) {
      const ImageHeader image = image_of(width, height);
      int mirrored = 0;
      constexpr int kCount = 2000;
      for (std::uint64_t i = 0; i < kCount; ++i) {
        const ImageWindow window = draw_window(rule, {5, 2, i}, image, {}, kSide);
        const PixelBox& box = window.box;
        ASSERT_TRUE(0 <= box.top && box.top < box.bottom && box.bottom <= height);
        ASSERT_TRUE(0 <= box.left && box.left < box.right && box.right <= width);
        ASSERT_GE(window.scaled_width, window.left + kSide);
        ASSERT_GE(window.scaled_height, window.top + kSide);
        mirrored += window.mirror == Mirror::Yes ? 1 : 0;
        if (width < 100 || height < 100) continue;
        const double share = static_cast<double>(box.pixels()) / width / height;
        // Rounding is up to half a pixel per side.
        EXPECT_GT(share, rule.min_area - 0.01);
        const double aspect = static_cast<double>(box.right - box.left) / (box.bottom - box.top);
        EXPECT_GT(aspect, rule.min_aspect - 0.01);
        EXPECT_LT(aspect, std::max(rule.max_aspect, 500.0 / 375) + 0.02);
      }
      EXPECT_NEAR(mirrored, kCount / 2.0, 5 * std::sqrt(kCount / 4.0));
    }
  }
}

TEST(CropRuleTest, DrawsAreKeyedBySeedEpochAndIndex) {
  const CropRule rule;
  const ImageHeader image = image_of(500, 375);
  const auto draw = [&](const DrawKey& key) { return draw_window(rule, key, image, {}, kSide); };
  EXPECT_EQ(draw({1, 2, 3}), draw({1, 2, 3}));
  EXPECT_NE(draw({1, 2, 3}).box, draw({2, 2, 3}).box);
  EXPECT_NE(draw({1, 2, 3}).box, draw({1, 3, 3}).box);
  EXPECT_NE(draw({1, 2, 3}).box, draw({1, 2, 4}).box);
}

TEST(CropRuleTest, ObjectsMustBeCovered) {
  CropRule rule = image_preset("tf").crop;
  rule.min_object_covered = 1.0;
  const ImageHeader image = image_of(400, 400);
  const std::vector<ObjectBox> objects = {{0.25f, 0.25f, 0.5f, 0.75f}};
  for (const PixelBox& box : drawn_boxes(rule, image, objects)) {
    ASSERT_LE(box.top, 100);
    ASSERT_LE(box.left, 100);
    ASSERT_GE(box.bottom, 200);
    ASSERT_GE(box.right, 300);
  }
  // Objects without area cannot be covered.
  const std::vector<ObjectBox> nothing = {{0.5f, 0.5f, 0.5f, 0.9f}};
  EXPECT_EQ(draw_window(rule, {1, 1, 1}, image, nothing, kSide).box, whole_of(image));
}

TEST(CropRuleTest, EachRuleFallsBackInItsOwnWay) {
  CropRule rule{.attempts = 0};
  const ImageHeader wide = image_of(500, 200);
  const auto draw = [&] {
    ImageWindow window = draw_window(rule, {1, 1, 1}, wide, {}, kSide);
    window.mirror = Mirror::No;
    return window;
  };
  EXPECT_EQ(draw(), (ImageWindow{{0, 0, 200, 500}, 224, 224, 0, 0, Mirror::No}));
  rule.fallback = CropFallback::CentreBox;  // 200 x 1.33 = 266 columns
  EXPECT_EQ(draw(), (ImageWindow{{0, 117, 200, 383}, 224, 224, 0, 0, Mirror::No}));
  rule.fallback = CropFallback::CentreOfScaled;
  EXPECT_EQ(draw(), (ImageWindow{{0, 0, 200, 500}, 560, 224, 168, 0, Mirror::No}));
  rule.centre = CentreOffset::Up;  // 453 x 224 / 400 = 253.7, and 253 - 224 = 29
  EXPECT_EQ(draw_window(rule, {}, image_of(453, 400), {}, kSide).left, 15);
}

TEST(CropRuleTest, ValidationScalesTheShorterSideAndCutsTheCentre) {
  const auto window = [](CentreOffset centre, std::int32_t width, std::int32_t height) {
    return evaluation_window({.centre = centre}, image_of(width, height), kSide);
  };
  // 500 x 256 / 375 = 341.33; (341 - 224) / 2 = 58.5
  EXPECT_EQ(window(CentreOffset::Down, 500, 375),
            (ImageWindow{{0, 0, 375, 500}, 341, 256, 58, 16, Mirror::No}));
  EXPECT_EQ(window(CentreOffset::Up, 500, 375).left, 59);
  EXPECT_EQ(window(CentreOffset::Even, 500, 375).left, 58);
  // 503 x 256 / 375 = 343.38; (343 - 224) / 2 = 59.5
  EXPECT_EQ(window(CentreOffset::Down, 503, 375).left, 59);
  EXPECT_EQ(window(CentreOffset::Even, 503, 375).left, 60);
  EXPECT_EQ(window(CentreOffset::Down, 375, 500),
            (ImageWindow{{0, 0, 500, 375}, 256, 341, 16, 58, Mirror::No}));
  // Other sizes in the same proportion: 380 x 256 / 224 = 434.28.
  EXPECT_EQ(evaluation_window({}, image_of(434, 434), 380),
            (ImageWindow{{0, 0, 434, 434}, 434, 434, 27, 27, Mirror::No}));
  EXPECT_EQ(window(CentreOffset::Down, 1, 16384).scaled_height, 256 * 16384);
}

}  // namespace
}  // namespace millrace::io
