// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.hpp"

#include "ops/activation_function.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

// One element, less than a vector, one more than a work item, several work items.
constexpr std::int64_t kSizes[] = {1, 7, 4097, 20000};

template <class T>
class Elementwise : public OfStorageType<T> {};
TYPED_TEST_SUITE(Elementwise, StorageTypes);

// Derivatives are at most about 1.1, values at most about 1.1 times the argument, and float32's exp
// is accurate to a few units.
TYPED_TEST(Elementwise, ActivationsAreTheReference) {
  using T = TypeParam;
  for (const std::int64_t n : kSizes) {
    const Values x = random_as<T>(n, 1, -6.0, 6.0);
    const Values dy = random_as<T>(n, 2);
    for (const auto& [fn, numbers] : reference::kFunctions) {
      SCOPED_TRACE(name_of(fn));
      const auto forward = [&, fn = fn, numbers = numbers](T* y, const auto& in) {
        activation_forward(this->space_, y, in[0], n, fn, numbers);
      };
      const auto backward = [&, fn = fn, numbers = numbers](T* dx, const auto& in) {
        activation_backward(this->space_, dx, in[0], in[1], n, fn, numbers);
      };
      // A value at a bound in storage precision has no gradient.
      const bool clips = fn == Activation::Clip;
      const ActivationNumbers bounds =
          clips ? ActivationNumbers{rounded_as<T>(numbers.a), rounded_as<T>(numbers.b)} : numbers;
      Values y, dx;
      for (std::size_t i = 0; i < x.size(); ++i) {
        y.push_back(reference::apply_fn(fn, x[i], numbers));
        dx.push_back(dy[i] * reference::fn_derivative(fn, x[i], bounds));
      }
      EXPECT_TRUE(stored<T>(result_of<T>(forward, {x}, {0}), y, 16.0, 16.0));
      EXPECT_TRUE(stored<T>(result_of<T>(backward, {dy, x}, {0}), dx, 16.0, 16.0));
    }
  }
}

TYPED_TEST(Elementwise, GradientMayUseTheOutputOfSomeFunctions) {
  using T = TypeParam;
  constexpr std::int64_t kN = 1000;
  DeviceValues<T> x(random_as<T>(kN, 1, -8.0, 8.0));
  DeviceValues<T> dy(random_as<T>(kN, 2));
  DeviceValues<T> y(kN), from_x(kN), from_y(kN);
  for (const auto& [fn, numbers] : reference::kFunctions) {
    if (!has_gradient_by_output(fn)) continue;
    activation_forward(this->space_, y.data(), x.data(), kN, fn, numbers);
    activation_backward(this->space_, from_x.data(), dy.data(), x.data(), kN, fn, numbers);
    activation_backward(this->space_, from_y.data(), dy.data(), y.data(), kN, fn, numbers);
    EXPECT_TRUE(same_bits(from_x, from_y)) << name_of(fn);
  }
}

