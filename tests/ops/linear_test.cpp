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
#include <array>
#include <cmath>

#include "ops/rewrites.hpp"
#include "ops/wider_kernels.hpp"
#include "tests/ops/backends.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/ops/shapes.hpp"
#include "tests/support/reference_ops.hpp"

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

/// Activations and gradients: any, or integers from -3 to 3, whose sums have no rounding errors.
enum class Numbers { Any, Whole };

template <class T>
Values some(Numbers numbers, std::int64_t elements, std::uint64_t seed) {
  if (numbers == Numbers::Any) return random_as<T>(elements, seed);
  Values values = random_values(elements, seed, -3.5, 3.5);
  for (double& x : values) x = std::round(x);
  return values;
}

/// Images in the shape in which the convolution reads them, with zeros where it has no pixels.
Values as_it_reads(const ConvShape& s, const Values& images) {
  if (!s.stored) return images;
  const Shape& in = s.window.in;
  const Shape& stored = *s.stored;
  const std::int64_t side = in.h / stored.h;
  Values all(static_cast<std::size_t>(s.window.batch * stored.elements()));
  for (std::int64_t i = 0; i < s.window.batch * in.pixels(); ++i) {
    const std::int64_t row = i / in.w;  // of all images
    const std::int64_t x = i % in.w;
    const std::int64_t first =
        (row / side * stored.w + x / side) * stored.c + (row % side * side + x % side) * in.c;
    std::copy_n(images.begin() + i * in.c, in.c, all.begin() + first);
  }
  return all;
}

/// Inputs of an op as values of T, and the op bound to memory that holds its parameters.
template <class T>
class Harness {
 public:
  Harness(std::unique_ptr<LinearOp> op, const ConvShape& s, Passes passes = {},
          Numbers numbers = Numbers::Any)
      : shape(s),
        x(some<T>(numbers, shape.window.in_elements(), 1)),
        kernel(random_as<T>(shape.kernel_elements(), 2)),
        bias(shape.bias ? random_values(shape.window.out.c, 3) : Values()),
        dy(some<T>(numbers, shape.window.out_elements(), 4)),
        dy2(some<T>(numbers, shape.window.out_elements(), 5)),
        y_device(shape.window.out_elements()),
        dx_device(shape.window.in_elements()),
        dkernel_device(shape.kernel_elements()),
        dbias_device(shape.window.out.c),
        op_(std::move(op)),
        x_device_(as_it_reads(shape, x)),
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
  Harness(BackendKind kind, const LinearCase& c, Passes passes = {})
      : Harness(prepare(kind, c, device::dtype_of<T>(), passes), c.conv, passes) {}

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

  void run_all() {
    forward();
    backward_input();
    backward_weight();
    backward_weight_more();
  }

