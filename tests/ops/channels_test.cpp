// SPDX-License-Identifier: Apache-2.0
#include "ops/channels.hpp"

#include "ops/dropout.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

template <class T>
class Channels : public OfStorageType<T> {};
TYPED_TEST_SUITE(Channels, StorageTypes);

TYPED_TEST(Channels, ConcatPutsOperandsSideBySide) {
  using T = TypeParam;
  constexpr std::int64_t kPixels = 77;
  constexpr std::int64_t kAll = 198;
  for (const Activation fn : {Activation::None, Activation::Relu}) {
    DeviceValues<T> y(kPixels * kAll);
    Values expected(static_cast<std::size_t>(kPixels * kAll));
    const Values dy = random_as<T>(kPixels * kAll, 99);
    DeviceValues<T> dy_device(dy);
    std::int64_t first = 0;
    for (const std::int64_t width : {3, 64, 1, 130}) {
      const ChannelSlice slice{kPixels, kAll, first, width};
      const Values x = random_as<T>(kPixels * width, static_cast<std::uint64_t>(width));
      DeviceValues<T> x_device(x), dx(kPixels * width);
      concat_forward(this->space_, slice, y.data(), x_device.data(), fn);
      concat_backward(this->space_, slice, dx.data(), dy_device.data(), y.data(), fn);
      Values expected_dx;
      for (std::int64_t i = 0; i < std::ssize(x); ++i) {
        const double value = x[static_cast<std::size_t>(i)];
        const auto at = static_cast<std::size_t>(i / width * kAll + first + i % width);
        expected[at] = reference::apply_fn(fn, value);
        expected_dx.push_back(dy[at] * reference::fn_derivative(fn, value));
      }
      EXPECT_EQ(dx.values(), expected_dx) << width;
      first += width;
    }
    ASSERT_EQ(first, kAll);
    EXPECT_EQ(y.values(), expected);
  }
}

// One pixel, one channel, more channels than a strip has lanes, several work items; fewer strips
// of eight channels than a team of an accelerator takes, and more.
constexpr ScaleShape kShapes[] = {{1, 1, 1},   {3, 1, 24},    {2, 49, 3},
                                  {3, 64, 70}, {2, 400, 130}, {2, 600, 72}};

TYPED_TEST(Channels, ScaleIsTheReference) {
  using T = TypeParam;
  for (const ScaleShape& s : kShapes) {
    const Values x = random_as<T>(s.elements(), 1);
    const Values scale = random_as<T>(s.samples * s.channels, 2);
    const Values skip = random_as<T>(s.elements(), 3);
    const auto forward = [&](Activation fn) {
      return [&, fn](T* y, const auto& in) {
        const T* const added = in.size() > 2 ? in[2] : nullptr;
        scale_forward(this->space_, s, y, in[0], in[1], added, fn);
      };
    };
    const Values product = result_of<T>(forward(Activation::None), {x, scale});
    EXPECT_TRUE(stored<T>(product, reference::scale_channels(s, x, scale)));
    // Fused with addition and ReLU, which work on the rounded product.
    Values sum = stored_sum<T>(product, skip);
    for (double& value : sum) value = std::max(value, 0.0);
    EXPECT_EQ(result_of<T>(forward(Activation::Relu), {x, scale, skip}), sum);
    // Backward, with the last operand as the gradient.
    const Values& dy = skip;
    const reference::ScaleGradients expected = reference::scale_channels_backward(s, dy, x, scale);
    const Values magnitude = reference::scale_channels_backward(s, reference::magnitudes(dy),
                                                                reference::magnitudes(x), scale)
                                 .dscale;
    DeviceValues<T> dscale(std::ssize(scale));
    const auto backward = [&](T* dx, const auto& in) {
      scale_backward(this->space_, s, dx, dscale.data(), in[0], in[1], in[2]);
    };
    EXPECT_TRUE(stored<T>(result_of<T>(backward, {dy, x, scale}, {0}), expected.dx));
    EXPECT_TRUE(close(dscale.values(), expected.dscale, [&](std::size_t i) {
      return kLeast<T> + kUnit<T> * std::abs(expected.dscale[i]) +
             static_cast<double>(s.pixels + 2) * kFloatUnit * magnitude[i];
    }));
  }
}

// ---- dropout ------------------------------------------------------------------------------------

