// SPDX-License-Identifier: Apache-2.0
//
// Weight gradients by cublasLt, with a stand-in for the library: that the calls mean the gradient,
// and that they keep to the library's rules. Nothing here says how the library itself computes.
#include "../support/expect_error.hpp"
#include "products.hpp"

namespace millrace::ops::cublas {
namespace {

using namespace testing;

const Kernel kPlain{};
const Kernel kInPlace{4, CUBLASLT_REDUCTION_SCHEME_INPLACE, 0};
const Kernel kDivided{4, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 4096};

/// A gradient that begins as NaN.
struct Gradient {
  explicit Gradient(const ProductShape& s, std::int64_t offset = 0)
      : elements(s.in * s.out), memory(4 * elements, offset) {
    for (std::int64_t i = 0; i < elements; ++i) data()[i] = std::numeric_limits<float>::quiet_NaN();
  }
  [[nodiscard]] float* data() const { return reinterpret_cast<float*>(memory.get()); }
  std::int64_t elements;
  Bytes memory;
};

class CublasTest : public ::testing::Test {
 protected:
  CublasTest() { propose({kPlain}); }

  void run(WeightProduct& product, const Gradient& dw, const Batch& batch, bool first,
           std::byte* scratch = nullptr) const {
    ASSERT_TRUE(product.has_kernel(library_.handle()));
    product.run(library_.handle(), nullptr, dw.data(), batch.dy.stored.get(), batch.x.stored.get(),
                first, scratch);
  }

