// SPDX-License-Identifier: Apache-2.0
//
// Our kernels of depthwise convolutions against plain loops, bit for bit: forward and backward
// input have the same order of summation, and sums of small integers have no rounding errors in any
// order.
#include "ops/rewrites.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/ops/shapes.hpp"

namespace millrace::ops {
namespace {

std::vector<ConvCase> depthwise_cases() {
  std::vector<ConvCase> cases = {
      // More than one block of channels, and a number of channels that is no multiple of 8; several
      // teams; asymmetric padding. name, batch, in, filters, kernel, stride, pads, groups
      {"C70", 2, {9, 13, 70}, 70, {3, 3}, {1, 1}, {1, 1, 1, 1}, 70},
      {"C70K5Stride2", 2, {13, 10, 70}, 70, {5, 5}, {2, 2}, {1, 2, 2, 1}, 70},
      {"C136Stride2", 3, {11, 23, 136}, 136, {3, 3}, {2, 2}, {0, 1, 1, 0}, 136},
      {"C8K5Wide", 1, {37, 41, 8}, 8, {5, 5}, {1, 1}, {4, 0, 0, 4}, 8}};
  for (const ConvCase& c : conv_cases())
    if (has_depthwise_pixels(c.shape())) cases.push_back(c);
  return cases;
}

/// Results of all passes; the weight gradient is that of two calls.
template <class T>
struct Passed {
  Values y, dx, dkernel;
};

template <class T>
Passed<T> passed_by(std::unique_ptr<LinearOp> op, const ConvShape& s, const Values& x,
                    const Values& dy, const Values& kernel) {
  const device::ExecutionSpace space;
  DeviceValues<T> x_device(x), dy_device(dy), kernel_device(kernel);
  DeviceValues<T> y(s.window.out_elements()), dx(s.window.in_elements());
  DeviceValues<float> dkernel(s.kernel_elements());
  DeviceValues<std::uint8_t> scratch(op->bytes().scratch);
  LinearMemory memory;
  memory.kernel = kernel_device.raw();
  memory.dkernel = dkernel.data();
  memory.scratch = scratch.raw();
  op->bind(memory);
  op->forward(space, y.raw(), x_device.raw());
  op->backward_input(space, dx.raw(), dy_device.raw());
  op->backward_weight(space, dy_device.raw(), x_device.raw(), true);
  op->backward_weight(space, dy_device.raw(), x_device.raw(), false);
  device::fence(space);
  (void)scratch.bits();  // checks the guard bytes
  return {y.values(), dx.values(), dkernel.values()};
}

/// Integers from -3 to 3.
Values small_integers(std::int64_t elements, std::uint64_t seed) {
  Values values = random_values(elements, seed, -3.5, 3.5);
  for (double& x : values) x = std::round(x);
  return values;
}

class DepthwiseTest : public OfEveryType<ConvCase> {};

TEST_P(DepthwiseTest, HasTheBitsOfPlainLoops) {
  run([]<class T>(const ConvCase& c) {
    const ConvShape s = c.shape();
    const DType type = device::dtype_of<T>();
    const auto own = [&] {
      return make_by_pass(kOnlyWeight, make_depthwise_gradient(s, type),
                          make_depthwise_pixels(s, type));
    };
    const Values kernel = random_as<T>(s.kernel_elements(), 1);
    const Values x = random_as<T>(s.window.in_elements(), 2);
    const Values dy = random_as<T>(s.window.out_elements(), 3);
    const Passed<T> fast = passed_by<T>(own(), s, x, dy, kernel);
    const Passed<T> plain = passed_by<T>(make_plain(s, type), s, x, dy, kernel);
    EXPECT_EQ(fast.y, plain.y);
    EXPECT_EQ(fast.dx, plain.dx);
    const Values whole_x = small_integers(s.window.in_elements(), 4);
    const Values whole_dy = small_integers(s.window.out_elements(), 5);
    EXPECT_EQ(passed_by<T>(own(), s, whole_x, whole_dy, kernel).dkernel,
              passed_by<T>(make_plain(s, type), s, whole_x, whole_dy, kernel).dkernel);
  });
}

INSTANTIATE_TEST_SUITE_P(Table, DepthwiseTest, DepthwiseTest::all(depthwise_cases()),
                         DepthwiseTest::name_of);

}  // namespace
}  // namespace millrace::ops