/// Whether dropout keeps element `element` of the sample at `position` of the global batch: its
/// uniform random number, which depends on every part of the key, must be at least `rate`. Four
/// neighbors share a block of random words.
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
class Drop : public OfStorageType<T> {};
TYPED_TEST_SUITE(Drop, StorageTypes);

TYPED_TEST(Drop, DropoutIsTheReference) {
  using T = TypeParam;
  for (const float rate : {0.0f, 0.3f, 0.9f})
    for (const SampleShape& s : kSampleShapes) {
      const Values x = random_as<T>(s.samples * s.elements, 1, -3.0, 3.0);
      Values expected;
      for (std::int64_t i = 0; i < std::ssize(x); ++i) {
        const bool keeps =
            dropout_keeps(draws(), 6 + i / s.elements, s.elements, i % s.elements, rate);
        const double kept = x[static_cast<std::size_t>(i)] / (1.0 - static_cast<double>(rate));
        expected.push_back(keeps ? kept : 0.0);
      }
      const OnDevice on_device(draws());
      const auto kernel = [&](T* y, const auto& in) {
        dropout(this->space_, s, y, in[0], rate, on_device);
      };
      EXPECT_TRUE(stored<T>(result_of<T>(kernel, {x}, {0}), expected, 4.0));
    }
}

TYPED_TEST(Drop, DropConnectIsTheReference) {
  using T = TypeParam;
  constexpr float kSurvival = 0.6f;
  for (const SampleShape& s : kSampleShapes) {
    const Values x = random_as<T>(s.samples * s.elements, 1, -3.0, 3.0);
    const Values skip = random_as<T>(s.samples * s.elements, 2, -3.0, 3.0);
    Values expected;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::int64_t position = 6 + static_cast<std::int64_t>(i) / s.elements;
      const float u = uniform01(draws().stream.block(4, static_cast<std::uint64_t>(position))[0]);
      expected.push_back(static_cast<double>(std::floor(kSurvival + u)) * x[i] /
                         static_cast<double>(kSurvival));
    }
    const OnDevice on_device(draws());
    const auto kernel = [&](T* y, const auto& in) {
      const T* const added = in.size() > 1 ? in[1] : nullptr;
      drop_connect(this->space_, s, y, in[0], added, kSurvival, on_device);
    };
    const Values alone = result_of<T>(kernel, {x}, {0});
    EXPECT_TRUE(stored<T>(alone, expected, 4.0));
    // The sum equals adding to the stored product, bit for bit.
    EXPECT_EQ(result_of<T>(kernel, {x, skip}, {0, 1}), stored_sum<T>(alone, skip));
  }
}

// The same elements of a global batch are dropped with one micro-batch and with two of other sizes.
TYPED_TEST(Drop, MasksDependOnPositionsNotOnMicroBatches) {
  using T = TypeParam;
  constexpr std::int64_t kElements = 1001;
  DeviceValues<T> x(Values(static_cast<std::size_t>(8 * kElements), 1.0));
  DeviceValues<T> whole(8 * kElements), parts(8 * kElements);
  const auto expect_same = [&](const auto& kernel) {
    kernel({8, kElements}, whole.data(), OnDevice(draws(2, 0)));
    kernel({3, kElements}, parts.data(), OnDevice(draws(2, 0)));
    kernel({5, kElements}, parts.data() + 3 * kElements, OnDevice(draws(2, 3)));
    EXPECT_TRUE(same_bits(whole, parts));
  };
  expect_same([&](const SampleShape& s, T* y, const OnDevice& from) {
    dropout(this->space_, s, y, x.data(), 0.5f, from);
  });
  expect_same([&](const SampleShape& s, T* y, const OnDevice& from) {
    const T* const none = nullptr;
    drop_connect(this->space_, s, y, x.data(), none, 0.5f, from);
  });
}

TEST(DropShare, SurvivalOfSamplesIsTheProbability) {
  int kept = 0;
  for (std::int64_t position = 0; position < 10'000; ++position)
    kept += drop_connect_keeps(draws(0, 0), position, 0.8f) ? 1 : 0;
  EXPECT_NEAR(kept, 8000, 6 * 40);  // standard deviations of a binomial distribution
  for (std::int64_t position = 0; position < 1000; ++position)
    EXPECT_TRUE(drop_connect_keeps(draws(0, 0), position, 1.0f));
}

}  // namespace
}  // namespace millrace::ops
