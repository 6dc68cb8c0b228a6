// SPDX-License-Identifier: Apache-2.0
#include "io/images/resample.hpp"

#include <nlohmann/json.hpp>

#include "core/crc32c.hpp"
#include "core/random.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/support/test.hpp"

namespace millrace::io {
namespace {

constexpr Filter kFilters[] = {Filter::BilinearLegacy,      Filter::Bilinear,
                               Filter::BicubicLegacy,       Filter::Bicubic,
                               Filter::BilinearAntialiased, Filter::BicubicAntialiased};

bool is_legacy(Filter filter) {
  return filter == Filter::BilinearLegacy || filter == Filter::BicubicLegacy;
}
bool is_cubic(Filter filter) {
  return filter == Filter::BicubicLegacy || filter == Filter::Bicubic ||
         filter == Filter::BicubicAntialiased;
}
bool is_antialiased(Filter filter) {
  return filter == Filter::BilinearAntialiased || filter == Filter::BicubicAntialiased;
}

// ---- the definition, in double ------------------------------------------------------------------

double curve(Filter filter, double x) {
  x = std::abs(x);
  if (!is_cubic(filter)) return x < 1 ? 1 - x : 0;
  const double a = filter == Filter::BicubicLegacy ? -0.75 : -0.5;
  if (x <= 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return x < 2 ? a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a : 0;
}

/// Weight of every source pixel for result `x` of `out` from `in`.
std::vector<double> naive_weights(Filter filter, int in, int out, int x) {
  const double scale = static_cast<double>(in) / out;
  double place = is_legacy(filter) ? x * scale : (x + 0.5) * scale - 0.5;
  if (filter == Filter::BicubicLegacy)
    place = std::floor(place) + std::nearbyint((place - std::floor(place)) * 1024) / 1024;
  const double stretch = is_antialiased(filter) ? std::max(scale, 1.0) : 1.0;
  std::vector<double> weights(static_cast<std::size_t>(in), 0.0);
  double sum = 0;
  for (int i = -4; i < in + 4; ++i) {
    const bool inside = i >= 0 && i < in;
    if (!inside && !is_legacy(filter)) continue;
    const double weight = curve(filter, (i - place) / stretch);
    weights[static_cast<std::size_t>(std::clamp(i, 0, in - 1))] += weight;
    sum += weight;
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// A whole window before rounding.
std::vector<double> naive_resample(const Image& photo, const ImageWindow& window,
                                   const Resampling& resampling, int side) {
  const PixelBox& box = window.box;
  const bool mirrored = window.mirror == Mirror::Yes;
  const bool before = mirrored && resampling.mirror == MirrorStage::Before;
  const int width = box.right - box.left;
  const int height = box.bottom - box.top;
  std::vector<double> image;
  for (int y = 0; y < side; ++y) {
    const std::vector<double> of_rows =
        naive_weights(resampling.filter, height, window.scaled_height, window.top + y);
    for (int result = 0; result < side; ++result) {
      const int x = mirrored && !before ? side - 1 - result : result;
      std::vector<double> of_columns =
          naive_weights(resampling.filter, width, window.scaled_width, window.left + x);
      if (before) std::reverse(of_columns.begin(), of_columns.end());
      for (int c = 0; c < 3; ++c) {
        double sum = 0;
        for (int i = 0; i < height; ++i) {
          if (of_rows[static_cast<std::size_t>(i)] == 0) continue;
          double of_row = 0;
          for (int j = 0; j < width; ++j)
            of_row += of_columns[static_cast<std::size_t>(j)] *
                      photo.view().at(box.left + j, box.top + i)[c];
          if (is_antialiased(resampling.filter))
            of_row = std::clamp(std::nearbyint(of_row), 0.0, 255.0);
          sum += of_rows[static_cast<std::size_t>(i)] * of_row;
        }
        image.push_back(std::clamp(sum, 0.0, 255.0));
      }
    }
  }
  return image;
}

std::vector<std::uint8_t> resampled(const PixelView& view, const ImageWindow& window,
                                    const Resampling& resampling, int side) {
  Resampler resampler;
  const PixelBox needed = resampler.prepare(window, resampling, side);
  EXPECT_TRUE(needed.left >= window.box.left && needed.right <= window.box.right &&
              needed.top >= window.box.top && needed.bottom <= window.box.bottom);
  std::vector<std::uint8_t> image(static_cast<std::size_t>(side * side * 3), 0xcd);
  resampler.resample(view, image);
  return image;
}

std::vector<ImageWindow> windows(int side) {
  const auto whole = [side](const PixelBox& box) {
    return ImageWindow{.box = box, .scaled_width = side, .scaled_height = side};
  };
  return {whole({0, 0, 40, 50}),  // shrinks
          whole({3, 5, 12, 13}),  // grows
          whole({0, 0, 1, 1}),
          whole({7, 0, 8, 50}),
          whole({0, 48, 40, 50}),
          whole({1, 1, 4, 4}),
          whole({2, 3, 2 + side, 3 + side}),  // stays
          {.box = {0, 0, 40, 50},
           .scaled_width = side + 9,
           .scaled_height = side + 4,
           .left = 5,
           .top = 2}};
}

TEST(ResampleTest, AgreesWithTheDefinition) {
  const Image photo = make_image(50, 40);
  constexpr int kSide = 14;
  for (const Filter filter : kFilters) {
    // Antialiased forms round between columns and rows, where ties may go either way.
    const double tolerance = is_antialiased(filter) ? 1.5 : 0.5 + 1e-3;
    for (ImageWindow window : windows(kSide)) {
      for (const Mirror mirror : {Mirror::No, Mirror::Yes}) {
        for (const MirrorStage stage : {MirrorStage::Before, MirrorStage::After}) {
          window.mirror = mirror;
          const Resampling resampling{filter, stage};
          const std::vector<double> expected = naive_resample(photo, window, resampling, kSide);
          const std::vector<std::uint8_t> image =
              resampled(photo.view(), window, resampling, kSide);
          for (std::size_t i = 0; i < expected.size(); ++i)
            ASSERT_NEAR(image[i], expected[i], tolerance)
                << "filter " << static_cast<int>(filter) << " box " << window.box.top << " "
                << window.box.left << " " << window.box.bottom << " " << window.box.right
                << " mirror " << static_cast<int>(mirror) << " at " << i;
        }
      }
    }
  }
}

TEST(ResampleTest, PixelsOutsideTheBoxAreNotUsed) {
  const Image image = make_image(50, 40);
  constexpr int kSide = 14;
  for (const Filter filter : kFilters) {
    for (ImageWindow window : windows(kSide)) {
      window.mirror = Mirror::Yes;
      Resampler resampler;
      const PixelBox needed = resampler.prepare(window, {filter, MirrorStage::Before}, kSide);
      const Image part = cut(image, needed);
      PixelView view = part.view();
      view.box = needed;
      EXPECT_EQ(resampled(view, window, {filter, MirrorStage::Before}, kSide),
                resampled(image.view(), window, {filter, MirrorStage::Before}, kSide));
    }
  }
}

TEST(ResampleTest, OneResamplerServesImagesOfAllSizes) {
  Resampler resampler;
  for (const int side : {14, 3, 20}) {
    for (const Filter filter : kFilters) {
      for (const ImageWindow& window : windows(side)) {
        const Image photo = make_image(50, 40);
        static_cast<void>(resampler.prepare(window, {filter}, side));
        std::vector<std::uint8_t> image(static_cast<std::size_t>(side * side * 3));
        resampler.resample(photo.view(), image);
        ASSERT_EQ(image, resampled(photo.view(), window, {filter}, side));
      }
    }
  }
}

/// Images that grow, and that shrink by so much that sixteen values of a row take two, four and
/// more registers: the same bits with every set of instructions and in every version.
TEST(ResampleTest, BitsStay) {
  const Image photo = make_image(700, 500);
  std::uint32_t crc = 0;
  for (const Filter filter : kFilters)
    for (const int side : {224, 100, 37})
      for (const PixelBox& box :
           {PixelBox{0, 0, 500, 700}, PixelBox{60, 50, 360, 410}, PixelBox{9, 7, 120, 99}})
        for (const MirrorStage stage : {MirrorStage::Before, MirrorStage::After}) {
          const ImageWindow window{.box = box,
                                   .scaled_width = side,
                                   .scaled_height = side,
                                   .mirror = side == 100 ? Mirror::No : Mirror::Yes};
          const auto image = resampled(photo.view(), window, {filter, stage}, side);
          crc = crc32c(std::as_bytes(std::span(image)), crc);
        }
  EXPECT_EQ(crc, 0x63afa6b0u);
}

// ---- Pillow -------------------------------------------------------------------------------------

std::vector<std::uint8_t> bytes_of(const std::string& hex) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

/// Pillow stretches its curves only if the image shrinks. If it grows, our plain forms equal
/// Pillow's except for its rounding between columns and rows.
TEST(ResampleTest, AgreesWithPillow) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/pillow/resize.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_GE(golden.at("cases").size(), 10u);
  int grown = 0;
  for (const nlohmann::json& one : golden.at("cases")) {
    const Image image = make_image(one.at("width"), one.at("height"));
    const std::vector<int> box = one.at("box");  // left, top, right, bottom
    const int side = one.at("side");
    const bool cubic = one.at("filter") == "bicubic";
    const ImageWindow window{.box = {box[1], box[0], box[3], box[2]},
                             .scaled_width = side,
                             .scaled_height = side,
                             .mirror = one.at("mirror") ? Mirror::Yes : Mirror::No};
    const std::vector<std::uint8_t> expected = bytes_of(one.at("rgb"));
    const Filter antialiased = cubic ? Filter::BicubicAntialiased : Filter::BilinearAntialiased;
    EXPECT_EQ(resampled(image.view(), window, {antialiased, MirrorStage::After}, side), expected)
        << one.at("width") << " x " << one.at("height") << " " << one.at("filter");
    if (box[2] - box[0] > side || box[3] - box[1] > side) continue;
    ++grown;
    const Filter plain = cubic ? Filter::Bicubic : Filter::Bilinear;
    const std::vector<std::uint8_t> once =
        resampled(image.view(), window, {plain, MirrorStage::After}, side);
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(once[i], expected[i], 1);
  }
  EXPECT_GE(grown, 4);
}

}  // namespace
}  // namespace millrace::io
