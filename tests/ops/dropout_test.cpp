// SPDX-License-Identifier: Apache-2.0
#include "ops/dropout.hpp"

#include "tests/ops/device_values.hpp"

namespace millrace::ops {
namespace {

/// Whether dropout keeps element `element` of the sample at `position` of the global batch: its
/// uniform random number must be at least `rate`. Four neighbors share a block of random words.
bool dropout_keeps(const Draws& draws, std::int64_t position, std::int64_t elements,
                   std::int64_t element, float rate) {
  const std::int64_t blocks = (elements + 3) / 4;
  const RandomBlock words =
      draws.stream.block(static_cast<std::uint64_t>(draws.step),
                         static_cast<std::uint64_t>(position * blocks + element / 4));
  return uniform01(words[static_cast<std::size_t>(element % 4)]) >= rate;
}

// Fewer elements than words in a random block, not a multiple of that, several work items.
constexpr SampleShape kShapes[] = {{1, 1}, {3, 7}, {2, 4096}, {3, 4099}, {5, 10001}};

Draws draws(std::int64_t step = 4, std::int64_t first_sample = 6, std::uint64_t name = 17) {
  return {RandomStream(1, RandomPurpose::Dropout, name), step, first_sample};
}

/// The same draws for kernels, which find step and position on the device.
class OnDevice {
 public:
  explicit OnDevice(const Draws& draws)
      : stream_(draws.stream), values_({CallValues{draws.step, draws.first_sample, 1.0f}}) {}
  // NOLINTNEXTLINE(google-explicit-constructor): an argument of the kernels
  operator DrawsAt() const { return {stream_, values_.data()}; }

