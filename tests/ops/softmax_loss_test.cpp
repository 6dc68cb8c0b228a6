// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax_loss.hpp"

#include "tests/ops/device_values.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

using Labels = std::vector<std::int64_t>;

Values as_values(const Labels& labels) { return Values(labels.begin(), labels.end()); }

template <class T>
class SoftmaxLoss : public OfStorageType<T> {
 protected:
  struct Result {
    Values loss, rank, dlogits;
  };
  static Result run(const SoftmaxLossShape& s, const Values& logits, const Labels& labels,
                    float scale, const std::vector<ImageMixing>& mixing = {},
                    const std::vector<float>& weights = {}) {
    const device::ExecutionSpace space;
    DeviceValues<T> logits_device(logits), dlogits(s.batch * s.classes);
    DeviceValues<std::int32_t> labels_device(as_values(labels)), rank(s.batch);
    DeviceValues<float> loss(s.batch);
    const DeviceRecords<ImageMixing> mixing_device(mixing);
    const DeviceRecords<float> weights_device(weights);
    const DeviceRecords<float> scaling({scale * static_cast<float>(s.batch)});
    softmax_loss_forward(space, s, loss.data(), rank.data(), logits_device.data(),
                         labels_device.data(), mixing_device.data(), weights_device.data());
    softmax_loss_backward(space, s, dlogits.data(), logits_device.data(), labels_device.data(),
                          scaling.data(), mixing_device.data(), weights_device.data());
    device::fence(space);
    return {loss.values(), rank.values(), dlogits.values()};
  }
};
TYPED_TEST_SUITE(SoftmaxLoss, StorageTypes);

/// All kinds of partners, donors, shares and areas, including extremes.
std::vector<ImageMixing> some_mixing(std::int64_t batch) {
  const RandomStream stream(8, RandomPurpose::Mixing);
  std::vector<ImageMixing> mixing;
  for (std::int64_t n = 0; n < batch; ++n) {
    const RandomBlock random = stream.block(0, static_cast<std::uint64_t>(n));
    const auto index = [&](std::uint32_t word) {
      return static_cast<std::int32_t>(uniform_below(word, static_cast<std::uint32_t>(batch)));
    };
    ImageMixing m{.share = uniform01(random[0]),
                  .area = uniform01(random[1]),
                  .partner = index(random[2]),
                  .donor = index(random[3]),
                  .box = {}};
    if (n == 1) m.share = 0.0f;
    if (n == 2) m.area = 1.0f;
    if (n == 3) m = {.share = 1.0f, .area = 0.0f, .partner = 3, .donor = 3, .box = {}};
    mixing.push_back(m);
  }
  return mixing;
}

// Also fewer classes than lanes, as many, and one more.
TYPED_TEST(SoftmaxLoss, IsTheReference) {
  using T = TypeParam;
  constexpr float kScale = 0.125f;
  constexpr auto kOther = SmoothingForm::OtherClasses;
  constexpr auto kAll = SmoothingForm::AllClasses;
  for (const std::int64_t classes : {1, 2, 3, 10, 128, 129, 1000}) {
    for (const auto& [smoothing, form] :
         {std::pair{0.0f, kOther}, {0.1f, kOther}, {0.1f, kAll}, {0.0f, kAll}}) {
      if (classes == 1 && smoothing > 0.0f) continue;
      const SoftmaxLossShape s{9, classes, smoothing, form};
      const Values logits = random_as<T>(s.batch * classes, 1, -5.0, 5.0);
      Labels labels;
      for (std::int64_t n = 0; n < s.batch; ++n) labels.push_back(n * 37 % classes);
      for (const auto& mixing : {std::vector<ImageMixing>{}, some_mixing(s.batch)}) {
        labels[4] = mixing.empty() ? -1 : 0;
        const auto result = this->run(s, logits, labels, kScale, mixing);
        // Float32 sums of `classes` terms.
        const double units = 8.0 * static_cast<double>(classes);
        for (const auto& weights :
             {std::vector<float>{}, {2.0f, 0.0f, 1.0f, 0.5f, 3.0f, 1.0f, 7.0f, 0.25f, 1.5f}}) {
          const auto weighted = this->run(s, logits, labels, kScale, mixing, weights);
          EXPECT_TRUE(close_to(weighted.loss,
                               reference::softmax_loss(s, logits, labels, mixing, weights),
                               units * kFloatUnit));
          EXPECT_TRUE(
              stored<T>(weighted.dlogits,
                        reference::softmax_loss_backward(
                            s, logits, labels, static_cast<double>(kScale), mixing, weights),
                        0.0, units * static_cast<double>(kScale)));
        }
        // Accuracy uses the sample's own label; padding has none.
        EXPECT_EQ(result.rank, this->run(s, logits, labels, kScale).rank);
        if (labels[4] < 0) {
          EXPECT_EQ(result.rank[4], static_cast<double>(classes));
        }
      }
    }
  }
}

