// SPDX-License-Identifier: Apache-2.0
//
// Fused norm kernels equal their parts bit for bit: a cut between norm, sum and activation must not
// change a result.
#include "ops/elementwise.hpp"

#include "device/compat.hpp"
#include "tests/ops/norm_cases.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

class NormFusion : public OfEveryType<NormCase> {};

TEST_P(NormFusion, Forward) {
  run([]<class T>(const NormCase& c) {
    const NormShape& s = c.shape;
    NormHarness<T> h(s);
    DeviceValues<T> fused(s.elements()), z(s.elements()), parts(s.elements());
    h.apply(z, nullptr, Activation::None);
    for (const Activation fn : reference::kActivations) {
      h.apply(fused, nullptr, fn);
      activation_forward(h.space, parts.data(), z.data(), s.elements(), fn);
      EXPECT_TRUE(same_bits(fused, parts)) << "function " << static_cast<int>(fn);
      h.apply(fused, &h.skip_device, fn);
      add_forward(h.space, parts.data(), z.data(), h.skip_device.data(), s.elements(), fn);
      EXPECT_TRUE(same_bits(fused, parts)) << "with skip, function " << static_cast<int>(fn);
    }
  });
}

template <class T>
void expect_same(const NormOutputs<T>& a, const NormOutputs<T>& b) {
  EXPECT_TRUE(same_bits(a.dx, b.dx));
  EXPECT_TRUE(same_bits(a.dgamma, b.dgamma));
  EXPECT_TRUE(same_bits(a.dbeta, b.dbeta));
  EXPECT_TRUE(same_bits(a.coefficients, b.coefficients));
}

/// The backward pass with one kernel per op: sum of the two gradients, activation, norm. `z` is the
/// input of the activation. Writes the gradient of the norm's output to out.dz.
template <class T>
void backward_in_parts(NormHarness<T>& h, DeviceValues<T>& z, Activation fn, bool two,
                       NormOutputs<T>& out) {
  const std::int64_t n = h.shape.elements();
  DeviceValues<T> dy(h.dy);
  if (two) add_gradients(h.space, dy.data(), dy.data(), h.dy2_device.data(), n);
  activation_backward(h.space, out.dz.data(), dy.data(), z.data(), n, fn);
  NormBackwardReduce<T> args = h.reduce_arguments();
  out.place(args);
  args.dy = out.dz.data();
  norm_backward_reduce(h.space, h.shape, args);
  h.backward_apply(out.dx, out.dz, out.coefficients, Activation::None);
}

/// Compares one variant of the fused backward pass with its parts. `z` is the input of the
/// activation, or its output (of ReLU, whose gradient can be computed from that).
template <class T>
void expect_fused(NormHarness<T>& h, DeviceValues<T>& z, Activation fn, bool skip, bool two) {
  SCOPED_TRACE(testing::Message() << "function " << static_cast<int>(fn) << ", skip " << skip
                                  << ", two gradients " << two);
  NormOutputs<T> parts(h.shape), fused(h.shape);
  backward_in_parts(h, z, fn, two, parts);
  NormBackwardReduce<T> args = h.reduce_arguments();
  fused.place(args);
  args.dy = h.dy_device.data();
  args.dy2 = two ? h.dy2_device.data() : nullptr;
  args.y = skip ? z.data() : nullptr;
  args.skip_used = skip;
  args.fn = fn;
  args.dz = skip || two ? fused.dz.data() : nullptr;
  norm_backward_reduce(h.space, h.shape, args);
  if (args.dz != nullptr) {
    EXPECT_TRUE(same_bits(fused.dz, parts.dz));
    h.backward_apply(fused.dx, fused.dz, fused.coefficients, Activation::None);
  } else {
    h.backward_apply(fused.dx, h.dy_device, fused.coefficients, fn);
    DeviceValues<T> in_place(h.dy);  // dx in place of dy
    h.backward_apply(in_place, in_place, fused.coefficients, fn);
    EXPECT_TRUE(same_bits(in_place, parts.dx));
  }
  expect_same(fused, parts);
}

TEST_P(NormFusion, Backward) {
  run([]<class T>(const NormCase& c) {
    const NormShape& s = c.shape;
    NormHarness<T> h(s);
    DeviceValues<T> z(s.elements());
    h.apply(z, nullptr, Activation::None);
    for (const bool two : {false, true})
      for (const Activation fn : reference::kActivations) expect_fused(h, z, fn, false, two);
    for (const Activation fn : {Activation::None, Activation::Relu}) {
      h.apply(z, &h.skip_device, fn);
      for (const bool two : {false, true}) expect_fused(h, z, fn, true, two);
    }
  });
}

