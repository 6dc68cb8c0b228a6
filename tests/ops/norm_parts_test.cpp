// SPDX-License-Identifier: Apache-2.0
//
// Batch norm over a batch in parts, as on several replicas: the joined statistics are those of the
// whole batch. tests/pipeline/span_test checks the gradients by finite differences, the law
// (SpanLawTest) whole trainings.
#include "device/compat.hpp"
#include "tests/ops/norm_cases.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

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
