// SPDX-License-Identifier: Apache-2.0
//
// The op around cublasLt's weight gradients, with a stand-in for the library, on cores.
#include "ops/cublas/weight_op.hpp"

#include "tests/support/test.hpp"

#include "device/arena.hpp"
#include "device/compat.hpp"
#include "ops/linear.hpp"
#include "ops/sums.hpp"
#include "products.hpp"

namespace millrace::ops::cublas {
namespace {

using namespace testing;

constexpr std::int64_t kNoCap = std::numeric_limits<std::int64_t>::max();

ConvShape pointwise() {
  ConvShape s;
  s.window = {.batch = 2, .in = {4, 4, 24}, .out = {4, 4, 8}};
  return s;
}

TEST(CublasOpTest, ProductsOf16BitsAreItsOwn) {
  const ConvShape plain = pointwise();
  EXPECT_TRUE(WeightGradients::has(plain, DType::BF16));
  EXPECT_TRUE(WeightGradients::has(plain, DType::F16));
  EXPECT_TRUE(WeightGradients::has(as_convolution(DenseShape{8, 64, 10}), DType::BF16));
  EXPECT_FALSE(WeightGradients::has(plain, DType::F32));
  const auto other = [&](const auto& change) {
    ConvShape s = plain;
    change(s);
    return WeightGradients::has(s, DType::BF16);
  };
  EXPECT_FALSE(other([](ConvShape& s) { s.window.kernel_w = 3; }));
  EXPECT_FALSE(other([](ConvShape& s) { s.window.kernel_h = 3; }));
  EXPECT_FALSE(other([](ConvShape& s) { s.window.stride_h = 2; }));
  EXPECT_FALSE(other([](ConvShape& s) { s.window.stride_w = 2; }));
  EXPECT_FALSE(other([](ConvShape& s) { s.window.pad_top = 1; }));
  EXPECT_FALSE(other([](ConvShape& s) { s.window.pad_left = 1; }));
  EXPECT_FALSE(other([](ConvShape& s) { s.pad_bottom = 1; }));
  EXPECT_FALSE(other([](ConvShape& s) { s.pad_right = 1; }));
  EXPECT_FALSE(other([](ConvShape& s) { s.groups = 4; }));
  EXPECT_TRUE(other([](ConvShape& s) { s.bias = true; }));
}

TEST(CublasOpTest, ScratchIsPlannedWithoutADevice) {
  const WeightGradients gradients;
  const int before = calls().live_objects;
  const auto scratch = [&](std::int64_t cap, bool bias) {
    ConvShape s = pointwise();
    s.bias = bias;
    return gradients.make(s, DType::BF16, cap, make_plain(s, DType::BF16))->bytes().scratch;
  };
  constexpr std::int64_t kMost = (32 << 20) + 192;  // to begin at a multiple of 256 in the arena
  EXPECT_EQ(scratch(kNoCap, false), kMost);
  EXPECT_EQ(scratch(1'000'000, false), 1'000'000);
  EXPECT_EQ(scratch(447, false), 0) << "less than the library can use";
  EXPECT_EQ(scratch(0, false), 0);
  EXPECT_EQ(scratch(0, true), channel_sums_bytes(8));
  EXPECT_EQ(scratch(kNoCap, true), std::max(kMost, channel_sums_bytes(8)));
  // The other op may need more, and may read what the library does not.
  const ConvShape s = pointwise();
  const LinearBytes other = make_tiled(s, DType::BF16)->bytes();
  const LinearBytes both = gradients.make(s, DType::BF16, 0, make_tiled(s, DType::BF16))->bytes();
  EXPECT_EQ(both.scratch, other.scratch);
  EXPECT_EQ(both.reads_kernel, other.reads_kernel);
  EXPECT_EQ(calls().live_objects, before);
}

/// Runs three micro-batches with exactly the planned scratch, which begins where an arena may place
/// it and ends in marks.
void expect_gradients(const ConvShape& shape, DType type, std::int64_t cap) {
  const ProductShape s{shape.window.batch * shape.window.out.pixels(), shape.window.in.c,
                       shape.window.out.c, type};
  const WeightGradients gradients;
  const std::unique_ptr<LinearOp> op = gradients.make(shape, type, cap, make_tiled(shape, type));
  const std::int64_t scratch = op->bytes().scratch;
  constexpr std::int64_t kMarks = 64;
  const Bytes memory(scratch + kMarks, device::kAlignment);
  std::fill_n(memory.get() + scratch, kMarks, std::byte{0x5a});
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Bytes dw_memory(4 * s.in * s.out);
  float* const dw = reinterpret_cast<float*>(dw_memory.get());
  std::fill_n(dw, s.in * s.out, kNan);
  std::vector<float> db(static_cast<std::size_t>(s.out), kNan);
  op->bind({.dkernel = dw, .dbias = shape.bias ? db.data() : nullptr, .scratch = memory.get()});

  std::vector<double> sums(static_cast<std::size_t>(s.in * s.out));
  std::vector<double> magnitudes = sums;
  std::vector<double> biases(db.size());
  const device::ExecutionSpace space;
  for (std::int64_t step = 0; step < 3; ++step) {
    const Batch batch = batch_of(s, step);
    op->backward_weight(space, batch.dy.stored.get(), batch.x.stored.get(), step == 0);
    space.fence();
    add_gradient(s, batch, sums, magnitudes);
    for (std::size_t i = 0; i < batch.dy.values.size(); ++i)
      biases[i % biases.size()] += batch.dy.values[i];
  }
  for (std::size_t i = 0; i < sums.size(); ++i)
    EXPECT_NEAR(static_cast<double>(dw[i]), sums[i], 0x1p-22 * magnitudes[i]) << i;
  for (std::size_t i = 0; shape.bias && i < db.size(); ++i)
    EXPECT_NEAR(static_cast<double>(db[i]), biases[i], 1e-4) << i;
  EXPECT_TRUE(std::all_of(memory.get() + scratch, memory.get() + scratch + kMarks,
                          [](std::byte b) { return b == std::byte{0x5a}; }));
}

TEST(CublasOpTest, GradientsOfKernelAndBiasAreSummedOverMicroBatches) {
  propose({Kernel{8, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 1 << 20}, Kernel{}});
  for (const DType type : {DType::BF16, DType::F16}) {
    ConvShape shape = pointwise();
    expect_gradients(shape, type, kNoCap);
    EXPECT_EQ(calls().last.parts, 8) << "the scratch is used";
    expect_gradients(shape, type, 0);
    EXPECT_EQ(calls().last.parts, 1);
    shape.bias = true;
    expect_gradients(shape, type, kNoCap);
    expect_gradients(shape, type, 0);
    expect_gradients(as_convolution(DenseShape{9, 64, 10}), type, 5000);
  }
}

TEST(CublasOpTest, AnotherOpComputesWhatTheLibraryHasNoKernelFor) {
  propose({Kernel{}});
  ConvShape shape = pointwise();
  expect_gradients(shape, DType::BF16, kNoCap);
  const Kernel ran = calls().last;
  propose({Kernel{2, CUBLASLT_REDUCTION_SCHEME_INPLACE, 0}});
  const int searches = calls().searches;
  for (const bool bias : {false, true}) {
    shape.bias = bias;
    expect_gradients(shape, DType::BF16, kNoCap);
    expect_gradients(shape, DType::F16, 0);
  }
  EXPECT_EQ(calls().last, ran) << "the library computes nothing";
  EXPECT_GT(calls().searches, searches) << "the library is asked";
}

}  // namespace
}  // namespace millrace::ops::cublas