TEST(SoftmaxLossShapeTest, TargetsAreThoseOfTheRecipes) {
  const SoftmaxLossShape others{1, 5, 0.1f};
  EXPECT_FLOAT_EQ(others.on(), 0.9f);
  EXPECT_FLOAT_EQ(others.off(), 0.025f);
  const SoftmaxLossShape all{1, 5, 0.1f, SmoothingForm::AllClasses};
  EXPECT_FLOAT_EQ(all.on(), 0.92f);
  EXPECT_FLOAT_EQ(all.off(), 0.02f);
  // K is the number of logits: twice the number of classes in SqueezeNet's CIFAR head.
  EXPECT_FLOAT_EQ((SoftmaxLossShape{1, 20, 0.05f}.off()), 0.05f / 19.0f);
}

TYPED_TEST(SoftmaxLoss, RankCountsTheClassesAhead) {
  const SoftmaxLossShape s{4, 4, 0.0f};
  const Values logits = {3, 2, 1, 0,  // in order
                         1, 1, 1, 1,  // ties: the lower class is ahead
                         0, 5, 5, 5,  // ties for the first place
                         0, 1, 2, 3};
  EXPECT_EQ(this->run(s, logits, {2, 2, 3, 3}, 1.0f).rank, (Values{2, 2, 2, 0}));
  EXPECT_EQ(this->run(s, logits, {0, 0, 1, 0}, 1.0f).rank, (Values{0, 0, 0, 3}));
}

// One sum of 40,000 equal terms would be off by a thousandth.
TYPED_TEST(SoftmaxLoss, RowsAreSummedInTwoLevelsOnAccelerators) {
  if (device::kOnCores) GTEST_SKIP() << "cores sum a row in one level";
  constexpr std::int64_t kClasses = 40'000;
  Values logits(kClasses, -1.125);
  logits[0] = 0.0;
  const auto result = this->run({1, kClasses, 0.0f}, logits, {0}, 1.0f);
  const double total = 1.0 + static_cast<double>(kClasses - 1) * std::exp(-1.125);
  EXPECT_NEAR(result.loss[0], std::log(total), 3e-5);
  EXPECT_NEAR(result.dlogits[0], 1.0 / total - 1.0, kUnit<TypeParam>);
}

TYPED_TEST(SoftmaxLoss, LargeLogitsStayFinite) {
  const SoftmaxLossShape s{3, 3, 0.0f};
  const double most = std::is_same_v<TypeParam, float16> ? 65504.0 : 1e30;
  const Values logits = {1e4, 0, -1e4, -1e4, -1e4, -1e4, most, -most, 0};
  const auto result = this->run(s, logits, {0, 1, 0}, 1.0f);
  EXPECT_TRUE(close_to(result.loss, {0.0, std::log(3.0), 0.0}, 1e-6));
  const double third = 1.0 / 3.0;
  EXPECT_TRUE(close_to(result.dlogits, {0, 0, 0, third, third - 1, third, 0, 0, 0}, 4e-3));
}

TYPED_TEST(SoftmaxLoss, NanLogitGivesNanLoss) {
  const SoftmaxLossShape s{2, 2, 0.0f};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto result = this->run(s, {0, nan, nan, 0}, {0, 0}, 1.0f);
  EXPECT_TRUE(std::isnan(result.loss[0]));
  EXPECT_TRUE(std::isnan(result.loss[1]));
}

}  // namespace
}  // namespace millrace::ops
