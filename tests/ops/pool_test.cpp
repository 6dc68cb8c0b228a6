// SPDX-License-Identifier: Apache-2.0
#include "ops/pool.hpp"

#include "tests/ops/device_values.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

struct PoolCase {
  std::string name;
  WindowShape shape;
};
void PrintTo(const PoolCase& c, std::ostream* out) { *out << c.name; }

std::vector<PoolCase> pool_cases() {
  // batch, in, out, window, stride, padding at top and left; padding at bottom and right follows
  // from out
  return {
      {"Pixel", {1, {1, 1, 1}, {1, 1, 1}, 1, 1, 1, 1, 0, 0}},
      {"Halves", {2, {8, 6, 16}, {4, 3, 16}, 2, 2, 2, 2, 0, 0}},
      {"StemPad1", {2, {16, 16, 64}, {8, 8, 64}, 3, 3, 2, 2, 1, 1}},
      {"HalvesPad1", {2, {7, 9, 8}, {4, 5, 8}, 2, 2, 2, 2, 1, 1}},
      {"StemPadAfter", {2, {16, 16, 24}, {8, 8, 24}, 3, 3, 2, 2, 0, 0}},
      {"OddSize", {1, {15, 13, 5}, {8, 7, 5}, 3, 3, 2, 2, 1, 1}},
      {"Overlap", {3, {5, 7, 3}, {5, 7, 3}, 3, 3, 1, 1, 1, 1}},
      {"Gaps", {1, {11, 10, 100}, {4, 4, 100}, 2, 2, 3, 3, 0, 0}},
      {"Lopsided", {1, {6, 9, 65}, {6, 3, 65}, 1, 5, 1, 3, 0, 2}},
      {"Tall", {2, {9, 4, 3}, {5, 4, 3}, 4, 1, 2, 1, 2, 0}},
      {"Large", {1, {20, 20, 1}, {3, 3, 1}, 15, 16, 4, 4, 4, 5}},
      {"BytesSuffice", {2, {16, 16, 3}, {1, 1, 3}, 16, 16, 1, 1, 0, 0}},
      {"MoreThanBytes", {2, {20, 23, 5}, {2, 2, 5}, 17, 19, 5, 6, 2, 1}},
      {"Whole", {2, {33, 32, 17}, {1, 1, 17}, 33, 32, 1, 1, 0, 0}},
  };
}

/// What a pool computes: sums and quotients of float32.
template <class T>
testing::AssertionResult averaged(const Values& actual, const Values& expected) {
  return stored<T>(actual, expected, 8.0, 8.0);
}

class Pool : public OfEveryType<PoolCase> {};

/// With winners of type W.
template <class T, class W>
void expect_reference_maximum(const WindowShape& s) {
  const device::ExecutionSpace space;
  // Few different values cause many ties, which the first must win.
  Values x = random_values(s.in_elements(), 1, -4.0, 4.0);
  for (double& value : x) value = std::round(value);
  const Values dy = random_as<T>(s.out_elements(), 2);
  const reference::MaxPool expected = reference::max_pool(s, x);
  DeviceValues<T> x_device(x), dy_device(dy), y(s.out_elements()), dx(s.in_elements());
  DeviceValues<W> winner(s.out_elements());
  max_pool_forward(space, s, y.data(), winner.data(), x_device.data());
  EXPECT_TRUE(close_to(y.values(), expected.y, 0.0));
  EXPECT_TRUE(
      close_to(winner.values(), Values(expected.winner.begin(), expected.winner.end()), 0.0));
  max_pool_backward(space, s, dx.data(), dy_device.data(), winner.data());
  EXPECT_TRUE(averaged<T>(dx.values(), reference::max_pool_backward(s, expected, dy)));

  DeviceValues<T> alone(s.out_elements());
  max_pool_forward<T, W>(space, s, alone.data(), nullptr, x_device.data());
  EXPECT_TRUE(same_bits(alone, y)) << "without winners";
}

TEST_P(Pool, MaxIsTheReference) {
  run([]<class T>(const PoolCase& c) {
    const WindowShape& s = c.shape;
    if (s.kernel_h * s.kernel_w <= 256) expect_reference_maximum<T, std::uint8_t>(s);
    expect_reference_maximum<T, std::int32_t>(s);
  });
}

