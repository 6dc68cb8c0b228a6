// SPDX-License-Identifier: Apache-2.0
//
// Convolution and dense against the reference: every backend, storage type and shape of the table,
// each pass separately.
//
// Tolerance: inputs are values of the storage type, so products are exact in float32 or rounded
// once. A sum of K products in any order has an error of at most about K u sum|products|, u =
// 2^-24, which is small enough to detect one missing product. The result is rounded to the storage
// type once. A partial sum in bfloat16 would exceed this bound. cuDNN also rounds the weight
// gradient of each micro-batch to the storage type, which cublasLt does not.
#include "core/error.hpp"
#include "tests/ops/backends.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/ops/shapes.hpp"
#include "tests/support/reference_ops.hpp"

#ifdef MILLRACE_ONEDNN
#include "ops/onednn/onednn.hpp"
#include "tests/support/expect_error.hpp"
#endif

namespace millrace::ops {
namespace {

struct LinearCase {
  std::string name;
  ConvShape conv;
  std::optional<DenseShape> dense;
  std::int64_t blocks = 0;  ///< blocks of samples for make_widened; 0: the backend decides
  bool mixed = false;       ///< the blocks' backward passes are plain loops
};
void PrintTo(const LinearCase& c, std::ostream* out) { *out << c.name; }

std::vector<LinearCase> linear_cases() {
  std::vector<LinearCase> cases;
  for (const ConvCase& c : conv_cases()) cases.push_back({c.name, c.shape(), std::nullopt});
  for (const DenseCase& d : dense_cases()) cases.push_back({d.name, d.as_convolution(), d.shape});
  return cases;
}

/// Three blocks of two samples, with float32 ops between conversions. Selects cases that have a
/// bias, whose gradient is summed over blocks as well, and that are small enough for a batch of
/// six.
std::vector<LinearCase> cases_in_blocks() {
  std::vector<LinearCase> cases;
  for (ConvCase c : conv_cases()) {
    if (!c.bias || c.kernel.h > 3) continue;
    c.batch = 6;
    for (const bool mixed : {false, true})
      cases.push_back({c.name + (mixed ? "Mixed" : ""), c.shape(), std::nullopt, 3, mixed});
  }
  return cases;
}

/// Forward uses a backend that packs its kernel, the other passes use loops that read the kernel
/// directly.
std::unique_ptr<LinearOp> mixed_convolution(Backend& backend, const ConvShape& shape) {
  constexpr Passes kForward = {false, false, true};
  return make_by_pass(kForward, backend.convolution(shape, DType::F32, kForward),
                      make_plain(shape, DType::F32));
}

std::unique_ptr<LinearOp> prepare(BackendKind kind, const LinearCase& c, DType type,
                                  Passes passes) {
  const std::unique_ptr<Backend> backend = make_backend(kind);
  if (c.blocks > 0) {
    ConvShape block = c.conv;
    block.window.batch /= c.blocks;
    return make_widened({c.blocks, block.window.in_elements(), block.window.out_elements(),
                         block.kernel_elements()},
                        type,
                        c.mixed ? mixed_convolution(*backend, block)
                                : backend->convolution(block, DType::F32, passes));
  }
  return c.dense ? backend->dense(*c.dense, type, passes)
                 : backend->convolution(c.conv, type, passes);
}

/// Inputs of one case as values of T, and the op bound to memory that holds its parameters.
template <class T>
class Harness {
 public:
  Harness(BackendKind kind, const LinearCase& c, Passes passes = {})
      : shape(c.conv),
        x(random_as<T>(shape.window.in_elements(), 1)),
        kernel(random_as<T>(shape.kernel_elements(), 2)),
        bias(shape.bias ? random_values(shape.window.out.c, 3) : Values()),
        dy(random_as<T>(shape.window.out_elements(), 4)),
        dy2(random_as<T>(shape.window.out_elements(), 5)),
        y_device(shape.window.out_elements()),
        dx_device(shape.window.in_elements()),
        dkernel_device(shape.kernel_elements()),
        dbias_device(shape.window.out.c),
        op_(prepare(kind, c, device::dtype_of<T>(), passes)),
        x_device_(x),
        dy_device_(dy),
        dy2_device_(dy2),
        kernel_device_(kernel),
        bias_device_(shape.bias ? bias : Values(1)),
        packed_forward_(op_->bytes().packed_forward),
        packed_backward_(op_->bytes().packed_backward),
        scratch_(op_->bytes().scratch) {
    op_->bind({kernel_device_.raw(), bias_device_.data(), dkernel_device.data(),
               dbias_device.data(), packed_forward_.raw(), packed_backward_.raw(), scratch_.raw()});
    op_->pack(space, passes.backward_input);
  }

