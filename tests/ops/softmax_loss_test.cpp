// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax_loss.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/ops/device_values.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

using Labels = std::vector<std::int64_t>;

Values as_values(const Labels& labels) { return Values(labels.begin(), labels.end()); }

template <class T>
class SoftmaxLoss : public testing::Test {
 protected:
  struct Result {
    Values loss, rank, dlogits;
  };
  static Result run(const SoftmaxLossShape& s, const Values& logits, const Labels& labels,
                    float scale) {
    const device::ExecutionSpace space;
    DeviceValues<T> logits_device(logits), dlogits(s.batch * s.classes);
    DeviceValues<std::int32_t> labels_device(as_values(labels)), rank(s.batch);
    DeviceValues<float> loss(s.batch);
    softmax_loss_forward(space, s, loss.data(), rank.data(), logits_device.data(),
                         labels_device.data());
    softmax_loss_backward(space, s, dlogits.data(), logits_device.data(), labels_device.data(),
                          scale);
    device::fence(space);
    return {loss.values(), rank.values(), dlogits.values()};
  }
};
using StorageTypes = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(SoftmaxLoss, StorageTypes);

TYPED_TEST(SoftmaxLoss, IsTheReference) {
  using T = TypeParam;
  constexpr float kScale = 0.125f;
  for (const std::int64_t classes : {2, 10, 1000}) {
    for (const float smoothing : {0.0f, 0.1f}) {
      const SoftmaxLossShape s{9, classes, smoothing};
      const Values logits = random_as<T>(s.batch * classes, 1, -5.0, 5.0);
      Labels labels;
      for (std::int64_t n = 0; n < s.batch; ++n) labels.push_back(n * 37 % classes);
      labels[4] = -1;
      const auto result = this->run(s, logits, labels, kScale);
      // Float32 sums of `classes` terms.
      const double unit = 8.0 * kFloatUnit * static_cast<double>(classes);
      EXPECT_TRUE(close_to(result.loss, reference::softmax_loss(s, logits, labels), unit));
      const Values gradient =
          reference::softmax_loss_backward(s, logits, labels, static_cast<double>(kScale));
      EXPECT_TRUE(close(result.dlogits, gradient, [&](std::size_t i) {
        return kUnit<T> * std::abs(gradient[i]) + unit * static_cast<double>(kScale);
      }));
    }
  }
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

TYPED_TEST(SoftmaxLoss, PaddingSamplesCountForNothing) {
  const SoftmaxLossShape s{2, 3, 0.1f};
  const auto result = this->run(s, {1, 2, 3, 4, 5, 6}, {-1, -1}, 1.0f);
  EXPECT_EQ(result.loss, Values(2, 0.0));
  EXPECT_EQ(result.rank, Values(2, 3.0));
  EXPECT_EQ(result.dlogits, Values(6, 0.0));
}

TYPED_TEST(SoftmaxLoss, LargeLogitsStayFinite) {
  const SoftmaxLossShape s{3, 3, 0.0f};
  const Values logits = {1e4, 0, -1e4, -1e4, -1e4, -1e4, 1e30, -1e30, 0};
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

TYPED_TEST(SoftmaxLoss, GradientOfASampleSumsToZero) {
  using T = TypeParam;
  const SoftmaxLossShape s{3, 100, 0.1f};
  const auto result =
      this->run(s, random_as<T>(s.batch * s.classes, 7, -2.0, 2.0), {1, 50, 99}, 1.0f);
  for (std::size_t n = 0; n < 3; ++n) {
    double sum = 0.0;
    for (std::size_t k = 0; k < 100; ++k) sum += result.dlogits[n * 100 + k];
    EXPECT_NEAR(sum, 0.0, 2.0 * kUnit<T> + 1e-5);
  }
}

}  // namespace
}  // namespace millrace::ops