TEST_P(Pool, AverageIsTheReference) {
  run([]<class T>(const PoolCase& c) {
    const WindowShape& s = c.shape;
    const device::ExecutionSpace space;
    const Values x = random_as<T>(s.in_elements(), 1);
    const Values dy = random_as<T>(s.out_elements(), 2);
    DeviceValues<T> x_device(x), dy_device(dy), y(s.out_elements()), dx(s.in_elements());
    for (const bool count_padding : {false, true}) {
      average_pool_forward(space, s, y.data(), x_device.data(), count_padding);
      EXPECT_TRUE(averaged<T>(y.values(), reference::average_pool(s, x, count_padding)));
      average_pool_backward(space, s, dx.data(), dy_device.data(), count_padding);
      EXPECT_TRUE(averaged<T>(dx.values(), reference::average_pool_backward(s, dy, count_padding)));
    }
    // The global one has a kernel of its own.
    const WindowShape whole{s.batch, s.in, {1, 1, s.in.c}, s.in.h, s.in.w, 1, 1, 0, 0};
    DeviceValues<T> mean(whole.out_elements());
    global_average_forward(space, s.batch, s.in, mean.data(), x_device.data());
    const auto pixels = static_cast<double>(s.in.pixels());
    EXPECT_TRUE(
        stored<T>(mean.values(), reference::average_pool(whole, x, true), 8.0, 8.0 + pixels));
    const Values dmean = random_as<T>(whole.out_elements(), 2);
    DeviceValues<T> dmean_device(dmean);
    global_average_backward(space, s.batch, s.in, dx.data(), dmean_device.data());
    EXPECT_TRUE(averaged<T>(dx.values(), reference::average_pool_backward(whole, dmean, true)));
  });
}

/// All results of pools over the same numbers, with winners of type W, in arrays that begin `shift`
/// elements further.
template <class T, class W>
std::vector<Values> pooled_at(const WindowShape& s, int shift) {
  const device::ExecutionSpace space;
  const auto shifted = [&](Values values) {
    values.insert(values.begin(), static_cast<std::size_t>(shift), 0.0);
    return values;
  };
  DeviceValues<T> x(shifted(random_as<T>(s.in_elements(), 1)));
  DeviceValues<T> dy(shifted(random_as<T>(s.out_elements(), 2)));
  DeviceValues<W> winner(s.out_elements() + shift);
  const std::int64_t means = s.batch * s.in.c;
  std::vector<Values> results;
  const auto keep = [&](std::int64_t elements, const auto& pool) {
    DeviceValues<T> y(shifted(Values(static_cast<std::size_t>(elements))));
    pool(y.data() + shift);
    Values values = y.values();
    values.erase(values.begin(), values.begin() + shift);
    results.push_back(std::move(values));
  };
  const T* const in = x.data() + shift;
  const T* const gradient = dy.data() + shift;
  W* const won = winner.data() + shift;
  keep(s.out_elements(), [&](T* y) { max_pool_forward(space, s, y, won, in); });
  keep(s.in_elements(), [&](T* dx) { max_pool_backward(space, s, dx, gradient, won); });
  keep(s.out_elements(), [&](T* y) { average_pool_forward(space, s, y, in, false); });
  keep(s.in_elements(), [&](T* dx) { average_pool_backward(space, s, dx, gradient, false); });
  keep(means, [&](T* y) { global_average_forward(space, s.batch, s.in, y, in); });
  keep(s.in_elements(),
       [&](T* dx) { global_average_backward(space, s.batch, s.in, dx, gradient); });
  return results;
}

