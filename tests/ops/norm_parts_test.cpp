// SPDX-License-Identifier: Apache-2.0
//
// Batch norm over a batch in parts, as on several replicas. The joined parts must give the same
// result as the whole batch, and each part's gradients of gamma and beta must be its own
// contribution.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "device/compat.hpp"
#include "tests/ops/norm_cases.hpp"
#include "tests/support/grad_check.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

constexpr double kDoubleEpsilon = static_cast<double>(kEpsilon);

/// All results of the parts of a batch, separate for each part where they differ.
struct PartedOutcome {
  Values statistics, mean, variance, y, dx;
  std::vector<Values> dgamma, dbeta;
};

/// Parts of `rows` rows each, one after another in x and dy.
template <class T>
class PartedNorm {
 public:
  PartedNorm(std::int64_t rows, std::int64_t channels, std::int64_t parts, double mean = 1.0)
      : part(batch_norm_shape(rows, channels)),
        whole(batch_norm_shape(rows * parts, channels)),
        x(random_as<T>(whole.elements(), 1, mean - 2.0, mean + 2.0)),
        dy(random_as<T>(whole.elements(), 5)),
        gamma(random_as<float>(channels, 3, 0.5, 1.5)),
        beta(random_as<float>(channels, 4)),
        parts_(parts) {}

  [[nodiscard]] PartedOutcome run(Activation fn) {
    const std::int64_t c = part.channels;
    DeviceValues<float> statistics(part.statistics_floats()), scratch(part.scratch_floats());
    DeviceValues<float> coefficients(part.coefficient_floats()), gammas(gamma), betas(beta);
    DeviceValues<float> mean(Values(static_cast<std::size_t>(c), 2.0));
    DeviceValues<float> variance(Values(static_cast<std::size_t>(c), 3.0));
    DeviceValues<double> exchange(parts_ * part.part_doubles());
    const auto place = [&](std::int64_t p) { return exchange.data() + p * part.part_doubles(); };
    PartedOutcome out;
    for (std::int64_t p = 0; p < parts_; ++p) {
      DeviceValues<T> own(slice(x, p));
      norm_moments<T>(space, part, place(p), scratch.data(), own.data());
      space.fence();
    }
    norm_join_moments(space, part, parts_, statistics.data(), {mean.data(), variance.data(), false},
                      exchange.data(), kEpsilon);
    exchange.poison();
    NormBackwardReduce<T> args{.statistics = statistics.data(),
                               .gamma = gammas.data(),
                               .beta = betas.data(),
                               .scratch = scratch.data(),
                               .fn = fn};
    for (std::int64_t p = 0; p < parts_; ++p) {
      DeviceValues<T> own(slice(x, p)), gradient(slice(dy, p)), y(part.elements());
      DeviceValues<float> dgamma(c), dbeta(c);
      norm_apply<T>(space, part, y.data(), own.data(), nullptr, statistics.data(), gammas.data(),
                    betas.data(), fn);
      args.x = own.data();
      args.dy = gradient.data();
      args.dgamma = dgamma.data();
      args.dbeta = dbeta.data();
      norm_backward_sums<T>(space, part, place(p), args);
      space.fence();
      append(out.y, y.values());
      out.dgamma.push_back(dgamma.values());
      out.dbeta.push_back(dbeta.values());
    }
    norm_join_sums(space, part, parts_, coefficients.data(), exchange.data(), statistics.data(),
                   gammas.data());
    for (std::int64_t p = 0; p < parts_; ++p) {
      DeviceValues<T> own(slice(x, p)), gradient(slice(dy, p)), dx(part.elements());
      norm_backward_apply<T>(space, part, dx.data(), gradient.data(), own.data(),
                             coefficients.data(), statistics.data(), gammas.data(), betas.data(),
                             fn);
      space.fence();
      append(out.dx, dx.values());
    }
    out.statistics = statistics.values();
    out.mean = mean.values();
    out.variance = variance.values();
    return out;
  }

  [[nodiscard]] Values slice(const Values& all, std::int64_t p) const {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(p * part.elements());
    return {first, first + static_cast<std::ptrdiff_t>(part.elements())};
  }

  device::ExecutionSpace space;
  NormShape part, whole;
  Values x, dy, gamma, beta;

 private:
  static void append(Values& all, const Values& more) {
    all.insert(all.end(), more.begin(), more.end());
  }
  std::int64_t parts_;
};

struct PartsCase {
  std::int64_t rows;
  std::int64_t channels;
  std::int64_t parts;
};
void PrintTo(const PartsCase& c, std::ostream* out) {
  *out << c.parts << " of " << c.rows << "x" << c.channels;
}

