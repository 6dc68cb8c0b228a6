// SPDX-License-Identifier: Apache-2.0
//
// Norms alone against the reference. With what is fused into them they equal their parts bit for
// bit (norm_fusion_test), and the parts equal the reference (elementwise_test).
#include "ops/norm.hpp"

#include "device/compat.hpp"
#include "tests/ops/norm_cases.hpp"

namespace millrace::ops {
namespace {

class Norm : public OfEveryType<NormCase> {};

TEST_P(Norm, StatisticsAreTheReference) {
  run([]<class T>(const NormCase& given) {
    const NormShape& s = given.shape;
    const Values x = random_as<T>(s.elements(), 1, -1.0, 3.0);
    EXPECT_TRUE(stored<float>(statistics_of<T>(s, x), expected_statistics(s, x), 15.0, 16.0));
  });
}

TEST_P(Norm, ForwardIsTheReference) {
  run([]<class T>(const NormCase& given) {
    const NormShape& s = given.shape;
    NormHarness<T> h(s);
    const Values expected = reference::norm_forward(s, h.x, h.gamma, h.beta, kDoubleEpsilon);
    const Values xhat = reference::normalise(s, h.x, kDoubleEpsilon);
    DeviceValues<T> y(s.elements());
    h.apply(y, nullptr, Activation::None);
    // Rounded to T; float32 loses a little in a x + b where the mean is larger than the deviation,
    // here by up to 32 for a single row.
    EXPECT_TRUE(close(y.values(), expected, [&](std::size_t i) {
      return (kUnit<T> + 8.0 * kFloatUnit) * (std::abs(expected[i]) + 1.0) +
             512.0 * kFloatUnit * (1.0 + std::abs(xhat[i]));
    }));
  });
}

TEST_P(Norm, BackwardIsTheReference) {
  run([]<class T>(const NormCase& given) {
    const NormShape& s = given.shape;
    NormHarness<T> h(s);
    const reference::NormSets sets(s);
    const Values xhat = reference::normalise(s, h.x, kDoubleEpsilon);
    const Values statistics = expected_statistics(s, h.x);
    const double inverse = *std::max_element(
        statistics.begin() + static_cast<std::ptrdiff_t>(statistics.size() / 2), statistics.end());
    NormOutputs<T> out(s);
    h.backward(h.dy_device, out);
    const reference::NormGradients expected =
        reference::norm_backward(s, h.dy, h.x, h.gamma, kDoubleEpsilon);
    constexpr double kRounding = 64.0 * kFloatUnit;
    Values sums(h.gamma.size());
    Values products(h.gamma.size());
    for (std::size_t i = 0; i < h.dy.size(); ++i) {
      sums[sets.channel(i)] += std::abs(h.dy[i]);
      products[sets.channel(i)] += std::abs(h.dy[i]) * (std::abs(xhat[i]) + 1.0);
    }
    EXPECT_TRUE(close(out.dbeta.values(), expected.dbeta,
                      [&](std::size_t c) { return kRounding * sums[c]; }));
    EXPECT_TRUE(close(out.dgamma.values(), expected.dgamma,
                      [&](std::size_t c) { return kRounding * products[c]; }));
    // |dy| <= 1 and gamma <= 1.5; the terms of dx are at most about 3 inverse (1 + |xhat|) each.
    EXPECT_TRUE(close(out.dx.values(), expected.dx, [&](std::size_t i) {
      return kUnit<T> * std::abs(expected.dx[i]) +
             2.0 * kRounding * 3.0 * inverse * (1.0 + std::abs(xhat[i]));
    }));
  });
}

TEST_P(Norm, ParameterGradientsAreAddedUp) {
  run([]<class T>(const NormCase& given) {
    const NormShape& s = given.shape;
    NormHarness<T> h(s);
    NormOutputs<T> out(s);
    NormBackwardReduce<T> args = h.reduce_arguments(h.dy_device, out);
    const Values before = random_as<float>(s.channels, 7);
    DeviceValues<float> dgamma(before), dbeta(before);
    args.total_dgamma = dgamma.data();
    args.total_dbeta = dbeta.data();
    args.first = false;
    norm_backward_reduce(h.space, s, args);
    EXPECT_EQ(dgamma.values(), stored_sum<float>(before, out.dgamma.values()));
    EXPECT_EQ(dbeta.values(), stored_sum<float>(before, out.dbeta.values()));
    args.first = true;
    norm_backward_reduce(h.space, s, args);
    EXPECT_TRUE(same_bits(dgamma, out.dgamma));
    EXPECT_TRUE(same_bits(dbeta, out.dbeta));
  });
}

TEST_P(Norm, SumsOfTheOnlyPartGiveTheSameCoefficients) {
  run([]<class T>(const NormCase& given) {
    const NormShape& s = given.shape;
    if (!s.by_channel()) return;  // batch norm only
    NormHarness<T> h(s);
    NormOutputs<T> whole(s), part(s);
    norm_backward_reduce(h.space, s, h.reduce_arguments(h.dy_device, whole));
    DeviceValues<Accumulator> sums(s.part_values());
    norm_backward_sums(h.space, s, sums.data(), h.reduce_arguments(h.dy_device, part));
    norm_join_sums(h.space, s, 1, part.coefficients.data(), sums.data(), h.statistics.data(),
                   h.gamma_device.data());
    EXPECT_TRUE(same_bits(part.coefficients, whole.coefficients));
    EXPECT_TRUE(same_bits(part.dgamma, whole.dgamma));
    EXPECT_TRUE(same_bits(part.dbeta, whole.dbeta));
  });
}

INSTANTIATE_TEST_SUITE_P(Table, Norm, Norm::all(norm_cases()), Norm::name_of);

// ---- statistics ---------------------------------------------------------------------------------

class Statistics : public testing::TestWithParam<NormCase> {};

// Mean 10,000 and deviation 0.01: x resolves a tenth of the deviation. Sums of raw squares in
// float32 would have an error of thousands of times the variance. Means are rounded twice, by at
// most 0.0005, for a chunk and for all chunks: squared, that is 1 % of the variance.
TEST_P(Statistics, AreStableWhereTheSpreadIsAMillionthOfTheMean) {
  const NormShape& s = GetParam().shape;
  if (s.rows * (s.channels / s.groups) < 100) GTEST_SKIP() << "too few elements for a deviation";
  const double half_width = 0.01 * std::sqrt(3.0);
  const Values x = random_as<float>(s.elements(), 1, 1e4 - half_width, 1e4 + half_width);
  constexpr float kNone = 1e-12f;
  const Values expected = expected_statistics(s, x, static_cast<double>(kNone));
  EXPECT_TRUE(close(statistics_of<float>(s, x, kNone), expected, [&](std::size_t i) {
    return i < expected.size() / 2 ? 0.001 : 1e-2 * expected[i];
  }));
}

TEST_P(Statistics, OfAConstantAreThatConstant) {
  const NormShape& s = GetParam().shape;
  const double constant = decode(encode<float>(12345.678));
  const Values x(static_cast<std::size_t>(s.elements()), constant);
  Values expected(static_cast<std::size_t>(s.statistics_floats()), 1.0 / std::sqrt(kDoubleEpsilon));
  const std::size_t half = expected.size() / 2;
  std::fill_n(expected.begin(), half, constant);
  EXPECT_TRUE(close(statistics_of<float>(s, x), expected,
                    [&](std::size_t i) { return i < half ? 0.0 : 1e-5; }));
}

// Sums in float32, as a library leaves them.
TEST_P(Statistics, FollowFromSums) {
  const NormShape& s = GetParam().shape;
  if (!s.by_channel()) GTEST_SKIP() << "libraries have such sums for batch norm only";
  const device::ExecutionSpace space;
  const Values x = random_as<float>(s.elements(), 1, -1.0, 3.0);
  const auto channels = static_cast<std::size_t>(s.channels);
  Values sum(channels), square(channels);
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum[i % channels] += x[i];
    square[i % channels] += x[i] * x[i];
  }
  DeviceValues<float> sums(sum), squares(square);
  DeviceValues<float> statistics(s.statistics_floats()), mean(s.channels), variance(s.channels);
  for (const bool first : {true, false})
    norm_statistics_of_sums(space, s, statistics.data(), {mean.data(), variance.data(), first},
                            sums.data(), squares.data(), kEpsilon);
  // Squares of about 2.3 are rounded to float32 once; what they lose weighs more in a small
  // variance.
  const Values expected = expected_statistics(s, x);
  EXPECT_TRUE(close(statistics.values(), expected, [&](std::size_t i) {
    const double inverse = expected[i];
    return i < channels ? 1e-6 : inverse * (1e-6 + 0.5e-6 * inverse * inverse);
  }));
  reference::Moments twice = running_moments(s, x);
  for (double& value : twice.mean) value *= 2.0;
  for (double& value : twice.variance) value *= 2.0;
  EXPECT_TRUE(close_to(mean.values(), twice.mean, 2e-6));
  EXPECT_TRUE(close_to(variance.values(), twice.variance, 1e-5));
}

TEST(StatisticsOfSums, NeverHaveANegativeVariance) {
  const device::ExecutionSpace space;
  const NormShape s = batch_norm_shape(3, 2);
  // Of three values 0.1, rounded so that the square of the mean is the larger one; and a NaN.
  DeviceValues<float> sums(Values{0.3, std::nan("")});
  DeviceValues<float> squares(Values{0.0299999, 1.0});
  DeviceValues<float> statistics(s.statistics_floats());
  norm_statistics_of_sums(space, s, statistics.data(), {}, sums.data(), squares.data(), kEpsilon);
  const Values values = statistics.values();
  EXPECT_NEAR(values[2], 1.0 / std::sqrt(kDoubleEpsilon), 1e-3);
  EXPECT_TRUE(std::isnan(values[3]));
}

INSTANTIATE_TEST_SUITE_P(Table, Statistics, testing::ValuesIn(norm_cases()),
                         [](const auto& param) { return param.param.name; });

// A single row has no variance, and none is divided by zero.
TEST(RunningStatistics, SumsOfMicroBatches) {
  for (const std::int64_t rows : {1, 20}) {
    const NormShape s = batch_norm_shape(rows, 5);
    DeviceValues<float> mean(s.channels), variance(s.channels);
    reference::Moments expected{Values(5), Values(5)};
    for (std::uint64_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
      const Values x = random_as<float>(s.elements(), micro_batch);
      (void)statistics_of<float>(s, x, kEpsilon, {mean.data(), variance.data(), micro_batch == 0});
      const reference::Moments m = running_moments(s, x);
      for (std::size_t c = 0; c < 5; ++c) {
        expected.mean[c] += m.mean[c];
        expected.variance[c] += m.variance[c];
      }
    }
    EXPECT_TRUE(close_to(mean.values(), expected.mean, 1e-6));
    EXPECT_TRUE(close_to(variance.values(), expected.variance, 1e-6));
  }
}

// Two tensors of different decay; the second has more than one span. What lies between them stays.
TEST(RunningStatistics, MoveBySpan) {
  const std::vector<RunningSpan> spans = {
      {.offset = 0, .elements = 5, .decay = 0.9f},
      {.offset = 8, .elements = kRunningElements, .decay = 0.5f},
      {.offset = 8 + kRunningElements, .elements = 3, .decay = 0.5f}};
  const Values before = random_as<float>(kRunningElements + 11, 1);
  const Values sums = random_as<float>(kRunningElements + 11, 2);
  DeviceValues<float> moving(before), sums_device(sums);
  const DeviceRecords<RunningSpan> records(spans);
  const device::ExecutionSpace space;
  update_running(space, records.data(), std::ssize(spans), moving.data(), sums_device.data(), 3,
                 DeviceRecords<std::uint32_t>({0}).data());
  Values expected = before;
  for (const RunningSpan& span : spans)
    for (std::int64_t i = span.offset; i < span.offset + span.elements; ++i) {
      const auto k = static_cast<std::size_t>(i);
      const float weight = (1.0f - span.decay) / 3.0f;
      expected[k] = static_cast<double>(span.decay * static_cast<float>(before[k]) +
                                        weight * static_cast<float>(sums[k]));
    }
  EXPECT_EQ(moving.values(), expected);
}

TEST(NormParameterGradients, AreAddedInOrder) {
  constexpr std::int64_t kChannels = 5;
  const Values first = random_as<float>(2 * kChannels, 1);
  const Values second = random_as<float>(2 * kChannels, 2);
  DeviceValues<float> dgamma(kChannels), dbeta(kChannels), sums(first), more(second);
  const device::ExecutionSpace space;
  add_parameter_gradients(space, kChannels, dgamma.data(), dbeta.data(), sums.data(), true);
  add_parameter_gradients(space, kChannels, dgamma.data(), dbeta.data(), more.data(), false);
  device::fence(space);
  Values total = dgamma.values();
  const Values beta = dbeta.values();
  total.insert(total.end(), beta.begin(), beta.end());
  EXPECT_EQ(total, stored_sum<float>(first, second));
}

TEST(RunningStatistics, ServeEvaluation) {
  const device::ExecutionSpace space;
  constexpr std::int64_t kChannels = 24;
  const Values mean = random_as<float>(kChannels, 1);
  const Values variance = random_as<float>(kChannels, 2, 0.1, 2.0);
  DeviceValues<float> mean_device(mean), variance_device(variance), statistics(2 * kChannels);
  norm_statistics_from_running(space, kChannels, statistics.data(), mean_device.data(),
                               variance_device.data(), kEpsilon);
  Values expected = mean;
  for (const double v : variance) expected.push_back(1.0 / std::sqrt(v + kDoubleEpsilon));
  EXPECT_TRUE(stored<float>(statistics.values(), expected, 4.0));
}

}  // namespace
}  // namespace millrace::ops