  Library library_;
};

std::string words(const ProductShape& s) {
  return fmt::format("{} rows, {} to {}, {}", s.rows, s.in, s.out, name_of(s.type));
}

TEST_F(CublasTest, GradientsAreThoseOfLoopsInDouble) {
  // 1x1 convolutions of ResNet-50 with fewer pixels, dense ops, and numbers that nothing divides.
  struct Sizes {
    std::int64_t rows, in, out;
  };
  for (const Sizes& size : {Sizes{2 * 49, 256, 64}, Sizes{2 * 196, 32, 128}, Sizes{8, 512, 10},
                            Sizes{1, 5, 3}, Sizes{77, 1, 9}, Sizes{64, 24, 1}, Sizes{131, 7, 13}}) {
    for (const DType type : {DType::BF16, DType::F16}) {
      const ProductShape shape{size.rows, size.in, size.out, type};
      WeightProduct product(shape, 0);
      const Gradient dw(shape);
      std::vector<double> sums(static_cast<std::size_t>(dw.elements));
      std::vector<double> magnitudes = sums;
      for (std::int64_t step = 0; step < 3; ++step) {
        const Batch batch = batch_of(shape, step);
        run(product, dw, batch, step == 0);
        add_gradient(shape, batch, sums, magnitudes);
        for (std::size_t i = 0; i < sums.size(); ++i)
          // Each micro-batch and each addition is rounded to float32 once.
          ASSERT_NEAR(static_cast<double>(dw.data()[i]), sums[i], 0x1p-22 * magnitudes[i] + 1e-37)
              << words(shape) << ", element " << i << ", micro-batch " << step;
      }
    }
  }
}

TEST_F(CublasTest, NothingIsRoundedToTheTypeOfTheOperands) {
  for (const DType type : {DType::BF16, DType::F16}) {
    const std::int64_t rows = type == DType::BF16 ? 257 : 2049;  // one bit too long for the type
    const auto total = static_cast<float>(rows);
    const float rounded =
        type == DType::BF16 ? rounded_as<bfloat16>(total) : rounded_as<float16>(total);
    ASSERT_EQ(rounded, total - 1.0f);
    const ProductShape shape{rows, 3, 2, type};
    const auto one = [](std::int64_t) { return 1.0f; };
    const Batch ones{halves(rows * 3, type, one), halves(rows * 2, type, one)};
    WeightProduct product(shape, 0);
    const Gradient dw(shape);
    for (int step = 0; step < 5; ++step) {
      run(product, dw, ones, step == 0);
      for (std::int64_t i = 0; i < dw.elements; ++i)
        ASSERT_EQ(dw.data()[i], total * static_cast<float>(step + 1)) << words(shape);
    }
  }
}

TEST_F(CublasTest, TheKernelIsChosenOnceWhateverTheAddresses) {
  const ProductShape shape{64, 8, 8, DType::BF16};
  WeightProduct product(shape, 0);
  const int before = calls().searches;
  for (const std::int64_t offset : {16, 0, 48, 128}) {  // of bytes, from a multiple of 256
    const Gradient dw(shape, offset);
    run(product, dw, batch_of(shape, 1, offset), true);
    EXPECT_FALSE(std::isnan(dw.data()[0]));
  }
  EXPECT_EQ(calls().searches, before + 1);
}

TEST_F(CublasTest, RunsOnTheStreamThatIsGiven) {
  const ProductShape shape{4, 4, 4, DType::F16};
  WeightProduct product(shape, 0);
  const Gradient dw(shape);
  const Batch batch = batch_of(shape, 1);
  ASSERT_TRUE(product.has_kernel(library_.handle()));
  const auto stream = reinterpret_cast<cudaStream_t>(&product);  // an address like any other
  product.run(library_.handle(), stream, dw.data(), batch.dy.stored.get(), batch.x.stored.get(),
              true, nullptr);
  EXPECT_EQ(calls().stream, stream);
}

/// The kernel that is chosen for this many rows and bytes of scratch.
class CublasChoiceTest : public CublasTest {
 protected:
  [[nodiscard]] Kernel chosen(std::int64_t rows, std::int64_t scratch_bytes) const {
    const ProductShape shape{rows, 3, 5, DType::BF16};
    WeightProduct product(shape, scratch_bytes);
    const Gradient dw(shape);
    const Bytes scratch(scratch_bytes);
    const auto one = [](std::int64_t) { return 1.0f; };
    const Batch ones{halves(rows * 3, shape.type, one), halves(rows * 5, shape.type, one)};
    run(product, dw, ones, true, scratch.get());
    for (std::int64_t i = 0; i < dw.elements; ++i)
      EXPECT_EQ(dw.data()[i], static_cast<float>(rows)) << "a sum of ones counts the rows";
    return calls().last;
  }
};

TEST_F(CublasChoiceTest, SumsAreNotJoinedInPlace) {
  propose({kInPlace, kDivided, kPlain});
  EXPECT_EQ(chosen(256, 4096), kDivided);
  propose({kInPlace, kPlain});
  EXPECT_EQ(chosen(256, 4096), kPlain);
}

TEST_F(CublasChoiceTest, KernelsKeepToTheScratch) {
  propose({kDivided, kPlain});
  EXPECT_EQ(chosen(256, 4096), kDivided);
  EXPECT_EQ(chosen(256, 4095), kPlain);
  EXPECT_EQ(chosen(256, 0), kPlain);
}

// With this rule off, sums of the first three end 2, 1 and 3 rows early.
TEST_F(CublasChoiceTest, SumsThatMayLoseRowsAreNotDivided) {
  propose({kDivided, kPlain});
  EXPECT_EQ(chosen(4 * 64 + 2, 4096), kPlain);
  EXPECT_EQ(chosen(8 * 64 + 1, 4096), kPlain);
  EXPECT_EQ(chosen(4 * 64 + 3, 4096), kPlain);
  EXPECT_EQ(chosen(4 * 64 + 4, 4096), kDivided);  // as many as parts
  EXPECT_EQ(chosen(1568, 4096), kDivided);        // 32 images of 7x7 pixels
  // Where only such kernels are proposed, those that divide nothing are asked for.
  propose({kDivided, kDivided, kDivided, kDivided, kDivided, kDivided, kDivided, kDivided, kPlain});
  EXPECT_EQ(chosen(4 * 64 + 2, 4096), kPlain);
}

// Where the sum is divided, what is left behind the last whole block must not be shorter than there
// are parts. Blocks are powers of two, from 8 to 512.
TEST_F(CublasChoiceTest, BlocksOfAllLengthsAreThoughtOf) {
  for (const std::int32_t block : {8, 16, 32, 64, 128, 256, 512}) {
    const Kernel many{block / 2 + 1, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 4096};
    propose({many, kPlain});
    EXPECT_EQ(chosen(block + block / 2, 4096), kPlain) << "half a block of " << block << " is left";
    EXPECT_EQ(chosen(2 * block, 4096), many) << "nothing is left behind two blocks of " << block;
  }
}

TEST_F(CublasChoiceTest, ProposalsThatTheLibraryCannotRunAreLeftOut) {
  Kernel unable = kDivided;
  unable.state = CUBLAS_STATUS_NOT_SUPPORTED;
  propose({unable, kPlain});
  EXPECT_EQ(chosen(256, 4096), kPlain);
}

TEST_F(CublasTest, SaysWhetherThereIsAKernel) {
  const ProductShape shape{130, 64, 256, DType::F16};
  propose({kDivided});
  WeightProduct without(shape, 512);
  EXPECT_FALSE(without.has_kernel(library_.handle()));
  const int before = calls().searches;
  propose({kPlain});
  EXPECT_FALSE(without.has_kernel(library_.handle())) << "the answer does not change in a run";
  EXPECT_EQ(calls().searches, before);
  WeightProduct with(shape, 512);
  EXPECT_TRUE(with.has_kernel(library_.handle()));
}

TEST_F(CublasTest, LibraryHasANameWithoutADevice) {
  EXPECT_TRUE(library_name().starts_with("cublasLt 1")) << library_name();
}

TEST(CublasObjectsTest, NothingIsLeft) {
  propose({kPlain});
  ASSERT_EQ(calls().live_objects, 0);
  {
    const Library library;
    EXPECT_EQ(calls().live_objects, 0) << "a library that nobody uses opens no device";
    const ProductShape shape{4, 4, 4, DType::BF16};
    WeightProduct product(shape, 0);
    const Gradient dw(shape);
    const Batch batch = batch_of(shape, 1);
    ASSERT_TRUE(product.has_kernel(library.handle()));
    product.run(library.handle(), nullptr, dw.data(), batch.dy.stored.get(), batch.x.stored.get(),
                true, nullptr);
    EXPECT_EQ(calls().live_objects, 5) << "handle, operation and three matrices";
  }
  EXPECT_EQ(calls().live_objects, 0);
}

}  // namespace
}  // namespace millrace::ops::cublas
