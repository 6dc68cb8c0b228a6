// SPDX-License-Identifier: Apache-2.0
//
// Tests of the references: gradients against central differences in double, and a few values by
// hand.
#include "tests/ops/device_values.hpp"
#include "tests/ops/shapes.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

/// Whether `gradient` is that of sum(dy * f(x)) with respect to x, to 1e-7 times its largest
/// component. The error of the differences is about step^2 f''' plus 1e-16 |f| / step; the first
/// term vanishes if f is linear or quadratic.
template <class F>
testing::AssertionResult is_gradient(const Values& gradient, Values x, const Values& dy, F&& f) {
  constexpr double kStep = 1e-5;
  const auto value = [&] {
    const Values y = f(x);
    return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
  };
  Values numeric;
  double largest = 0.0;
  for (double& element : x) {
    const double here = element;
    element = here + kStep;
    const double above = value();
    element = here - kStep;
    const double below = value();
    element = here;
    numeric.push_back((above - below) / (2.0 * kStep));
    largest = std::max(largest, std::abs(numeric.back()));
  }
  if (!(largest > 0.0))
    return testing::AssertionFailure() << "the gradient is zero: the test proves nothing";
  return close_to(gradient, numeric, 1e-7 * largest);
}

ConvShape awkward_convolution() {
  return ConvCase{"", 2, {5, 4, 6}, 4, {3, 2}, {2, 1}, {1, 0, 0, 1}, 2, {1, 2}, true}.shape();
}

TEST(Reference, ConvolutionByHand) {
  // 2x2 image, 2x2 window, one row of padding at the top: y = [k2 k3] . [1 2], then the whole
  // window.
  const ConvShape s = ConvCase{"", 1, {2, 2, 1}, 1, {2, 2}, {1, 1}, {1, 0, 0, 0}}.shape();
  EXPECT_EQ(reference::conv_forward(s, {1, 2, 3, 4}, {10, 20, 30, 40}, {0.5}),
            (Values{30 + 80 + 0.5, 10 + 40 + 90 + 160 + 0.5}));
}

TEST(Reference, ConvolutionGradients) {
  const ConvShape s = awkward_convolution();
  const Values x = random_values(s.window.in_elements(), 1);
  const Values kernel = random_values(s.kernel_elements(), 2);
  const Values bias = random_values(s.window.out.c, 3);
  const Values dy = random_values(s.window.out_elements(), 4);
  const auto forward = [&](const Values& in, const Values& k, const Values& b) {
    return reference::conv_forward(s, in, k, b);
  };
  EXPECT_TRUE(is_gradient(reference::conv_backward_input(s, dy, kernel), x, dy,
                          [&](const Values& v) { return forward(v, kernel, bias); }));
  EXPECT_TRUE(is_gradient(reference::conv_backward_weight(s, dy, x), kernel, dy,
                          [&](const Values& v) { return forward(x, v, bias); }));
  EXPECT_TRUE(is_gradient(reference::bias_gradient(dy, s.window.out.c), bias, dy,
                          [&](const Values& v) { return forward(x, kernel, v); }));
}

TEST(Reference, FunctionsAtKnownPoints) {
  EXPECT_EQ(reference::apply_fn(Activation::Relu, -2.0), 0.0);
  EXPECT_EQ(reference::apply_fn(Activation::Relu, 2.0), 2.0);
  EXPECT_EQ(reference::apply_fn(Activation::Sigmoid, 0.0), 0.5);
  EXPECT_NEAR(reference::apply_fn(Activation::Swish, 1.0), 0.731058578630005, 1e-15);
  EXPECT_EQ(reference::apply_fn(Activation::None, -3.0), -3.0);
}

TEST(Reference, FunctionDerivatives) {
  const Values z = random_values(50, 1, -4.0, 4.0);
  for (const auto& [fn, numbers] : reference::kFunctions) {
    const auto each = [&, fn = fn, n = numbers](const Values& v, const auto& function) {
      Values y;
      for (const double value : v) y.push_back(function(fn, value, n));
      return y;
    };
    EXPECT_TRUE(is_gradient(each(z, reference::fn_derivative), z, Values(z.size(), 1.0),
                            [&](const Values& v) { return each(v, reference::apply_fn); }))
        << name_of(fn);
  }
}

TEST(Reference, NormHasZeroMeanAndUnitVariance) {
  const NormShape s = group_norm_shape(2, 12, 8, 4, true);
  const Values xhat = reference::normalise(s, random_values(s.elements(), 1, 3.0, 5.0), 0.0);
  const reference::Moments m = reference::norm_moments(s, xhat);
  ASSERT_EQ(m.mean.size(), 8u);
  EXPECT_TRUE(close_to(m.mean, Values(8, 0.0), 1e-14));
  EXPECT_TRUE(close_to(m.variance, Values(8, 1.0), 1e-13));
}

