// SPDX-License-Identifier: Apache-2.0
#include "models/graph.hpp"

#include "core/error.hpp"
#include "models/registry.hpp"
#include "tests/support/test.hpp"

namespace millrace::models {
namespace {

using Dims = std::vector<std::int64_t>;

/// Standard deviation of a standard normal distribution truncated at 2.
constexpr double kCut = 0.87962566103423978;

Parameter make(std::string name, Dims shape, Initialiser init) {
  return {.name = std::move(name),
          .shape = std::move(shape),
          .role = ParameterRole::Kernel,
          .init = init,
          .op = OpId{0}};
}

std::vector<float> values_of(const Parameter& parameter, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(parameter.elements()));
  initialise(parameter, seed, values);
  return values;
}

struct Statistics {
  double mean = 0;
  double deviation = 0;
  double largest = 0;  ///< magnitude
};

Statistics statistics_of(const std::vector<float>& values) {
  Statistics s;
  double squares = 0;
  for (const float value : values) {
    const auto x = static_cast<double>(value);
    s.mean += x;
    squares += x * x;
    s.largest = std::max(s.largest, std::abs(x));
  }
  const auto n = static_cast<double>(values.size());
  s.mean /= n;
  s.deviation = std::sqrt(squares / n - s.mean * s.mean);
  return s;
}

void expect_moments(const Statistics& s, double deviation, std::size_t count) {
  const double error = deviation / std::sqrt(static_cast<double>(count));
  EXPECT_NEAR(s.mean, 0.0, 4 * error);
  EXPECT_NEAR(s.deviation, deviation, 4 * error);
}

TEST(Initialise, Constants) {
  for (const float x : values_of(make("a", {5}, {Initialiser::Kind::Zero}), 1)) EXPECT_EQ(x, 0.0f);
  for (const float x : values_of(make("a", {5}, {Initialiser::Kind::One}), 1)) EXPECT_EQ(x, 1.0f);
}

TEST(Initialise, VarianceScalingCountsTheFanOfItsMode) {
  const Dims shape = {64, 3, 3, 32};  // fans: 288 in, 576 out
  const auto in = values_of(
      make("a", shape, {Initialiser::Kind::VarianceScaling, 1.0, Initialiser::Fan::In}), 1);
  expect_moments(statistics_of(in), std::sqrt(1.0 / 288), in.size());
  EXPECT_LE(statistics_of(in).largest, 2.0 * std::sqrt(1.0 / 288) / kCut * (1 + 1e-6));
  EXPECT_GT(statistics_of(in).largest, 1.95 * std::sqrt(1.0 / 288) / kCut);
  const auto out = values_of(
      make("a", shape, {Initialiser::Kind::VarianceScaling, 2.0, Initialiser::Fan::Out}), 1);
  expect_moments(statistics_of(out), std::sqrt(2.0 / 576), out.size());
}

TEST(Initialise, GlorotUniformStaysInItsBounds) {
  const auto dense = values_of(make("fc", {100, 200}, {Initialiser::Kind::GlorotUniform}), 1);
  const double limit = std::sqrt(6.0 / 300);
  expect_moments(statistics_of(dense), limit / std::sqrt(3.0), dense.size());
  EXPECT_LE(statistics_of(dense).largest, limit);
  EXPECT_GT(statistics_of(dense).largest, 0.99 * limit);
  const auto conv = values_of(make("c", {64, 3, 3, 32}, {Initialiser::Kind::GlorotUniform}), 1);
  EXPECT_LE(statistics_of(conv).largest, std::sqrt(6.0 / (288 + 576)));
  EXPECT_GT(statistics_of(conv).largest, 0.99 * std::sqrt(6.0 / (288 + 576)));
}

TEST(Initialise, NormalsAndTruncatedNormals) {
  const auto normal = values_of(make("n", {100, 200}, {Initialiser::Kind::Normal, 0.01}), 1);
  expect_moments(statistics_of(normal), 0.01, normal.size());
  EXPECT_GT(statistics_of(normal).largest, 0.03);
  const auto cut = values_of(make("n", {100, 200}, {Initialiser::Kind::TruncatedNormal, 0.01}), 1);
  expect_moments(statistics_of(cut), 0.01 * kCut, cut.size());
  EXPECT_LE(statistics_of(cut).largest, 0.02f);
  EXPECT_GT(statistics_of(cut).largest, 0.0195);
}

TEST(Initialise, IsAPureFunctionOfSeedNameAndElement) {
  const Initialiser init = {Initialiser::Kind::TruncatedNormal, 1.0};
  const auto values = values_of(make("b1/0/conv1/kernel", {8, 3, 3, 8}, init), 1);
  EXPECT_EQ(values_of(make("b1/0/conv1/kernel", {8, 3, 3, 8}, init), 1), values);
  EXPECT_NE(values_of(make("b1/0/conv1/kernel", {8, 3, 3, 8}, init), 2), values);
  EXPECT_NE(values_of(make("b1/0/conv2/kernel", {8, 3, 3, 8}, init), 1), values);
  // Repeated draws of one element do not change later elements.
  const auto fewer = values_of(make("b1/0/conv1/kernel", {3, 3, 3, 8}, init), 1);
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), values.begin()));
}

void expect_first(const std::vector<float>& values, const std::vector<float>& golden) {
  for (std::size_t i = 0; i < golden.size(); ++i) EXPECT_FLOAT_EQ(values[i], golden[i]) << i;
}

// Computed by a separate program in Python from the definitions of splitmix64, FNV-1a,
// Philox4x32-10 and Box-Muller. They must never change: every recorded run depends on them.
TEST(Initialise, GoldenFirstValues) {
  const Graph graph = build_model({});
  const auto parameter = [&](std::string_view op) {
    return graph.parameter(graph.op(graph.find(op)).parameters.front());
  };
  // The first draws of elements 0 and 3 were outside two deviations.
  expect_first(values_of(parameter("b1/0/conv1"), 42),
               {-0.0128847724f, 0.0487768985f, 0.123841897f, 0.129718214f});
  expect_first(values_of(parameter("fc1"), 42),
               {0.0947145447f, -0.269680172f, 0.00910438132f, -0.107620694f});
  expect_first(values_of(make("n/kernel", {2, 2}, {Initialiser::Kind::Normal, 0.01}), 7),
               {0.00582880061f, 0.000801929098f, -0.0207540262f, 0.0115175582f});
}

TEST(Initialise, RefusesASpanOfAnotherSize) {
  std::vector<float> values(4);
  EXPECT_THROW(initialise(make("a", {5}, {Initialiser::Kind::One}), 1, values), Error);
}

}  // namespace
}  // namespace millrace::models