// PyTorch 2.15 in float64: hardswish, hardsigmoid, relu6, leaky_relu(0.1), hardtanh(-1, 2) and
// their gradients, also at the kinks.
TEST(ActivationTest, FunctionsAreThoseOfPyTorch) {
  const Values x = {-4.0, -3.0, -2.5, -0.5, -0.0, 0.0, 0.25, 2.5, 3.0, 5.5, 6.0, 7.0};
  const double third = 1.0 / 3.0;
  const double sixth = 1.0 / 6.0;
  struct Recorded {
    reference::Function f;
    Values y, dx;
  };
  const std::vector<Recorded> table = {
      {{Activation::HardSwish},
       {0.0, 0.0, -0.20833333333333334, -0.20833333333333334, 0.0, 0.0, 0.13541666666666666,
        2.2916666666666665, 3.0, 5.5, 6.0, 7.0},
       {0.0, 0.0, -third, third, 0.5, 0.5, 0.5833333333333334, 1.3333333333333335, 1.0, 1.0, 1.0,
        1.0}},
      {{Activation::HardSigmoid, {1.0f / 6.0f, 0.5f}},
       {0.0, 0.0, 0.08333333333333333, 0.4166666666666667, 0.5, 0.5, 0.5416666666666666,
        0.9166666666666666, 1.0, 1.0, 1.0, 1.0},
       {0.0, 0.0, sixth, sixth, sixth, sixth, sixth, sixth, 0.0, 0.0, 0.0, 0.0}},
      {{Activation::Clip, {0.0f, 6.0f}},
       {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 2.5, 3.0, 5.5, 6.0, 6.0},
       {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0}},
      {{Activation::LeakyRelu, {0.1f}},
       {-0.4, -0.3, -0.25, -0.05, 0.0, 0.0, 0.25, 2.5, 3.0, 5.5, 6.0, 7.0},
       {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}},
      {{Activation::Clip, {-1.0f, 2.0f}},
       {-1.0, -1.0, -1.0, -0.5, 0.0, 0.0, 0.25, 2.0, 2.0, 2.0, 2.0, 2.0},
       {0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0}}};
  const device::ExecutionSpace space;
  const auto n = std::ssize(x);
  for (const auto& [f, y, dx] : table) {
    DeviceValues<float> in(x), ones(Values(x.size(), 1.0)), out(n), gradient(n);
    activation_forward(space, out.data(), in.data(), n, f.fn, f.n);
    activation_backward(space, gradient.data(), ones.data(), in.data(), n, f.fn, f.n);
    EXPECT_TRUE(close_to(out.values(), y, 1e-6)) << name_of(f.fn);
    EXPECT_TRUE(close_to(gradient.values(), dx, 1e-6)) << name_of(f.fn);
  }
}

TYPED_TEST(Elementwise, NanIsNotHidden) {
  using T = TypeParam;
  for (const auto& [fn, numbers] : reference::kFunctions) {
    DeviceValues<T> x(Values{std::numeric_limits<double>::quiet_NaN(), 1.0});
    activation_forward(this->space_, x.data(), x.data(), 2, fn, numbers);
    EXPECT_TRUE(std::isnan(x.values()[0])) << "function " << static_cast<int>(fn);
    EXPECT_FALSE(std::isnan(x.values()[1]));
  }
}

TYPED_TEST(Elementwise, LargeArgumentsStayFinite) {
  using T = TypeParam;
  for (const Activation fn : {Activation::Swish, Activation::Sigmoid}) {
    DeviceValues<T> x(Values{-200.0, 200.0});
    DeviceValues<T> dy(Values{1.0, 1.0});
    DeviceValues<T> y(2), dx(2);
    activation_forward(this->space_, y.data(), x.data(), 2, fn);
    activation_backward(this->space_, dx.data(), dy.data(), x.data(), 2, fn);
    EXPECT_TRUE(close_to(y.values(), {0.0, fn == Activation::Swish ? 200.0 : 1.0}, 1e-6));
    EXPECT_TRUE(close_to(dx.values(), {0.0, fn == Activation::Swish ? 1.0 : 0.0}, 1e-6));
  }
}

/// What activation_function.hpp promises, for results that go on in float32.
struct Bounds {
  double value;
  double slope;
};
Bounds bounds_of(Activation fn, double z) {
  const double units = (std::abs(z) + 4.0) * 0x1p-23;
  return {units * std::abs(reference::apply_fn(fn, z)) + 0x1p-118,
          fn == Activation::Swish ? 2.0 * units : units};
}

TEST(ActivationTest, SwishAndSigmoidKeepTheirBounds) {
  const device::ExecutionSpace space;
  constexpr std::int64_t kN = 20001;
  Values z;
  constexpr std::int64_t kMiddle = kN / 2;
  for (std::int64_t i = 0; i < kN; ++i) z.push_back(static_cast<double>(i - kMiddle) / 100.0);
  DeviceValues<float> x(z), ones(Values(z.size(), 1.0)), y(kN), dx(kN);
  z = x.values();
  for (const Activation fn : {Activation::Swish, Activation::Sigmoid}) {
    activation_forward(space, y.data(), x.data(), kN, fn);
    activation_backward(space, dx.data(), ones.data(), x.data(), kN, fn);
    const Values values = y.values();
    const Values slopes = dx.values();
    for (std::size_t i = 0; i < z.size(); ++i) {
      const Bounds most = bounds_of(fn, z[i]);
      ASSERT_NEAR(values[i], reference::apply_fn(fn, z[i]), most.value) << z[i];
      ASSERT_NEAR(slopes[i], reference::fn_derivative(fn, z[i]), most.slope) << z[i];
    }
  }
}