TEST(Reference, NormSetsAreTheRightChannels) {
  const reference::NormSets near(group_norm_shape(2, 3, 6, 2, false));
  const reference::NormSets strided(group_norm_shape(2, 3, 6, 2, true));
  const std::vector<std::size_t> sample1 = {18, 19, 20, 21, 22, 23};  // its first pixel
  std::vector<std::size_t> near_sets, strided_sets;
  for (const std::size_t i : sample1) near_sets.push_back(near.set(i));
  for (const std::size_t i : sample1) strided_sets.push_back(strided.set(i));
  EXPECT_EQ(near_sets, (std::vector<std::size_t>{2, 2, 2, 3, 3, 3}));
  EXPECT_EQ(strided_sets, (std::vector<std::size_t>{2, 3, 2, 3, 2, 3}));
}

TEST(Reference, NormGradients) {
  for (const NormShape& s : {batch_norm_shape(10, 3), group_norm_shape(2, 6, 8, 4, false),
                             group_norm_shape(2, 6, 8, 2, true)}) {
    const Values x = random_values(s.elements(), 1);
    const Values gamma = random_values(s.channels, 2, 0.5, 1.5);
    const Values beta = random_values(s.channels, 3);
    const Values dz = random_values(s.elements(), 4);
    const auto forward = [&](const Values& input, const Values& scale, const Values& shift) {
      return reference::norm_forward(s, input, scale, shift, 1e-3);
    };
    const reference::NormGradients g = reference::norm_backward(s, dz, x, gamma, 1e-3);
    EXPECT_TRUE(is_gradient(g.dx, x, dz, [&](const Values& v) { return forward(v, gamma, beta); }));
    EXPECT_TRUE(
        is_gradient(g.dgamma, gamma, dz, [&](const Values& v) { return forward(x, v, beta); }));
    EXPECT_TRUE(
        is_gradient(g.dbeta, beta, dz, [&](const Values& v) { return forward(x, gamma, v); }));
  }
}

TEST(Reference, PoolGradients) {
  const WindowShape s{2, {5, 6, 3}, {3, 3, 3}, 3, 3, 2, 2, 1, 0};
  const Values x = random_values(s.in_elements(), 1);
  const Values dy = random_values(s.out_elements(), 2);
  EXPECT_TRUE(is_gradient(reference::max_pool_backward(s, reference::max_pool(s, x), dy), x, dy,
                          [&](const Values& v) { return reference::max_pool(s, v).y; }));
  for (const bool padding : {false, true})
    EXPECT_TRUE(
        is_gradient(reference::average_pool_backward(s, dy, padding), x, dy,
                    [&](const Values& v) { return reference::average_pool(s, v, padding); }));
}

TEST(Reference, ScaleGradients) {
  const ScaleShape s{3, 4, 5};
  const Values x = random_values(s.elements(), 1);
  const Values scale = random_values(s.samples * s.channels, 2);
  const Values dy = random_values(s.elements(), 3);
  const reference::ScaleGradients g = reference::scale_channels_backward(s, dy, x, scale);
  EXPECT_TRUE(is_gradient(g.dx, x, dy,
                          [&](const Values& v) { return reference::scale_channels(s, v, scale); }));
  EXPECT_TRUE(is_gradient(g.dscale, scale, dy,
                          [&](const Values& v) { return reference::scale_channels(s, x, v); }));
}

TEST(Reference, SoftmaxLossByHand) {
  const SoftmaxLossShape plain{1, 2, 0.0f};
  EXPECT_NEAR(reference::softmax_loss(plain, {0.0, 0.0}, {1})[0], std::log(2.0), 1e-15);
  const SoftmaxLossShape smooth{1, 3, 0.25f};
  // log softmax of (0, 0, log 2) is (-log 4, -log 4, -log 2); targets 1/8, 3/4, 1/8.
  EXPECT_NEAR(reference::softmax_loss(smooth, {0.0, 0.0, std::log(2.0)}, {1})[0],
              0.875 * std::log(4.0) + 0.125 * std::log(2.0), 1e-15);
}

TEST(Reference, SoftmaxLossGradient) {
  const std::vector<std::int64_t> labels = {0, 6, -1, 3};
  std::vector<ImageMixing> mixing(4);
  for (std::int32_t n = 0; n < 4; ++n)
    mixing[static_cast<std::size_t>(n)] = {.share = 0.3f * static_cast<float>(n),
                                           .area = 0.25f,
                                           .partner = 3 - n,
                                           .donor = 1,
                                           .box = {}};
  for (const SmoothingForm form : {SmoothingForm::OtherClasses, SmoothingForm::AllClasses})
    for (const auto& [wanted, mixed] : {std::pair{labels, std::vector<ImageMixing>{}},
                                        {std::vector<std::int64_t>{0, 6, 2, 3}, mixing}}) {
      const SoftmaxLossShape s{4, 7, 0.1f, form};
      const Values logits = random_values(s.batch * s.classes, 1, -3.0, 3.0);
      EXPECT_TRUE(is_gradient(reference::softmax_loss_backward(s, logits, wanted, 0.5, mixed),
                              logits, Values(4, 0.5),
                              [&, &wanted = wanted, &mixed = mixed](const Values& v) {
                                return reference::softmax_loss(s, v, wanted, mixed);
                              }));
    }
}

}  // namespace
}  // namespace millrace::ops