  // Scratch is shared with other ops, so its contents must not be needed after a call.
  void forward() {
    scratch_.poison();
    op_->forward(space, y_device.raw(), x_device_.raw());
    device::fence(space);
  }
  void backward_input() {
    scratch_.poison();
    op_->backward_input(space, dx_device.raw(), dy_device_.raw());
    device::fence(space);
  }
  void backward_weight() { backward_weight(dy_device_, true); }
  void backward_weight_more() { backward_weight(dy2_device_, false); }

  [[nodiscard]] double pixels_out() const {
    return static_cast<double>(shape.window.batch * shape.window.out.pixels());
  }
  void expect_inputs_unchanged() const {
    EXPECT_TRUE(close_to(x_device_.values(), x, 0.0));
    EXPECT_TRUE(close_to(dy_device_.values(), dy, 0.0));
    EXPECT_TRUE(close_to(kernel_device_.values(), kernel, 0.0));
    (void)scratch_.bits();  // checks the guard bytes
    (void)packed_forward_.bits();
    (void)packed_backward_.bits();
  }

  device::ExecutionSpace space;
  ConvShape shape;
  Values x, kernel, bias, dy, dy2;
  DeviceValues<T> y_device, dx_device;
  DeviceValues<float> dkernel_device, dbias_device;

 private:
  void backward_weight(DeviceValues<T>& gradient, bool first) {
    scratch_.poison();
    op_->backward_weight(space, gradient.raw(), x_device_.raw(), first);
    device::fence(space);
  }

