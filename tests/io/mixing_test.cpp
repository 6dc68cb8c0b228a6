// SPDX-License-Identifier: Apache-2.0
#include "io/mixing.hpp"

#include "tests/io/fixtures.hpp"

namespace millrace::io {
namespace {

constexpr Shape kImage{32, 32, 3};

std::vector<double> betas(double alpha, std::size_t count) {
  const RandomStream stream(3, RandomPurpose::Mixing);
  std::vector<double> shares(count);
  for (std::size_t i = 0; i < count; ++i) shares[i] = draw_beta(stream, i, alpha);
  return shares;
}

/// Share of the numbers below `limit`.
double below(const std::vector<double>& numbers, double limit) {
  const auto count =
      std::count_if(numbers.begin(), numbers.end(), [&](double x) { return x < limit; });
  return static_cast<double>(count) / static_cast<double>(numbers.size());
}

TEST(BetaTest, TailsAreThoseOfTheDistribution) {
  // Distribution functions at 0.01 and 0.25, by numerical integration.
  struct Row {
    double alpha, at_001, at_025;
  };
  for (const Row& row : {Row{0.1, 0.32030825, 0.45195785}, Row{0.2, 0.20977769, 0.41405552},
                         Row{1.0, 0.01, 0.25}, Row{5.0, 1.21854e-8, 0.04892731}}) {
    const std::vector<double> shares = betas(row.alpha, 40'000);
    EXPECT_NEAR(below(shares, 0.01), row.at_001, 0.012) << row.alpha;
    EXPECT_NEAR(below(shares, 0.25), row.at_025, 0.012) << row.alpha;
    EXPECT_NEAR(1.0 - below(shares, 0.75), row.at_025, 0.012) << row.alpha;
  }
}

TEST(BetaTest, ExtremeShapesGiveNumbers) {
  for (const double alpha : {1e-6, 1e-3, 1e6}) {
    for (const double x : betas(alpha, 1000)) {
      ASSERT_FALSE(std::isnan(x)) << alpha;
      ASSERT_TRUE(x >= 0.0 && x <= 1.0) << alpha;
      if (alpha < 1e-5) {
        EXPECT_TRUE(x < 1e-3 || x > 1.0 - 1e-3) << x;
      }
      if (alpha > 1.0) {
        EXPECT_NEAR(x, 0.5, 0.01);
      }
    }
  }
}

TEST(MixingTest, ReversedTakesPartnersFromTheEndAndSharesAsDrawn) {
  const MixingConfig config{.form = MixingForm::Reversed, .mixup_alpha = 0.2};
  const RandomStream stream(9, RandomPurpose::Mixing);
  int below_half = 0;
  for (std::int64_t n = 0; n < 64; ++n) {
    const ImageMixing m = draw_mixing(config, 9, 1000 + n, n, 64, kImage);
    EXPECT_EQ(m.partner, 63 - n);
    EXPECT_EQ(m.share,
              static_cast<float>(draw_beta(stream, static_cast<std::uint64_t>(1000 + n), 0.2)));
    EXPECT_EQ(m.donor, n);
    EXPECT_EQ(m.area, 0.0f);
    EXPECT_EQ(m.box, PixelBox{});
    below_half += m.share < 0.5f ? 1 : 0;
  }
  EXPECT_GT(below_half, 16);
  EXPECT_LT(below_half, 48);
}

TEST(MixingTest, RolledTakesTheImageBeforeAndKeepsTheLargerShare) {
  const MixingConfig rolled{.form = MixingForm::Rolled, .mixup_alpha = 1.0};
  const MixingConfig reversed{.form = MixingForm::Reversed, .mixup_alpha = 1.0};
  for (std::int64_t n = 0; n < 32; ++n) {
    const ImageMixing m = draw_mixing(rolled, 1, n, n, 32, kImage);
    const float drawn = draw_mixing(reversed, 1, n, n, 32, kImage).share;
    EXPECT_EQ(m.partner, (n + 31) % 32);
    EXPECT_GE(m.share, 0.5f);
    EXPECT_NEAR(m.share, std::max(drawn, 1.0f - drawn), 1e-6f);
  }
}

TEST(MixingTest, BoxesHaveTheSidesAndTheAreaOfTheirPixels) {
  const Shape image{24, 40, 3};
  const MixingConfig config{.cutmix_lambda = 0.75};  // sides of one half: 12 x 20
  std::map<std::int32_t, int> tops;
  int whole = 0;
  for (std::int64_t position = 0; position < 4000; ++position) {
    const ImageMixing m = draw_mixing(config, 2, position, 5, 8, image);
    EXPECT_EQ(m.donor, 3);
    EXPECT_EQ(m.partner, 5);
    EXPECT_EQ(m.share, 1.0f);
    EXPECT_GE(m.box.top, 0);
    EXPECT_LE(m.box.bottom, 24);
    EXPECT_GE(m.box.left, 0);
    EXPECT_LE(m.box.right, 40);
    EXPECT_EQ(m.area,
              static_cast<float>((m.box.bottom - m.box.top) * (m.box.right - m.box.left)) / 960.0f);
    whole += m.area == 0.25f ? 1 : 0;
    EXPECT_LE(m.area, 0.25f);
    // Half of the centers are far enough from both ends; the other boxes are clipped.
    if (m.box.bottom - m.box.top < 12) {
      EXPECT_TRUE(m.box.top == 0 || m.box.bottom == 24);
    }
    if (m.box.right - m.box.left < 20) {
      EXPECT_TRUE(m.box.left == 0 || m.box.right == 40);
    }
    ++tops[m.box.top];
  }
  // With 13 of 24 and 21 of 40 centers the box is complete.
  EXPECT_NEAR(whole, 4000.0 * 13 * 21 / (24 * 40), 120);
  EXPECT_EQ(tops.size(), 18u);                    // 0 .. 17
  EXPECT_NEAR(tops.at(0), 4000.0 * 7 / 24, 120);  // centers 0 .. 6
  EXPECT_NEAR(tops.at(17), 4000.0 * 1 / 24, 60);
}

TEST(MixingTest, DonorsAreTwoBeforeOrTheOtherOfTwo) {
  const MixingConfig config{.cutmix_lambda = 0.5};
  const auto donor = [&](std::int64_t n, std::int64_t batch) {
    return draw_mixing(config, 0, 0, n, batch, kImage).donor;
  };
  EXPECT_EQ(donor(0, 2), 1);
  EXPECT_EQ(donor(1, 2), 0);
  EXPECT_EQ(donor(0, 3), 1);
  EXPECT_EQ(donor(2, 3), 0);
  EXPECT_EQ(donor(1, 16), 15);
}

TEST(MixingTest, DependsOnSeedAndPositionAlone) {
  const MixingConfig config{.form = MixingForm::Reversed, .mixup_alpha = 1.0, .cutmix_lambda = 0.6};
  const ImageMixing first = draw_mixing(config, 4, 77, 1, 4, kImage);
  EXPECT_EQ(draw_mixing(config, 4, 77, 1, 4, kImage), first);
  // The place in the micro-batch determines partners, but not shares and boxes.
  const ImageMixing moved = draw_mixing(config, 4, 77, 3, 8, kImage);
  EXPECT_EQ(moved.share, first.share);
  EXPECT_EQ(moved.box, first.box);
  EXPECT_NE(draw_mixing(config, 4, 78, 1, 4, kImage).share, first.share);
  EXPECT_NE(draw_mixing(config, 5, 77, 1, 4, kImage).share, first.share);
  EXPECT_NE(draw_mixing(config, 4, 78, 1, 4, kImage).box, first.box);
}

TEST(MixingTest, InvalidMixingIsRefused) {
  const auto check = [](const MixingConfig& config, std::int64_t batch) {
    return [=] { check_mixing(config, batch); };
  };
  EXPECT_NO_THROW(check({}, 1)());
  EXPECT_NO_THROW(check({.mixup_alpha = 0.2, .cutmix_lambda = 0.0}, 2)());
  expect_error(ErrorKind::Config, {"`mixup-alpha`", "`batch-size` is 1", "at least 2"},
               check({.mixup_alpha = 0.2}, 1));
  expect_error(ErrorKind::Config, {"`cutmix-lambda`", "`batch-size` is 1"},
               check({.cutmix_lambda = 0.5}, 1));
  expect_error(ErrorKind::Config, {"`mixup-alpha` -0.1"}, check({.mixup_alpha = -0.1}, 8));
  expect_error(ErrorKind::Config, {"`mixup-alpha` nan"},
               check({.mixup_alpha = std::numeric_limits<double>::quiet_NaN()}, 8));
  expect_error(ErrorKind::Config, {"`mixup-alpha` inf"},
               check({.mixup_alpha = std::numeric_limits<double>::infinity()}, 8));
  expect_error(ErrorKind::Config, {"`cutmix-lambda` 1.5"}, check({.cutmix_lambda = 1.5}, 8));
  expect_error(ErrorKind::Config, {"`cutmix-lambda` -1"}, check({.cutmix_lambda = -1.0}, 8));
}

}  // namespace
}  // namespace millrace::io
