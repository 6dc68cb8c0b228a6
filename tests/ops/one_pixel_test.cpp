// SPDX-License-Identifier: Apache-2.0
//
// Runs of products of one pixel against separate calls, bit for bit, where buffers are apart and
// where some share memory as the memory plan lets them. linear_test compares the single passes with
// the reference.
#include "ops/elementwise.hpp"
#include "tests/ops/backends.hpp"
#include "tests/ops/device_values.hpp"

namespace millrace::ops {
namespace {

using enum KernelKind;

/// Squeeze and excitation of `channels` values of each sample.
struct PairCase {
  std::int64_t samples, channels, squeezed;
  Activation inner = Activation::Swish;
};

/// Two products whose buffers lie in one array. Numbers of buffers: 0 x, 1 z, 2 fn(z), 3 z, 4
/// fn(z); and gradients of them from 5 on.
template <class T>
class Pair {
 public:
  explicit Pair(const PairCase& c) : case_(c), memory_(kSlots * slot()) {
    for (std::size_t k = 0; k < 2; ++k) {
      ConvShape& s = shapes_[k];
      s.window.batch = c.samples;
      s.window.in = {1, 1, k == 0 ? c.channels : c.squeezed};
      s.window.out = {1, 1, k == 0 ? c.squeezed : c.channels};
      s.bias = true;
      kernels_.emplace_back(random_as<T>(s.kernel_elements(), 10 + k));
      biases_.emplace_back(random_values(s.window.out.c, 20 + k));
      dkernels_.emplace_back(random_values(s.kernel_elements(), 30 + k));
      dbiases_.emplace_back(random_values(s.window.out.c, 40 + k));
    }
    for (std::size_t b = 0; b < kSlots; ++b) offsets_[b] = static_cast<std::int64_t>(b) * slot();
    memory_.assign(random_as<T>(kSlots * slot(), 1, -3.0, 3.0));
  }
  /// Lets a buffer begin `values` behind the beginning of another one.
  void place(std::size_t buffer, std::size_t other, std::int64_t values) {
    offsets_[buffer] = offsets_[other] + values;
  }
  void call(KernelKind kind, int k, std::vector<std::pair<Role, int>> buffers) {
    const auto product = static_cast<std::size_t>(k);
    OfferedCall call;
    call.kind = kind;
    call.buffers.fill(-1);
    for (const auto& [role, buffer] : buffers)
      call.buffers[static_cast<std::size_t>(role)] = buffer;
    if (is_linear(kind))
      call.shape = shapes_[product];
    else
      call.fn = product == 0 ? case_.inner : Activation::Sigmoid;
    calls_.push_back(call);
    products_.push_back(product);
  }

  void run_each() {
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const std::size_t p = products_[i];
      const auto op = backend_.convolution(shapes_[p], device::dtype_of<T>(), {});
      DeviceValues<std::uint8_t> scratch(op->bytes().scratch);
      op->bind({kernels_[p].raw(), biases_[p].data(), dkernels_[p].data(), dbiases_[p].data(),
                nullptr, nullptr, scratch.raw()});
      const CallBuffers b = buffers(calls_[i]);
      const auto at = [&](Role role) { return b[static_cast<std::size_t>(role)]; };
      const std::int64_t n = case_.samples * shapes_[p].window.out.c;
      if (calls_[i].kind == LinearForward) op->forward(space_, at(Role::Y), at(Role::X));
      if (calls_[i].kind == LinearBackwardInput)
        op->backward_input(space_, at(Role::Dx), at(Role::Dy));
      if (calls_[i].kind == LinearBackwardWeight)
        op->backward_weight(space_, at(Role::Dy), at(Role::X), false);
      if (calls_[i].kind == ActivationForward)
        activation_forward<T>(space_, as<T>(at(Role::Y)), as<T>(at(Role::X)), n, calls_[i].fn);
      if (calls_[i].kind == ActivationBackward)
        activation_backward<T>(space_, as<T>(at(Role::Dx)), as<T>(at(Role::Dy)), as<T>(at(Role::X)),
                               n, calls_[i].fn);
      device::fence(space_);
    }
  }
  void run_claimed() {
    const RunClaim claim = backend_.claim(calls_, device::dtype_of<T>());
    ASSERT_EQ(claim.calls, calls_.size());
    DeviceValues<std::uint8_t> scratch(claim.run->bytes().scratch);
    std::vector<CallParameters> parameters(calls_.size());
    std::vector<CallBuffers> all;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      all.push_back(buffers(calls_[i]));
      const std::size_t p = products_[i];
      if (!is_linear(calls_[i].kind)) continue;
      parameters[i].kernel = kernels_[p].raw();
      parameters[i].bias = biases_[p].data();
      parameters[i].dkernel = dkernels_[p].data();
      parameters[i].dbias = dbiases_[p].data();
    }
    claim.run->bind(parameters, nullptr, scratch.raw());
    claim.run->run(space_, all, false);
    device::fence(space_);
    (void)scratch.bits();  // checks the guard bytes
  }

