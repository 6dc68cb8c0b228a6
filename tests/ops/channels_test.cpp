// SPDX-License-Identifier: Apache-2.0
#include "ops/channels.hpp"

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

}  // namespace
}  // namespace millrace::ops