class NormParts : public testing::TestWithParam<std::tuple<PartsCase, DType>> {
 protected:
  template <class Test>
  void run(Test&& test) {
    const PartsCase& c = std::get<0>(GetParam());
    device::dispatch(std::get<1>(GetParam()), [&]<class T>() {
      PartedNorm<T> norm(c.rows, c.channels, c.parts);
      test(norm);
    });
  }
};

TEST_P(NormParts, StatisticsAreThoseOfTheWholeBatch) {
  run([]<class T>(PartedNorm<T>& norm) {
    const PartedOutcome out = norm.run(Activation::None);
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

TEST_P(NormParts, GradientsAreThoseOfTheWholeBatch) {
  run([]<class T>(PartedNorm<T>& norm) {
    for (const Activation fn : {Activation::None, Activation::Relu}) {
      const PartedOutcome out = norm.run(fn);
      Values dz = norm.dy;
      for (std::size_t i = 0; i < dz.size() && fn == Activation::Relu; ++i)
        dz[i] = out.y[i] > 0.0 ? dz[i] : 0.0;
      const reference::NormGradients expected =
          reference::norm_backward(norm.whole, dz, norm.x, norm.gamma, kDoubleEpsilon);
      const Values xhat = reference::normalise(norm.whole, norm.x, kDoubleEpsilon);
      const reference::Moments m = reference::norm_moments(norm.whole, norm.x);
      const std::size_t channels = norm.gamma.size();
      EXPECT_TRUE(close(out.dx, expected.dx, [&](std::size_t i) {
        const double inverse = 1.0 / std::sqrt(m.variance[i % channels] + kDoubleEpsilon);
        return kUnit<T> * std::abs(expected.dx[i]) +
               400.0 * kFloatUnit * inverse * (1.0 + std::abs(xhat[i]));
      }));
      // The parts' gradients must add up to those of the whole batch.
      Values dgamma(channels);
      Values dbeta(channels);
      for (std::size_t p = 0; p < out.dgamma.size(); ++p) {
        for (std::size_t c = 0; c < channels; ++c) {
          dgamma[c] += out.dgamma[p][c];
          dbeta[c] += out.dbeta[p][c];
        }
      }
      const double rows = static_cast<double>(norm.whole.rows);
      EXPECT_TRUE(close_to(dgamma, expected.dgamma, 200.0 * kFloatUnit * rows));
      EXPECT_TRUE(close_to(dbeta, expected.dbeta, 64.0 * kFloatUnit * rows));
    }
  });
}

// The input gradient of a part includes the effect of its elements on all parts.
TEST(NormPartsTest, InputGradientIsTheSlope) {
  PartedNorm<float> norm(3, 2, 3);
  const PartedOutcome out = norm.run(Activation::None);
  const Values slope = reference::numeric_gradient(norm.x, [&](const Values& x) {
    return reference::dot(
        norm.dy, reference::norm_forward(norm.whole, x, norm.gamma, norm.beta, kDoubleEpsilon));
  });
  EXPECT_TRUE(close_to(out.dx, slope, 1e-5));
  // A single part would give a different result.
  PartedNorm<float> alone(3, 2, 1);
  const Values other = alone.run(Activation::None).dx;
  EXPECT_FALSE(close_to(norm.slice(out.dx, 0), other, 1e-2));
}

TEST(NormPartsTest, AreStableWhereTheMeanIsLarge) {
  PartedNorm<float> norm(500, 8, 4, 1e4);
  const PartedOutcome out = norm.run(Activation::None);
  const reference::Moments m = reference::norm_moments(norm.whole, norm.x);
  for (std::size_t c = 0; c < m.mean.size(); ++c) {
    EXPECT_NEAR(out.statistics[c], m.mean[c], 0.001);
    const double inverse = 1.0 / std::sqrt(m.variance[c] + kDoubleEpsilon);
    EXPECT_NEAR(out.statistics[m.mean.size() + c], inverse, 1e-5 * inverse);
  }
}

std::string name_of_param(const testing::TestParamInfo<std::tuple<PartsCase, DType>>& param) {
  const auto& [c, type] = param.param;
  return std::to_string(c.parts) + "Of" + std::to_string(c.rows) + "x" +
         std::to_string(c.channels) + spelled(type);
}
INSTANTIATE_TEST_SUITE_P(
    Table, NormParts,
    testing::Combine(testing::Values(PartsCase{1, 16, 2}, PartsCase{1, 3, 1}, PartsCase{8, 1, 4},
                                     PartsCase{49, 64, 2}, PartsCase{350, 3, 3},
                                     PartsCase{700, 128, 2}, PartsCase{33, 300, 5}),
                     testing::Values(DType::F32, DType::BF16, DType::F16)),
    name_of_param);

}  // namespace
}  // namespace millrace::ops