  /// What is in buffers of this many values a sample, and all gradients.
  [[nodiscard]] std::vector<double> results(const std::vector<std::size_t>& wanted,
                                            std::int64_t values) {
    const Values memory = memory_.values();
    std::vector<double> all;
    for (const std::size_t b : wanted)
      all.insert(all.end(), memory.begin() + offsets_[b],
                 memory.begin() + offsets_[b] + case_.samples * values);
    for (std::size_t k = 0; k < 2; ++k)
      for (const auto* gradient : {&dkernels_[k], &dbiases_[k]}) {
        const Values more = gradient->values();
        all.insert(all.end(), more.begin(), more.end());
      }
    return all;
  }

 private:
  static constexpr std::int64_t kSlots = 9;
  [[nodiscard]] std::int64_t slot() const {
    return (case_.samples * case_.channels + 127) / 64 * 64;  // room for a shift
  }
  [[nodiscard]] CallBuffers buffers(const OfferedCall& call) {
    CallBuffers all = {};
    for (std::size_t role = 0; role < kRoles; ++role)
      if (const auto b = call.buffers[role]; b >= 0)
        all[role] =
            reinterpret_cast<std::byte*>(memory_.data() + offsets_[static_cast<std::size_t>(b)]);
    return all;
  }

  PairCase case_;
  Backend backend_;
  device::ExecutionSpace space_;
  std::array<ConvShape, 2> shapes_;
  std::vector<DeviceValues<T>> kernels_;
  std::vector<DeviceValues<float>> biases_, dkernels_, dbiases_;
  DeviceValues<T> memory_;
  std::array<std::int64_t, kSlots> offsets_ = {};
  std::vector<OfferedCall> calls_;
  std::vector<std::size_t> products_;
};

template <class T>
class OnePixelTest : public OfStorageType<T> {
 protected:
  void SetUp() override {
    if (device::kOnCores) GTEST_SKIP() << "cores use their vendor's kernels";
  }
  /// Compares both ways to run what `prepare` calls.
  template <class Prepare>
  static void expect_same(const std::vector<std::size_t>& wanted, const Prepare& prepare) {
    for (const PairCase& c : {PairCase{5, 96, 4}, PairCase{3, 37, 13, Activation::Relu},
                              PairCase{3, 200, 12}, PairCase{2, 1, 2}, PairCase{1, 600, 1}}) {
      Pair<T> each(c), claimed(c);
      prepare(each);
      prepare(claimed);
      each.run_each();
      claimed.run_claimed();
      EXPECT_EQ(claimed.results(wanted, c.channels), each.results(wanted, c.channels))
          << c.samples << " samples, " << c.channels << " and " << c.squeezed << " channels";
    }
  }
  static void forward(Pair<T>& pair) {
    pair.call(LinearForward, 0, {{Role::X, 0}, {Role::Y, 1}});
    pair.call(ActivationForward, 0, {{Role::X, 1}, {Role::Y, 2}});
    pair.call(LinearForward, 1, {{Role::X, 2}, {Role::Y, 3}});
    pair.call(ActivationForward, 1, {{Role::X, 3}, {Role::Y, 4}});
  }
  /// The gradient of fn(z) is buffer 5, that of z is in its place; the result is buffer 7.
  static void backward(Pair<T>& pair, bool weights) {
    for (const int k : {1, 0}) {
      const int dy = 6 - k;
      pair.call(ActivationBackward, k, {{Role::Dy, dy}, {Role::X, 1 + 2 * k}, {Role::Dx, dy}});
      if (weights) pair.call(LinearBackwardWeight, k, {{Role::Dy, dy}, {Role::X, 2 * k}});
      pair.call(LinearBackwardInput, k, {{Role::Dy, dy}, {Role::Dx, dy + 1}});
    }
  }
};
TYPED_TEST_SUITE(OnePixelTest, StorageTypes);

TYPED_TEST(OnePixelTest, ForwardRunsHaveTheBitsOfSeparateCalls) {
  this->expect_same({0, 4}, [](auto& pair) { TestFixture::forward(pair); });
  for (const std::int64_t shift :
       {0, 16})  // x is done with, and the second product takes its place
    this->expect_same({4}, [&](auto& pair) {
      TestFixture::forward(pair);
      pair.place(3, 0, shift);
    });
}

TYPED_TEST(OnePixelTest, BackwardRunsHaveTheBitsOfSeparateCalls) {
  for (const bool weights : {false, true}) {
    const auto with = [&](auto& pair) { TestFixture::backward(pair, weights); };
    this->expect_same({7}, with);
    for (const std::size_t other : {0U, 5U})  // buffers that were read before
      for (const std::int64_t shift : {0, 16})
        this->expect_same({7}, [&](auto& pair) {
          with(pair);
          pair.place(7, other, shift);
        });
  }
}

TYPED_TEST(OnePixelTest, WeightGradientsInOneLaunchHaveTheBitsOfTwo) {
  this->expect_same({}, [](auto& pair) {
    pair.call(LinearBackwardWeight, 1, {{Role::Dy, 5}, {Role::X, 2}});
    pair.call(LinearBackwardWeight, 0, {{Role::Dy, 6}, {Role::X, 0}});
  });
}

}  // namespace
}  // namespace millrace::ops