  [[nodiscard]] double pixels_out() const {
    return static_cast<double>(shape.window.batch * shape.window.out.pixels());
  }
  /// Products in an element of y, which come from the input's channels, or of dx.
  [[nodiscard]] double products(std::int64_t channels) const {
    const WindowShape& w = shape.window;
    return static_cast<double>(w.kernel_h * w.kernel_w * channels / shape.groups);
  }
  void expect_inputs_unchanged() const {
    EXPECT_TRUE(close_to(x_device_.values(), as_it_reads(shape, x), 0.0));
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

/// Expects of sums of `terms` products what the reference makes of its inputs.
template <class T, class Reference, class... Inputs>
void expect_sums(const Values& actual, double terms, const Reference& reference,
                 const Inputs&... inputs) {
  const Values magnitude = reference(reference::magnitudes(inputs)...);
  EXPECT_TRUE(close_sums<T>(actual, reference(inputs...), magnitude, terms));
}

/// close_sums of a weight gradient, the sum of those of two micro-batches.
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

/// Expects the weight gradients of the reference, and that they add up.
template <class T>
void expect_weight_gradients(BackendKind kind, Harness<T>& h) {
  const auto expect = [&](const Values& dy, const Values& magnitude, double terms) {
    EXPECT_TRUE(close_gradients<T>(
        kind, h.shape, h.dkernel_device.values(), reference::conv_backward_weight(h.shape, dy, h.x),
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
    expect_sums<T>(h.y_device.values(), h.products(h.shape.window.in.c),
                   std::bind_front(reference::conv_forward, h.shape), h.x, h.kernel, h.bias);
    h.expect_inputs_unchanged();
  });
}

TEST_P(Linear, BackwardInputIsTheReference) {
  run([]<class T>(BackendKind kind, const LinearCase& c) {
    Harness<T> h(kind, c, {true, false});
    h.backward_input();
    expect_sums<T>(h.dx_device.values(), h.products(h.shape.window.out.c),
                   std::bind_front(reference::conv_backward_input, h.shape), h.dy, h.kernel);
    h.expect_inputs_unchanged();
  });
}

TEST_P(Linear, BackwardWeightIsTheReferenceAndAddsUp) {
  run([]<class T>(BackendKind kind, const LinearCase& c) {
    Harness<T> h(kind, c, {false, true});
    expect_weight_gradients(kind, h);
  });
}

TEST_P(Linear, OrderOfPassesDoesNotMatter) {
  run([]<class T>(BackendKind kind, const LinearCase& c) {
    Harness<T> plain(kind, c);
    plain.run_all();

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

// ---- stored images ------------------------------------------------------------------------------

/// Convolutions of images that are filled up to eight channels, or in blocks of 2x2 pixels where
/// those of the padding fit the window or not, in both directions.
std::vector<LinearCase> stored_cases() {
  std::vector<LinearCase> cases;
  const auto add = [&](const ConvCase& c, const Shape& stored) {
    cases.push_back({c.name, c.shape(), std::nullopt});
    cases.back().conv.stored = stored;
  };
  // name, batch, in, filters, kernel, stride, pads
  const ConvCase seven{"K7", 2, {16, 12, 3}, 8, {7, 7}, {2, 2}, {3, 3, 3, 3}};
  add(seven, {16, 12, 8});
  cases.back().name = "Eight";
  const std::vector<ConvCase> in_blocks = {
      seven,
      {"K7Same", 2, {16, 12, 3}, 8, {7, 7}, {2, 2}, {2, 2, 3, 3}},
      {"K7Valid", 2, {16, 12, 3}, 8, {7, 7}, {2, 2}, {}},
      {"K3", 3, {8, 10, 3}, 24, {3, 3}, {2, 2}, {1, 1, 1, 1}},
      {"K3Same", 3, {8, 10, 3}, 24, {3, 3}, {2, 2}, {0, 0, 1, 1}},
      {"K3Mixed", 1, {8, 10, 4}, 5, {3, 3}, {2, 2}, {1, 0, 0, 1}},
      {"K2", 2, {6, 8, 4}, 16, {2, 2}, {2, 2}, {}},
      {"K5By4", 2, {10, 8, 3}, 8, {5, 4}, {2, 2}, {2, 1, 2, 1}},
      {"K6Far", 1, {8, 8, 3}, 8, {6, 6}, {2, 2}, {5, 4, 4, 5}},
  };
  for (const ConvCase& c : in_blocks) add(c, {c.in.h / 2, c.in.w / 2, kMatrixChannels});
  return cases;
}

class StoredImages : public Linear {};

TEST_P(StoredImages, AreConvolvedAsTheReferenceDoes) {
  run([]<class T>(BackendKind kind, const LinearCase& c) {
    Harness<T> h(kind, c, {false, true});
    h.forward();
    expect_sums<T>(h.y_device.values(), h.products(h.shape.window.in.c),
                   std::bind_front(reference::conv_forward, h.shape), h.x, h.kernel, h.bias);
    expect_weight_gradients(kind, h);
  });
}

INSTANTIATE_TEST_SUITE_P(Table, StoredImages,
                         testing::Combine(testing::ValuesIn(stored_cases()),
                                          testing::ValuesIn(backend_kinds()),
                                          testing::Values(DType::F32, DType::BF16, DType::F16)),
                         name_of_param);

// Which images are stored how: 16-bit types, large ones, and what reads them decide.
TEST(StoredImage, DependsOnTheConvolution) {
  const auto stored = [](const ConvCase& c, DType type = DType::BF16, bool blocks = true) {
    return stored_image(c.shape(), type, 8, blocks);
  };
  ConvCase c{"", 2, {224, 224, 3}, 64, {7, 7}, {2, 2}, {3, 3, 3, 3}};
  const Shape blocks{112, 112, 16};
  const Shape eight{224, 224, 8};
  EXPECT_EQ(stored(c), blocks);
  EXPECT_EQ(stored(c, DType::F16), blocks);
  EXPECT_EQ(stored(c, DType::F32), std::nullopt);
  EXPECT_EQ(stored(c, DType::BF16, false), eight);
  EXPECT_EQ(stored_image(c.shape(), DType::BF16, 1, false), std::nullopt);
  const auto with = [&](auto ConvCase::*field, const auto& value) {
    ConvCase other = c;
    other.*field = value;
    return other;
  };
  EXPECT_EQ(stored(with(&ConvCase::stride, Extent{1, 1})), eight);
  EXPECT_EQ(stored(with(&ConvCase::stride, Extent{2, 1})), eight);
  EXPECT_EQ(stored(with(&ConvCase::kernel, Extent{1, 1})), eight);
  EXPECT_EQ(stored(with(&ConvCase::dilation, Extent{2, 2})), eight);
  EXPECT_EQ(stored(with(&ConvCase::in, Shape{225, 224, 3})), (Shape{225, 224, 8}));
  EXPECT_EQ(stored(with(&ConvCase::in, Shape{224, 224, 5})), eight);
  EXPECT_EQ(stored(with(&ConvCase::in, Shape{224, 224, 1})), std::nullopt);
  EXPECT_EQ(stored(with(&ConvCase::in, Shape{32, 32, 3})), std::nullopt);
  EXPECT_EQ(stored(with(&ConvCase::bias, true)), std::nullopt);
}

// ---- depthwise ----------------------------------------------------------------------------------

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

class DepthwiseTest : public OfEveryType<ConvCase> {};

// Our kernels against plain loops, bit for bit: forward and backward input have the same order of
// summation, and the weight gradient of integers is the same in any order.
TEST_P(DepthwiseTest, HasTheBitsOfPlainLoops) {
  run([]<class T>(const ConvCase& c) {
    const ConvShape s = c.shape();
    const DType type = device::dtype_of<T>();
    for (const Numbers numbers : {Numbers::Any, Numbers::Whole}) {
      Harness<T> plain(make_plain(s, type), s, {}, numbers);
      Harness<T> fast(make_by_pass(kOnlyWeight, make_depthwise_gradient(s, type),
                                   make_depthwise_pixels(s, type)),
                      s, {}, numbers);
      plain.run_all();
      fast.run_all();
      fast.expect_inputs_unchanged();
      EXPECT_EQ(fast.y_device.values(), plain.y_device.values());
      EXPECT_EQ(fast.dx_device.values(), plain.dx_device.values());
      if (numbers == Numbers::Any) continue;
      EXPECT_EQ(fast.dkernel_device.values(), plain.dkernel_device.values());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Table, DepthwiseTest, DepthwiseTest::all(depthwise_cases()),
                         DepthwiseTest::name_of);

// ---- Winograd -----------------------------------------------------------------------------------

/// Root of the mean square of an op's errors in y, dx and dkernel.
std::array<double, 3> errors_of(Harness<float>& h) {
  h.forward();
  h.backward_input();
  h.backward_weight();
  const auto error = [](const Values& actual, const Values& expected) {
    double sum = 0.0;
    for (std::size_t i = 0; i < actual.size(); ++i) sum += std::pow(actual[i] - expected[i], 2);
    return std::sqrt(sum / static_cast<double>(actual.size()));
  };
  return {
      error(h.y_device.values(), reference::conv_forward(h.shape, h.x, h.kernel, h.bias)),
      error(h.dx_device.values(), reference::conv_backward_input(h.shape, h.dy, h.kernel)),
      error(h.dkernel_device.values(), reference::conv_backward_weight(h.shape, h.dy, h.x)),
  };
}

// 1.4 to 1.9 for 64 channels, up to 2.4 for 16. The shapes have several chunks of tiles.
TEST(Winograd, HasAboutTwiceTheErrorOfSums) {
  if constexpr (device::kOnCores) {
    const auto expect = [](std::int64_t channels, double most) {
      const ConvShape s =
          ConvCase{"", 5, {28, 26, channels}, 48, {3, 3}, {1, 1}, {1, 1, 1, 1}}.shape();
      Harness<float> by_sums(make_plain(s, DType::F32), s);
      Harness<float> by_winograd(make_winograd(s, DType::F32, {}), s);
      const auto sums = errors_of(by_sums);
      const auto winograd = errors_of(by_winograd);
      for (std::size_t pass = 0; pass < sums.size(); ++pass)
        EXPECT_LT(winograd[pass], most * sums[pass]) << channels << " channels, pass " << pass;
    };
    expect(64, 2.2);
    expect(16, 3.0);
  } else {
    GTEST_SKIP() << "it runs on cores only";
  }
}

// ---- memory -------------------------------------------------------------------------------------

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

#endif

}  // namespace
}  // namespace millrace::ops