/// On accelerators, arrays that begin elsewhere are accessed one value at a time, and some pools
/// with small winners have kernels of their own.
TEST_P(Pool, BitsDoNotDependOnTheKernel) {
  run([]<class T>(const PoolCase& c) {
    const WindowShape& s = c.shape;
    const std::vector<Values> expected = pooled_at<T, std::int32_t>(s, 1);
    EXPECT_EQ((pooled_at<T, std::int32_t>(s, 0)), expected);
    if (s.kernel_h * s.kernel_w > 256) return;
    EXPECT_EQ((pooled_at<T, std::uint8_t>(s, 0)), expected);
    EXPECT_EQ((pooled_at<T, std::uint8_t>(s, 1)), expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Table, Pool, Pool::all(pool_cases()), Pool::name_of);

template <class T>
class PoolOf : public OfStorageType<T> {};
TYPED_TEST_SUITE(PoolOf, StorageTypes);

TYPED_TEST(PoolOf, MaxKeepsNan) {
  using T = TypeParam;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const WindowShape s{1, {1, 6, 1}, {1, 2, 1}, 1, 3, 1, 3, 0, 0};
  // The NaN comes first in one window and last in the other.
  DeviceValues<T> x(Values{nan, 1.0, 2.0, 3.0, 1.0, nan}), y(2);
  DeviceValues<std::uint8_t> winner(2);
  max_pool_forward(this->space_, s, y.data(), winner.data(), x.data());
  EXPECT_TRUE(std::isnan(y.values()[0]));
  EXPECT_TRUE(std::isnan(y.values()[1]));
  EXPECT_EQ(winner.values(), (Values{0.0, 2.0}));
}

TYPED_TEST(PoolOf, MaxPaddingNeverWins) {
  using T = TypeParam;
  const WindowShape s{1, {2, 2, 1}, {2, 2, 1}, 3, 3, 1, 1, 1, 1};
  const double lowest = -std::numeric_limits<double>::infinity();
  DeviceValues<T> x(Values{-5.0, -4.0, -3.0, lowest}), y(4);
  max_pool_forward<T, std::uint8_t>(this->space_, s, y.data(), nullptr, x.data());
  EXPECT_EQ(y.values(), Values(4, -3.0));

  DeviceValues<T> all_lowest(Values(4, lowest));
  DeviceValues<std::uint8_t> winner(4);
  max_pool_forward(this->space_, s, y.data(), winner.data(), all_lowest.data());
  EXPECT_EQ(y.values(), Values(4, lowest));
  EXPECT_EQ(winner.values(), (Values{4.0, 3.0, 1.0, 0.0})) << "the first real pixel";
}

/// Shortcut of type A of ResNet: in -> out with a stride and extra zero channels, `before` of them
/// in front.
TYPED_TEST(PoolOf, ShortcutPadIsTheReference) {
  using T = TypeParam;
  const std::pair<WindowShape, std::int64_t> cases[] = {
      {{2, {8, 8, 16}, {4, 4, 32}, 1, 1, 2, 2, 0, 0}, 0},   // all after
      {{2, {8, 8, 16}, {4, 4, 32}, 1, 1, 2, 2, 0, 0}, 8},   // both sides
      {{1, {7, 5, 3}, {4, 3, 9}, 1, 1, 2, 2, 0, 0}, 3},     // odd image
      {{3, {4, 4, 16}, {4, 4, 64}, 1, 1, 1, 1, 0, 0}, 24},  // no stride
      {{1, {7, 8, 5}, {3, 4, 8}, 1, 1, 3, 2, 0, 0}, 1},     // two strides
      {{1, {5, 5, 4}, {5, 5, 4}, 1, 1, 1, 1, 0, 0}, 0},     // nothing to do
  };
  for (const auto& [s, before] : cases) {
    const Values x = random_as<T>(s.in_elements(), 1);
    const Values dy = random_as<T>(s.out_elements(), 2);
    Values y_expected(dy.size());
    Values dx_expected(x.size());
    reference::for_each_shortcut(s, before, [&](std::size_t out, std::size_t in) {
      y_expected[out] = x[in];
      dx_expected[in] = dy[out];
    });
    DeviceValues<T> x_device(x), dy_device(dy), y(s.out_elements()), dx(s.in_elements());
    shortcut_pad_forward(this->space_, s, before, y.data(), x_device.data());
    EXPECT_EQ(y.values(), y_expected);
    shortcut_pad_backward(this->space_, s, before, dx.data(), dy_device.data());
    EXPECT_EQ(dx.values(), dx_expected);
  }
}

}  // namespace
}  // namespace millrace::ops