 private:
  RandomStream stream_;
  DeviceRecords<CallValues> values_;
};

template <class T>
class Drop : public testing::Test {
 protected:
  device::ExecutionSpace space_;
};
using StorageTypes = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(Drop, StorageTypes);

TYPED_TEST(Drop, DropoutIsTheReference) {
  using T = TypeParam;
  constexpr float kRate = 0.3f;
  for (const SampleShape& s : kShapes) {
    const std::int64_t n = s.samples * s.elements;
    const Values x = random_as<T>(n, 1, -3.0, 3.0);
    Values expected;
    for (std::int64_t i = 0; i < n; ++i) {
      const bool keeps =
          dropout_keeps(draws(), 6 + i / s.elements, s.elements, i % s.elements, kRate);
      expected.push_back(keeps ? x[static_cast<std::size_t>(i)] / (1.0 - static_cast<double>(kRate))
                               : 0.0);
    }
    DeviceValues<T> x_device(x), y(n);
    dropout(this->space_, s, y.data(), x_device.data(), kRate, OnDevice(draws()));
    const auto tolerance = [&](std::size_t i) {
      return (kUnit<T> + 4.0 * kFloatUnit) * std::abs(expected[i]) + kLeast<T>;
    };
    EXPECT_TRUE(close(y.values(), expected, tolerance));
    dropout(this->space_, s, x_device.data(), x_device.data(), kRate, OnDevice(draws()));
    EXPECT_TRUE(same_bits(x_device, y)) << "in place";
  }
}

TYPED_TEST(Drop, DropConnectIsTheReference) {
  using T = TypeParam;
  constexpr float kSurvival = 0.6f;
  for (const SampleShape& s : kShapes) {
    const std::int64_t n = s.samples * s.elements;
    const Values x = random_as<T>(n, 1, -3.0, 3.0);
    const Values skip = random_as<T>(n, 2, -3.0, 3.0);
    Values alone, added;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::int64_t position = 6 + static_cast<std::int64_t>(i) / s.elements;
      const float u = uniform01(draws().stream.block(4, static_cast<std::uint64_t>(position))[0]);
      alone.push_back(static_cast<double>(std::floor(kSurvival + u)) * x[i] /
                      static_cast<double>(kSurvival));
      added.push_back(decode(encode<T>(alone.back())) + skip[i]);
    }
    DeviceValues<T> x_device(x), skip_device(skip), y(n);
    const T* none = nullptr;
    drop_connect(this->space_, s, y.data(), x_device.data(), none, kSurvival, OnDevice(draws()));
    const auto tolerance = [&](std::size_t i) {
      return (kUnit<T> + 4.0 * kFloatUnit) * std::abs(alone[i]) + kLeast<T>;
    };
    EXPECT_TRUE(close(y.values(), alone, tolerance));
    // The sum equals adding to the stored product, bit for bit.
    Values stored = y.values();
    Values sums;
    for (std::size_t i = 0; i < stored.size(); ++i)
      sums.push_back(
          decode(encode<T>(static_cast<double>(static_cast<float>(stored[i] + skip[i])))));
    drop_connect(this->space_, s, y.data(), x_device.data(), skip_device.data(), kSurvival,
                 OnDevice(draws()));
    EXPECT_TRUE(close_to(y.values(), sums, 0.0));
    drop_connect(this->space_, s, skip_device.data(), x_device.data(), skip_device.data(),
                 kSurvival, OnDevice(draws()));
    EXPECT_TRUE(same_bits(skip_device, y)) << "in place";
  }
}

// The same elements of a global batch are dropped with one micro-batch and with two of other sizes.
TYPED_TEST(Drop, MasksDependOnPositionsNotOnMicroBatches) {
  using T = TypeParam;
  constexpr std::int64_t kElements = 1001;
  const Values x(static_cast<std::size_t>(8 * kElements), 1.0);
  DeviceValues<T> x_device(x), whole(8 * kElements), parts(8 * kElements);
  const T* none = nullptr;
  dropout(this->space_, {8, kElements}, whole.data(), x_device.data(), 0.5f, OnDevice(draws(2, 0)));
  dropout(this->space_, {3, kElements}, parts.data(), x_device.data(), 0.5f, OnDevice(draws(2, 0)));
  dropout(this->space_, {5, kElements}, parts.data() + 3 * kElements, x_device.data(), 0.5f,
          OnDevice(draws(2, 3)));
  EXPECT_TRUE(same_bits(whole, parts));
  drop_connect(this->space_, {8, kElements}, whole.data(), x_device.data(), none, 0.5f,
               OnDevice(draws(2, 0)));
  drop_connect(this->space_, {3, kElements}, parts.data(), x_device.data(), none, 0.5f,
               OnDevice(draws(2, 0)));
  drop_connect(this->space_, {5, kElements}, parts.data() + 3 * kElements, x_device.data(), none,
               0.5f, OnDevice(draws(2, 3)));
  EXPECT_TRUE(same_bits(whole, parts));
}

/// Fraction of ones that dropout sets to zero.
double dropped_share(float rate, const Draws& from) {
  const device::ExecutionSpace space;
  constexpr std::int64_t kN = 100'000;
  DeviceValues<float> x(Values(kN, 1.0)), y(kN);
  dropout(space, {10, kN / 10}, y.data(), x.data(), rate, OnDevice(from));
  double zeros = 0.0;
  for (const double value : y.values()) zeros += value == 0.0 ? 1.0 : 0.0;
  return zeros / static_cast<double>(kN);
}

// Tolerance: six standard deviations of a binomial distribution.
TEST(DropShare, IsTheRate) {
  for (const float rate : {0.0f, 0.1f, 0.5f, 0.9f}) {
    const auto p = static_cast<double>(rate);
    EXPECT_NEAR(dropped_share(rate, draws()), p, 6.0 * std::sqrt(p * (1.0 - p) / 100'000.0));
  }
}

TEST(DropShare, SurvivalOfSamplesIsTheProbability) {
  int kept = 0;
  for (std::int64_t position = 0; position < 10'000; ++position)
    kept += drop_connect_keeps(draws(0, 0), position, 0.8f) ? 1 : 0;
  EXPECT_NEAR(kept, 8000, 6 * 40);
  for (std::int64_t position = 0; position < 1000; ++position)
    EXPECT_TRUE(drop_connect_keeps(draws(0, 0), position, 1.0f));
}

// Other steps, samples, names and seeds have different masks: half of the elements differ.
TEST(DropKeys, EveryPartOfTheKeyCounts) {
  const device::ExecutionSpace space;
  constexpr std::int64_t kN = 10'000;
  DeviceValues<float> x(Values(kN, 1.0)), y(kN);
  const auto mask = [&](const Draws& from) {
    dropout(space, {1, kN}, y.data(), x.data(), 0.5f, OnDevice(from));
    return y.values();
  };
  const Values first = mask(draws(4, 6, 17));
  EXPECT_EQ(mask(draws(4, 6, 17)), first);
  for (const Draws& other : {draws(5, 6, 17), draws(4, 7, 17), draws(4, 6, 18),
                             Draws{RandomStream(2, RandomPurpose::Dropout, 17), 4, 6},
                             Draws{RandomStream(1, RandomPurpose::DropConnect, 17), 4, 6}}) {
    const Values second = mask(other);
    int different = 0;
    for (std::size_t i = 0; i < first.size(); ++i) different += first[i] != second[i] ? 1 : 0;
    EXPECT_NEAR(different, 5000, 300);
  }
}

}  // namespace
}  // namespace millrace::ops
