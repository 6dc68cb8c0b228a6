// SPDX-License-Identifier: Apache-2.0
//
// Fused norm kernels equal their parts bit for bit: a cut between norm, sum and activation must not
// change a result.
#include <gtest/gtest.h>

#include <tuple>

#include "ops/elementwise.hpp"
#include "tests/ops/norm_cases.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {
namespace {

using Param = std::tuple<NormCase, DType>;
class NormFusion : public testing::TestWithParam<Param> {
 protected:
  template <class Test>
  void run(Test&& test) {
    const NormShape& shape = std::get<0>(GetParam()).shape;
    device::dispatch(std::get<1>(GetParam()),
                     [&]<class T>() { test.template operator()<T>(shape); });
  }
};

TEST_P(NormFusion, ApplyWithFunction) {
  run([]<class T>(const NormShape& s) {
    NormHarness<T> h(s);
    for (const Activation fn : reference::kActivations) {
      DeviceValues<T> fused(s.elements()), z(s.elements()), parts(s.elements());
      h.apply(fused, nullptr, fn);
      h.apply(z, nullptr, Activation::None);
      activation_forward(h.space, parts.data(), z.data(), s.elements(), fn);
      EXPECT_TRUE(same_bits(fused, parts)) << "function " << static_cast<int>(fn);
    }
  });
}

TEST_P(NormFusion, ApplyWithSkipAndFunction) {
  run([]<class T>(const NormShape& s) {
    NormHarness<T> h(s);
    for (const Activation fn : reference::kActivations) {
      DeviceValues<T> fused(s.elements()), z(s.elements()), parts(s.elements());
      h.apply(fused, &h.skip_device, fn);
      h.apply(z, nullptr, Activation::None);
      add_forward(h.space, parts.data(), z.data(), h.skip_device.data(), s.elements(), fn);
      EXPECT_TRUE(same_bits(fused, parts)) << "function " << static_cast<int>(fn);
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

TEST_P(NormFusion, BackwardWithFunction) {
  run([]<class T>(const NormShape& s) {
    NormHarness<T> h(s);
    DeviceValues<T> z(s.elements());
    h.apply(z, nullptr, Activation::None);
    for (const Activation fn : reference::kActivations) {
      SCOPED_TRACE(static_cast<int>(fn));
      NormOutputs<T> parts(s), fused(s);
      backward_in_parts(h, z, fn, false, parts);

      NormBackwardReduce<T> args = h.reduce_arguments();
      fused.place(args);
      args.dy = h.dy_device.data();
      args.fn = fn;
      norm_backward_reduce(h.space, s, args);
      h.backward_apply(fused.dx, h.dy_device, fused.coefficients, fn);
      expect_same(fused, parts);

      // dx in place of dy.
      DeviceValues<T> in_place(h.dy);
      h.backward_apply(in_place, in_place, fused.coefficients, fn);
      EXPECT_TRUE(same_bits(in_place, parts.dx));
    }
  });
}

TEST_P(NormFusion, BackwardWithTwoGradients) {
  run([]<class T>(const NormShape& s) {
    NormHarness<T> h(s);
    DeviceValues<T> z(s.elements());
    h.apply(z, nullptr, Activation::None);
    for (const Activation fn : reference::kActivations) {
      SCOPED_TRACE(static_cast<int>(fn));
      NormOutputs<T> parts(s), fused(s);
      backward_in_parts(h, z, fn, true, parts);

      NormBackwardReduce<T> args = h.reduce_arguments();
      fused.place(args);
      args.dy = h.dy_device.data();
      args.dy2 = h.dy2_device.data();
      args.dz = fused.dz.data();
      args.fn = fn;
      norm_backward_reduce(h.space, s, args);
      h.backward_apply(fused.dx, fused.dz, fused.coefficients, Activation::None);
      EXPECT_TRUE(same_bits(fused.dz, parts.dz));
      expect_same(fused, parts);
    }
  });
}

TEST_P(NormFusion, BackwardWithSkip) {
  run([]<class T>(const NormShape& s) {
    NormHarness<T> h(s);
    for (const Activation fn : {Activation::None, Activation::Relu}) {
      DeviceValues<T> y(s.elements());
      h.apply(y, &h.skip_device, fn);
      for (const bool two : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << "function " << static_cast<int>(fn) << ", two gradients " << two);
        NormOutputs<T> parts(s), fused(s);
        backward_in_parts(h, y, fn, two, parts);  // Relu's gradient can be computed from its output

        NormBackwardReduce<T> args = h.reduce_arguments();
        fused.place(args);
        args.dy = h.dy_device.data();
        args.dy2 = two ? h.dy2_device.data() : nullptr;
        args.y = y.data();
        args.dz = fused.dz.data();
        args.skip_used = true;
        args.fn = fn;
        norm_backward_reduce(h.space, s, args);
        h.backward_apply(fused.dx, fused.dz, fused.coefficients, Activation::None);
        EXPECT_TRUE(same_bits(fused.dz, parts.dz));
        expect_same(fused, parts);
      }
    }
  });
}

TEST_P(NormFusion, InPlace) {
  run([]<class T>(const NormShape& s) {
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

std::string name_of_param(const testing::TestParamInfo<Param>& param) {
  const auto& [c, type] = param.param;
  return c.name + spelled(type);
}
INSTANTIATE_TEST_SUITE_P(Table, NormFusion,
                         testing::Combine(testing::ValuesIn(norm_cases()),
                                          testing::Values(DType::F32, DType::BF16, DType::F16)),
                         name_of_param);

}  // namespace
}  // namespace millrace::ops
