// SPDX-License-Identifier: Apache-2.0
#include "ops/channels.hpp"

#include "ops/dropout.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/support/grad_check.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

template <class T>
class Channels : public testing::Test {
 protected:
  device::ExecutionSpace space_;
};
using StorageTypes = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(Channels, StorageTypes);

TYPED_TEST(Channels, ConcatPutsOperandsSideBySide) {
  using T = TypeParam;
  constexpr std::int64_t kPixels = 77;
  const std::vector<std::int64_t> widths = {3, 64, 1, 130};
  constexpr std::int64_t kAll = 198;
  for (const Activation fn : {Activation::None, Activation::Relu}) {
    DeviceValues<T> y(kPixels * kAll);
    Values expected(static_cast<std::size_t>(kPixels * kAll));
    const Values dy = random_as<T>(kPixels * kAll, 99);
    DeviceValues<T> dy_device(dy);
    std::int64_t first = 0;
    for (const std::int64_t width : widths) {
      const ChannelSlice slice{kPixels, kAll, first, width};
      const Values x = random_as<T>(kPixels * width, static_cast<std::uint64_t>(width));
      DeviceValues<T> x_device(x), dx(kPixels * width);
      concat_forward(this->space_, slice, y.data(), x_device.data(), fn);
      concat_backward(this->space_, slice, dx.data(), dy_device.data(), y.data(), fn);
      Values expected_dx;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto at = i / static_cast<std::size_t>(width) * kAll +
                        static_cast<std::size_t>(first) + i % static_cast<std::size_t>(width);
        expected[at] = reference::apply_fn(fn, x[i]);
        expected_dx.push_back(dy[at] * reference::fn_derivative(fn, x[i]));
      }
      EXPECT_TRUE(close_to(dx.values(), expected_dx, 0.0)) << width;
      first += width;
    }
    ASSERT_EQ(first, kAll);
    EXPECT_TRUE(close_to(y.values(), expected, 0.0));
  }
}

// One pixel, one channel, more channels than a strip has lanes, several work items.
constexpr ScaleShape kShapes[] = {{1, 1, 1}, {3, 1, 24}, {2, 49, 3}, {3, 64, 70}, {2, 400, 130}};

TYPED_TEST(Channels, ScaleForwardIsTheReference) {
  using T = TypeParam;
  for (const ScaleShape& s : kShapes) {
    const Values x = random_as<T>(s.elements(), 1);
    const Values scale = random_as<T>(s.samples * s.channels, 2);
    const Values skip = random_as<T>(s.elements(), 3);
    const Values expected = reference::scale_channels(s, x, scale);
    DeviceValues<T> x_device(x), scale_device(scale), skip_device(skip), y(s.elements());
    const T* none = nullptr;
    scale_forward(this->space_, s, y.data(), x_device.data(), scale_device.data(), none,
                  Activation::None);
    const auto tolerance = [&](std::size_t i) {
      return (kUnit<T> + kFloatUnit) * std::abs(expected[i]) + kLeast<T>;
    };
    EXPECT_TRUE(close(y.values(), expected, tolerance));
    // Fused with addition and ReLU, which work on the rounded product.
    Values sums;
    const Values product = y.values();
    for (std::size_t i = 0; i < product.size(); ++i) {
      const auto sum = static_cast<double>(static_cast<float>(product[i] + skip[i]));
      sums.push_back(std::max(decode(encode<T>(sum)), 0.0));
    }
    scale_forward(this->space_, s, y.data(), x_device.data(), scale_device.data(),
                  skip_device.data(), Activation::Relu);
    EXPECT_TRUE(close_to(y.values(), sums, 0.0));
  }
}

TYPED_TEST(Channels, ScaleBackwardIsTheReference) {
  using T = TypeParam;
  for (const ScaleShape& s : kShapes) {
    const Values x = random_as<T>(s.elements(), 1);
    const Values scale = random_as<T>(s.samples * s.channels, 2);
    const Values dy = random_as<T>(s.elements(), 3);
    const reference::ScaleGradients expected = reference::scale_channels_backward(s, dy, x, scale);
    const Values magnitude = reference::scale_channels_backward(s, reference::magnitudes(dy),
                                                                reference::magnitudes(x), scale)
                                 .dscale;
    DeviceValues<T> x_device(x), scale_device(scale), dy_device(dy);
    DeviceValues<T> dx(s.elements()), dscale(s.samples * s.channels);
    scale_backward(this->space_, s, dx.data(), dscale.data(), dy_device.data(), x_device.data(),
                   scale_device.data());
    EXPECT_TRUE(close(dx.values(), expected.dx, [&](std::size_t i) {
      return (kUnit<T> + kFloatUnit) * std::abs(expected.dx[i]) + kLeast<T>;
    }));
    EXPECT_TRUE(close(dscale.values(), expected.dscale, [&](std::size_t i) {
      return kLeast<T> + kUnit<T> * std::abs(expected.dscale[i]) +
             static_cast<double>(s.pixels + 2) * kFloatUnit * magnitude[i];
    }));
    scale_backward(this->space_, s, dy_device.data(), dscale.data(), dy_device.data(),
                   x_device.data(), scale_device.data());
    EXPECT_TRUE(same_bits(dy_device, dx)) << "in place";
  }
}

// ---- dropout ------------------------------------------------------------------------------------

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
constexpr SampleShape kSampleShapes[] = {{1, 1}, {3, 7}, {2, 4096}, {3, 4099}, {5, 10001}};

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
TYPED_TEST_SUITE(Drop, StorageTypes);

TYPED_TEST(Drop, DropoutIsTheReference) {
  using T = TypeParam;
  constexpr float kRate = 0.3f;
  for (const SampleShape& s : kSampleShapes) {
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
  for (const SampleShape& s : kSampleShapes) {
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