TYPED_TEST(Elementwise, AddRoundsTheSumOnce) {
  using T = TypeParam;
  for (const std::int64_t n : kSizes) {
    const Values a = random_as<T>(n, 1);
    const Values b = random_as<T>(n, 2);
    const auto forward = [&](T* y, const auto& in) {
      add_forward(this->space_, y, in[0], in[1], n, Activation::None);
    };
    const auto gradients = [&](T* y, const auto& in) {
      add_gradients(this->space_, y, in[0], in[1], n);
    };
    EXPECT_EQ(result_of<T>(forward, {a, b}), stored_sum<T>(a, b));
    EXPECT_EQ(result_of<T>(gradients, {a, b}, {0, 1}), stored_sum<T>(a, b));
  }
}

TYPED_TEST(Elementwise, AddThenFunctionIsTheComposition) {
  using T = TypeParam;
  constexpr std::int64_t kN = 5000;
  DeviceValues<T> a(random_as<T>(kN, 1)), b(random_as<T>(kN, 2)), fused(kN), parts(kN);
  for (const Activation fn : reference::kActivations) {
    add_forward(this->space_, fused.data(), a.data(), b.data(), kN, fn);
    add_forward(this->space_, parts.data(), a.data(), b.data(), kN, Activation::None);
    activation_forward(this->space_, parts.data(), parts.data(), kN, fn);
    EXPECT_TRUE(same_bits(fused, parts)) << "function " << static_cast<int>(fn);
  }
}

TYPED_TEST(Elementwise, ConvertRoundsToNearest) {
  using T = TypeParam;
  for (const std::int64_t n : kSizes) {
    const Values x = random_as<float>(n, 1, -100.0, 100.0);
    DeviceValues<float> x_device(x);
    DeviceValues<T> y(n);
    convert(this->space_, y.data(), x_device.data(), n);
    EXPECT_TRUE(same_bits(y, DeviceValues<T>(x)));
  }
}

TEST(Accumulate, OverwritesFirstThenAdds) {
  const device::ExecutionSpace space;
  for (const std::int64_t n : kSizes) {
    const Values part = random_as<float>(n, 1);
    DeviceValues<float> total(n), part_device(part);
    accumulate(space, total.data(), part_device.data(), n, true);
    EXPECT_EQ(total.values(), part);
    accumulate(space, total.data(), part_device.data(), n, false);
    Values twice = part;
    for (double& value : twice) value *= 2.0;
    EXPECT_EQ(total.values(), twice);
  }
}

TYPED_TEST(Elementwise, AccumulatesManyTensorsAsOne) {
  using T = TypeParam;
  constexpr std::int64_t kApart = 20016;
  constexpr auto kTensors = static_cast<std::int64_t>(kMostParts) + 6;
  const Values values = random_as<T>(kApart * kTensors, 1);
  DeviceValues<T> parts(values);
  DeviceValues<float> totals(Values(values.size(), 0.5)), expected(Values(values.size(), 0.5));
  std::vector<GradientPart> list;
  for (std::int64_t i = 0; i < kTensors; ++i)  // odd ones at odd places
    list.push_back({totals.data() + kApart * i + i % 2,
                    reinterpret_cast<const std::byte*>(parts.data() + kApart * i),
                    kSizes[static_cast<std::size_t>(i) % std::size(kSizes)]});
  for (const bool first : {true, false}) {
    accumulate_parts<T>(this->space_, list, first);
    for (const GradientPart& part : list)
      accumulate(this->space_, expected.data() + (part.total - totals.data()),
                 reinterpret_cast<const T*>(part.part), part.elements, first);
    EXPECT_TRUE(same_bits(totals, expected));
  }
}