  std::unique_ptr<LinearOp> op_;
  DeviceValues<T> x_device_, dy_device_, dy2_device_, kernel_device_;
  DeviceValues<float> bias_device_;
  DeviceValues<std::uint8_t> packed_forward_, packed_backward_, scratch_;
};

/// See the start of this file; `terms` is K.
template <class T>
testing::AssertionResult close_sums(const Values& actual, const Values& expected,
                                    const Values& magnitude, double terms) {
  return close(actual, expected, [&](std::size_t i) {
    return (terms + 2.0) * kFloatUnit * magnitude[i] + kUnit<T> * std::abs(expected[i]) + kLeast<T>;
  });
}

/// The same of a weight gradient, the sum of those of two micro-batches.
template <class T>
testing::AssertionResult close_gradients(BackendKind kind, const ConvShape& shape,
                                         const Values& actual, const Values& expected,
                                         const Values& magnitude, double terms) {
  const bool is_vendor = kind == BackendKind::Vendor || kind == BackendKind::Frugal;
  if (!is_vendor || !rounds_gradients(shape, device::dtype_of<T>()))
    return close_sums<float>(actual, expected, magnitude, terms);
  return close(actual, expected, [&](std::size_t i) {
    return (terms + 2.0) * kFloatUnit * magnitude[i] + kUnit<T> * magnitude[i] + kLeast<T>;
  });
}

using Param = std::tuple<LinearCase, BackendKind, DType>;

class Linear : public testing::TestWithParam<Param> {
 protected:
  /// Calls test.operator()<T>(backend, case) for the storage type at hand.
  template <class Test>
  void run(Test&& test) {
    const auto& [c, kind, type] = GetParam();
    device::dispatch(type,
                     [&, &c = c, kind = kind]<class T>() { test.template operator()<T>(kind, c); });
  }
};

TEST_P(Linear, ForwardIsTheReference) {
  run([]<class T>(BackendKind kind, const LinearCase& c) {
    Harness<T> h(kind, c, {false, false});
    h.forward();
    const WindowShape& w = h.shape.window;
    const std::int64_t group = w.in.c / h.shape.groups;
    const auto terms = static_cast<double>(w.kernel_h * w.kernel_w * group);
    EXPECT_TRUE(close_sums<T>(
        h.y_device.values(), reference::conv_forward(h.shape, h.x, h.kernel, h.bias),
        reference::conv_forward(h.shape, reference::magnitudes(h.x),
                                reference::magnitudes(h.kernel), reference::magnitudes(h.bias)),
        terms));
    h.expect_inputs_unchanged();
  });
}

TEST_P(Linear, BackwardInputIsTheReference) {
  run([]<class T>(BackendKind kind, const LinearCase& c) {
    Harness<T> h(kind, c, {true, false});
    h.backward_input();
    const WindowShape& w = h.shape.window;
    const std::int64_t group = w.out.c / h.shape.groups;
    const auto terms = static_cast<double>(w.kernel_h * w.kernel_w * group);
    EXPECT_TRUE(close_sums<T>(h.dx_device.values(),
                              reference::conv_backward_input(h.shape, h.dy, h.kernel),
                              reference::conv_backward_input(h.shape, reference::magnitudes(h.dy),
                                                             reference::magnitudes(h.kernel)),
                              terms));
    h.expect_inputs_unchanged();
  });
}

TEST_P(Linear, BackwardWeightIsTheReferenceAndAddsUp) {
  run([]<class T>(BackendKind kind, const LinearCase& c) {
    Harness<T> h(kind, c, {false, true});
    const auto expect = [&](const Values& dy, const Values& magnitude, double terms) {
      EXPECT_TRUE(close_gradients<T>(
          kind, h.shape, h.dkernel_device.values(),
          reference::conv_backward_weight(h.shape, dy, h.x),
          reference::conv_backward_weight(h.shape, magnitude, reference::magnitudes(h.x)), terms));
      if (!h.shape.bias) return;
      const std::int64_t channels = h.shape.window.out.c;
      EXPECT_TRUE(close_sums<float>(h.dbias_device.values(), reference::bias_gradient(dy, channels),
                                    reference::bias_gradient(magnitude, channels), terms));
    };
    h.backward_weight();
    expect(h.dy, reference::magnitudes(h.dy), h.pixels_out());

    h.backward_weight_more();
    Values sum = h.dy;
    Values magnitude = reference::magnitudes(h.dy);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += h.dy2[i];
      magnitude[i] += std::abs(h.dy2[i]);
    }
    expect(sum, magnitude, h.pixels_out() + 1.0);
    h.expect_inputs_unchanged();
  });
}

TEST_P(Linear, OrderOfPassesDoesNotMatter) {
  run([]<class T>(BackendKind kind, const LinearCase& c) {
    Harness<T> plain(kind, c);
    plain.forward();
    plain.backward_input();
    plain.backward_weight();
    plain.backward_weight_more();

    Harness<T> other(kind, c);
    other.backward_weight();
    other.forward();
    other.y_device.poison();
    other.backward_weight_more();
    other.backward_input();
    other.forward();

    EXPECT_TRUE(same_bits(other.y_device, plain.y_device));
    EXPECT_TRUE(same_bits(other.dx_device, plain.dx_device));
    EXPECT_TRUE(same_bits(other.dkernel_device, plain.dkernel_device));
    EXPECT_TRUE(same_bits(other.dbias_device, plain.dbias_device));
  });
}

std::string name_of_param(const testing::TestParamInfo<Param>& info) {
  const auto& [c, kind, type] = info.param;
  return c.name + name_of(kind) + spelled(type);
}

INSTANTIATE_TEST_SUITE_P(Table, Linear,
                         testing::Combine(testing::ValuesIn(linear_cases()),
                                          testing::ValuesIn(backend_kinds()),
                                          testing::Values(DType::F32, DType::BF16, DType::F16)),
                         name_of_param);
INSTANTIATE_TEST_SUITE_P(Blocks, Linear,
                         testing::Combine(testing::ValuesIn(cases_in_blocks()),
                                          testing::ValuesIn(backend_kinds()),
                                          testing::Values(DType::BF16, DType::F16)),
                         name_of_param);

TEST(Widened, BlocksAreTheLargestThatDivideTheBatchAndFit) {
  for (const std::int64_t batch : {1, 2, 7, 12, 64, 100}) {
    for (const int threads : {1, 2, 16}) {
      for (std::int64_t elements = 16; elements <= 1 << 24; elements *= 4) {
        std::int64_t largest = 1;
        for (std::int64_t samples = 2; samples <= batch; ++samples) {
          // 2 MiB per thread hold 2^19 values of float32.
          const bool fits = samples * elements <= std::int64_t{threads} << 19;
          if (batch % samples == 0 && fits) largest = samples;
        }
        EXPECT_EQ(samples_in_block(batch, elements, threads), largest)
            << batch << " samples of " << elements << ", " << threads << " threads";
      }
    }
  }
}

TEST(Rewrites, FollowTheMeasuredTable) {
  const auto conv = [](std::int64_t size, std::int64_t in, std::int64_t out, std::int64_t kernel,
                       std::int64_t stride, std::int64_t groups) {
    ConvShape s;
    s.window.in = {size, size, in};
    s.window.out = {(size - 1) / stride + 1, (size - 1) / stride + 1, out};
    s.window.kernel_h = s.window.kernel_w = kernel;
    s.window.stride_h = s.window.stride_w = stride;
    s.window.pad_top = s.window.pad_left = s.pad_bottom = s.pad_right = kernel / 2;
    s.groups = groups;
    return s;
  };
  const auto choice = [](const ConvShape& s, DType type, std::optional<MeasuredLevel> level,
                         Passes passes = {}) -> std::string {
    const Rewrite* const row =
        find_rewrite({.shape = s, .type = type, .passes = passes}, Rewrite::When::Measured, level);
    return row != nullptr ? row->name : "";
  };
  const ConvShape projection = conv(56, 64, 128, 1, 2, 1);
  EXPECT_EQ(choice(projection, DType::F32, std::nullopt), "");
  EXPECT_EQ(choice(projection, DType::BF16, MeasuredLevel::Sse), "gathered pixels");
  EXPECT_EQ(choice(conv(1, 64, 16, 1, 1, 1), DType::F32, MeasuredLevel::Sse), "product");
  const ConvShape depthwise = conv(28, 96, 96, 5, 1, 96);
  EXPECT_EQ(choice(depthwise, DType::F32, MeasuredLevel::Avx2), "own gradient");
  EXPECT_EQ(choice(depthwise, DType::F32, MeasuredLevel::Avx2, {true, false}), "");
  const ConvShape pointwise = conv(56, 64, 64, 1, 1, 1);
  EXPECT_EQ(choice(pointwise, DType::F32, MeasuredLevel::Avx2), "");
  EXPECT_EQ(choice(pointwise, DType::F32, MeasuredLevel::Avx512), "turned");
  EXPECT_EQ(choice(pointwise, DType::BF16, MeasuredLevel::Avx512), "");
  const ConvShape narrow = conv(56, 128, 128, 3, 1, 32);
  EXPECT_EQ(choice(narrow, DType::BF16, MeasuredLevel::Avx512), "");
  EXPECT_EQ(choice(narrow, DType::BF16, MeasuredLevel::Amx), "merged groups");
  std::int64_t groups = 0;
  const LinearRequest asked{.shape = narrow, .type = DType::BF16, .passes = {}};
  (void)find_rewrite(asked, Rewrite::When::Measured, MeasuredLevel::Amx)
      ->make(asked, [&](const LinearRequest& inner) {
        groups = std::get<ConvShape>(inner.shape).groups;
        return make_plain(std::get<ConvShape>(inner.shape), inner.type);
      });
  EXPECT_EQ(groups, 8);
}

#ifdef MILLRACE_ONEDNN
TEST(Backend, UnusedPassesCostNoMemory) {
  const LinearCase c = {"", conv_cases().back().shape(), std::nullopt};
  const LinearBytes forward = prepare(BackendKind::Vendor, c, DType::F32, {false, false})->bytes();
  const LinearBytes all = prepare(BackendKind::Vendor, c, DType::F32, {})->bytes();
  EXPECT_EQ(forward.packed_backward, 0);
  EXPECT_GT(all.packed_backward, 0);
  EXPECT_LT(forward.scratch, all.scratch);
}

/// Compares the sum over all cases. A single case may need more, because the gradient's layout can
/// change and is included.
TEST(Backend, CapsBoundScratch) {
  std::int64_t free = 0;
  std::int64_t capped = 0;
  for (const LinearCase& c : linear_cases()) {
    for (const DType type : {DType::F32, DType::BF16}) {
      const std::int64_t most = prepare(BackendKind::Vendor, c, type, {})->bytes().scratch;
      const std::int64_t least = prepare(BackendKind::Frugal, c, type, {})->bytes().scratch;
      free += most;
      capped += least;
    }
  }
  EXPECT_LT(capped, free);
}

/// A list of implementations as oneDNN's descriptors offer it.
struct FakeDescriptor {
  struct Scratch {
    std::size_t bytes;
    [[nodiscard]] std::size_t get_size() const { return bytes; }
  };
  std::vector<std::size_t> bytes;
  std::size_t at = 0;
  explicit operator bool() const { return !bytes.empty(); }
  [[nodiscard]] Scratch scratchpad_desc() const { return {bytes[at]}; }
  bool next_impl() { return at + 1 < bytes.size() && (++at, true); }
};

TEST(Backend, TheFirstImplementationWithinTheCapIsTaken) {
  const auto describe = [] { return FakeDescriptor{{900, 300, 500, 200, 100, 200}}; };
  const auto chosen = [&](std::int64_t cap) {
    return onednn::implementation_within(cap, describe).at;
  };
  EXPECT_EQ(chosen(900), 0);
  EXPECT_EQ(chosen(899), 1);
  EXPECT_EQ(chosen(299), 3);
  EXPECT_EQ(chosen(99), 4);  // none is small enough, so the smallest
}

TEST(Backend, ImpossibleShapeIsOneClearError) {
  ConvShape shape = conv_cases().front().shape();
  shape.window.out = {5, 5, 1};  // of a 1x1 image
  expect_error(ErrorKind::Internal, {"1x1x1"},
               [&] { (void)make_default_backend()->convolution(shape, DType::F32, {}); });
}

TEST(Backend, DefaultIsTheFastest) { EXPECT_STREQ(make_default_backend()->name(), "onednn"); }
#else
TEST(Backend, DefaultIsTheOneThatIsAlwaysThere) {
  EXPECT_STREQ(make_default_backend()->name(), kCudnn ? "cudnn" : "kokkos");
}
#endif

}  // namespace
}  // namespace millrace::ops