TEST_P(NormFusion, InPlace) {
  run([]<class T>(const NormCase& c) {
    const NormShape& s = c.shape;
    NormHarness<T> h(s);
    DeviceValues<T> y(s.elements());
    h.apply(y, &h.skip_device, Activation::Relu);
    NormOutputs<T> apart(s);
    NormBackwardReduce<T> args = h.reduce_arguments();
    apart.place(args);
    args.dy = h.dy_device.data();
    args.dy2 = h.dy2_device.data();
    args.y = y.data();
    args.dz = apart.dz.data();
    args.skip_used = true;
    args.fn = Activation::Relu;
    norm_backward_reduce(h.space, s, args);
    h.backward_apply(apart.dx, apart.dz, apart.coefficients, Activation::None);

    for (const bool over_first : {true, false}) {
      NormOutputs<T> over(s);
      DeviceValues<T> dy(h.dy), dy2(h.dy2);
      DeviceValues<T>& target = over_first ? dy : dy2;
      over.place(args);
      args.dy = dy.data();
      args.dy2 = dy2.data();
      args.dz = target.data();
      norm_backward_reduce(h.space, s, args);
      EXPECT_TRUE(same_bits(target, apart.dz));
      h.backward_apply(target, target, over.coefficients, Activation::None);
      EXPECT_TRUE(same_bits(target, apart.dx));
      EXPECT_TRUE(same_bits(over.dgamma, apart.dgamma));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Table, NormFusion, NormFusion::all(norm_cases()), NormFusion::name_of);

// ---- norm parts ---------------------------------------------------------------------------------

// Batch norm over a batch in parts, as on several replicas: the joined statistics are those of the
// whole batch. tests/pipeline/span_test checks the gradients by finite differences, the law
// (SpanLawTest) whole trainings.

constexpr double kDoubleEpsilon = static_cast<double>(kEpsilon);

struct Joined {
  Values statistics, mean, variance;  ///< mean and variance are added to sums of 2 and 3
};

/// Parts of `rows` rows each, one after another in x.
template <class T>
class PartedNorm {
 public:
  PartedNorm(std::int64_t rows, std::int64_t channels, std::int64_t parts, double mean = 1.0)
      : part(batch_norm_shape(rows, channels)),
        whole(batch_norm_shape(rows * parts, channels)),
        x(random_as<T>(whole.elements(), 1, mean - 2.0, mean + 2.0)),
        parts_(parts) {}

  [[nodiscard]] Joined run() {
    const auto channels = static_cast<std::size_t>(part.channels);
    DeviceValues<float> statistics(part.statistics_floats());
    NormScratchMemory scratch(part);
    DeviceValues<float> mean(Values(channels, 2.0)), variance(Values(channels, 3.0));
    DeviceValues<Accumulator> exchange(parts_ * part.part_values());
    for (std::int64_t p = 0; p < parts_; ++p) {
      const auto first = x.begin() + static_cast<std::ptrdiff_t>(p * part.elements());
      DeviceValues<T> own(Values(first, first + static_cast<std::ptrdiff_t>(part.elements())));
      norm_moments<T>(space, part, exchange.data() + p * part.part_values(), scratch.get(),
                      own.data());
      space.fence();
    }
    norm_join_moments(space, part, parts_, statistics.data(), {mean.data(), variance.data(), false},
                      exchange.data(), kEpsilon);
    return {statistics.values(), mean.values(), variance.values()};
  }

  device::ExecutionSpace space;
  NormShape part, whole;
  Values x;

 private:
  std::int64_t parts_;
};

struct PartsCase {
  std::string name;
  std::int64_t rows;
  std::int64_t channels;
  std::int64_t parts;
};
void PrintTo(const PartsCase& c, std::ostream* out) { *out << c.name; }

class NormParts : public OfEveryType<PartsCase> {};

TEST_P(NormParts, StatisticsAreThoseOfTheWholeBatch) {
  run([]<class T>(const PartsCase& parts) {
    PartedNorm<T> norm(parts.rows, parts.channels, parts.parts);
    const Joined out = norm.run();
    const reference::Moments m = reference::norm_moments(norm.whole, norm.x);
    const std::size_t channels = m.mean.size();
    const auto count = static_cast<double>(norm.whole.rows);
    Values statistics = m.mean;
    Values mean;
    Values variance;
    for (std::size_t c = 0; c < channels; ++c) {
      statistics.push_back(1.0 / std::sqrt(m.variance[c] + kDoubleEpsilon));
      mean.push_back(2.0 + m.mean[c]);
      variance.push_back(3.0 + m.variance[c] * (count > 1.0 ? count / (count - 1.0) : 1.0));
    }
    const auto tolerance = [](double x) { return 16.0 * kFloatUnit * (1.0 + std::abs(x)); };
    EXPECT_TRUE(
        close(out.statistics, statistics, [&](std::size_t i) { return tolerance(statistics[i]); }));
    EXPECT_TRUE(close(out.mean, mean, [&](std::size_t i) { return tolerance(mean[i]); }));
    EXPECT_TRUE(
        close(out.variance, variance, [&](std::size_t i) { return tolerance(variance[i]); }));
  });
}

TEST(NormPartsTest, AreStableWhereTheMeanIsLarge) {
  PartedNorm<float> norm(500, 8, 4, 1e4);
  const Joined out = norm.run();
  const reference::Moments m = reference::norm_moments(norm.whole, norm.x);
  for (std::size_t c = 0; c < m.mean.size(); ++c) {
    EXPECT_NEAR(out.statistics[c], m.mean[c], 0.001);
    const double inverse = 1.0 / std::sqrt(m.variance[c] + kDoubleEpsilon);
    EXPECT_NEAR(out.statistics[m.mean.size() + c], inverse, 1e-5 * inverse);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, NormParts,
                         NormParts::all({{"Rows", 1, 16, 2},
                                         {"OneRow", 1, 3, 1},
                                         {"C1", 8, 1, 4},
                                         {"C64", 49, 64, 2},
                                         {"C3", 350, 3, 3},
                                         {"Chunks", 700, 128, 2},
                                         {"C300", 33, 300, 5}}),
                         NormParts::name_of);

}  // namespace
}  // namespace millrace::ops