// ---- approximate instructions -------------------------------------------------------------------

/// Shares, from -1 to 1, of the errors that PTX allows: 2^-22 of a power of two, 2^-23 of a
/// reciprocal. Results depend on both monotonously, so that the extremes enclose those of every
/// GPU.
struct Errors {
  double power;
  double reciprocal;
};

/// `exact` by an instruction that is off and flushes subnormal numbers.
float by_instruction(double exact, double error) {
  const auto y = static_cast<float>(exact * (1.0 + error));
  return std::abs(y) < 0x1p-126f ? 0.0f : y;
}

/// The factor by which fast_quotient() multiplies in sigmoid() and swish on a GPU.
float sigmoid_on_gpu(float z, Errors e) {
  constexpr float kLog2e = 1.44269504088896341f;
  const float power =
      by_instruction(std::exp2(static_cast<double>(-z * kLog2e)), e.power * 0x1p-22);
  return by_instruction(1.0 / static_cast<double>(1.0f + power), e.reciprocal * 0x1p-23);
}

TEST(ActivationTest, GpusKeepTheBoundsWhateverTheirInstructionsAreOffBy) {
  const auto expect_near = [](Activation fn, float z, float value, float slope) {
    const double x = static_cast<double>(z);
    const Bounds most = bounds_of(fn, x);
    ASSERT_NEAR(static_cast<double>(value), reference::apply_fn(fn, x), most.value) << z;
    ASSERT_NEAR(static_cast<double>(slope), reference::fn_derivative(fn, x), most.slope) << z;
  };
  for (const Errors e : {Errors{1.0, 1.0}, {1.0, -1.0}, {-1.0, 1.0}, {-1.0, -1.0}}) {
    for (float z = -100.0f; z <= 100.0f; z += 0x1p-9f) {
      const float s = sigmoid_on_gpu(z, e);
      expect_near(Activation::Sigmoid, z, s, s * (1.0f - s));
      expect_near(Activation::Swish, z, z * s, swish_slope(z, s));
    }
  }
}

// ---- exponential --------------------------------------------------------------------------------

TEST(ExponentialTest, KeepsItsBound) {
  const auto expect_near = [](float x) {
    const double exact = std::exp(-static_cast<double>(x));
    const double most = (std::abs(static_cast<double>(x)) + 2.0) * 0x1p-23 * exact;
    ASSERT_NEAR(static_cast<double>(exponential_of_minus(x)), exact, most) << x;
  };
  for (float x = -88.3f; x < 87.3f; x += 0x1p-12f) expect_near(x);
  for (float x = 1e-30f; x < 1.0f; x *= 1.01f) {
    expect_near(x);
    expect_near(-x);
  }
  EXPECT_EQ(exponential_of_minus(0.0f), 1.0f);
}

TEST(ExponentialTest, OverflowsToInfinityAndStaysSmall) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {88.8f, 1e30f, kInfinity}) {
    EXPECT_EQ(exponential_of_minus(-x), kInfinity);
    EXPECT_GE(exponential_of_minus(x), 0.0f);
    EXPECT_LE(exponential_of_minus(x), 0x1p-125f);
  }
}

/// Also bits that rounding would carry into the sign.
TEST(ExponentialTest, ActivationsAndRoundingKeepNaNs) {
  for (const std::uint32_t bits : {0x7fc00000u, 0x7fffffffu, 0xffc00001u, 0xffffffffu}) {
    const auto x = std::bit_cast<float>(bits);
    for (const float y :
         {Formula<Activation::Swish>::value(x), Formula<Activation::Swish>::gradient(1.0f, x),
          Formula<Activation::Sigmoid>::value(x), Formula<Activation::Sigmoid>::gradient(1.0f, x),
          rounded_as<bfloat16>(x), to_float(to_bfloat16(x))})
      EXPECT_TRUE(std::isnan(y)) << bits;
  }
}

}  // namespace
}  // namespace millrace::ops
