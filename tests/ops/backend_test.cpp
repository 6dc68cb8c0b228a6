// SPDX-License-Identifier: Apache-2.0
//
// Which kernels a backend takes, and how it cuts batches.
#include "ops/backend.hpp"

#include "core/instruction_level.hpp"
#include "tests/ops/backends.hpp"
#include "tests/ops/shapes.hpp"
#include "tests/support/test.hpp"

#ifdef MILLRACE_ONEDNN
#include "ops/onednn/onednn.hpp"
#include "tests/support/expect_error.hpp"
#endif

namespace millrace::ops {
namespace {

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
  const auto choice = [](const ConvShape& s, DType type, std::optional<MeasuredLevel> level,
                         Passes passes = {},
                         Rewrite::When when = Rewrite::When::Measured) -> std::string {
    const Rewrite* const row =
        find_rewrite({.shape = s, .type = type, .passes = passes}, when, level);
    return row != nullptr ? row->name : "";
  };
  using enum MeasuredLevel;
  // name, batch, in, filters, kernel, stride, pads, groups
  const ConvShape projection = ConvCase{"", 1, {56, 56, 64}, 128, {1, 1}, {2, 2}}.shape();
  EXPECT_EQ(choice(projection, DType::F32, std::nullopt), "");
  EXPECT_EQ(choice(projection, DType::BF16, Sse), "gathered pixels");
  const ConvShape product = ConvCase{"", 1, {1, 1, 64}, 16}.shape();
  EXPECT_EQ(choice(product, DType::F32, Sse), "product");
  const ConvShape depthwise =
      ConvCase{"", 1, {28, 28, 96}, 96, {5, 5}, {1, 1}, {2, 2, 2, 2}, 96}.shape();
  EXPECT_EQ(choice(depthwise, DType::F32, Avx2), "own gradient");
  EXPECT_EQ(choice(depthwise, DType::F32, Avx2, {true, false}), "");
  const ConvShape pointwise = ConvCase{"", 1, {56, 56, 64}, 64}.shape();
  EXPECT_EQ(choice(pointwise, DType::F32, Avx2), "");
  EXPECT_EQ(choice(pointwise, DType::F32, Avx512), "turned");
  EXPECT_EQ(choice(pointwise, DType::BF16, Avx512), "");
  const auto heavy = [](std::int64_t batch) {
    return ConvCase{"", batch, {7, 7, 512}, 2048}.shape();
  };
  EXPECT_EQ(choice(heavy(11), DType::F32, Avx2), "");
  EXPECT_EQ(choice(heavy(11), DType::F32, Avx512), "turned");
  EXPECT_EQ(choice(heavy(10), DType::F32, Avx512), "");
  const auto square = [](std::int64_t batch, std::int64_t channels) {
    return ConvCase{"", batch, {14, 14, channels}, channels, {3, 3}, {1, 1}, {1, 1, 1, 1}}.shape();
  };
  // Own loops need FMA for it, whatever the vendor has.
  const bool multiplies = device::kOnCores && instruction_level() >= InstructionLevel::Avx2;
  const std::string winograd = multiplies ? "winograd" : "";
  EXPECT_EQ(choice(square(6, 64), DType::F32, Avx512), winograd);
  EXPECT_EQ(choice(square(6, 64), DType::F32, Amx), winograd);
  EXPECT_EQ(choice(square(6, 64), DType::F32, Sse), "");
  EXPECT_EQ(choice(square(6, 64), DType::BF16, Amx), "");
  EXPECT_EQ(choice(square(5, 64), DType::F32, Avx512), "");
  EXPECT_EQ(choice(square(6, 16), DType::F32, Avx2), winograd);
  EXPECT_EQ(choice(square(6, 24), DType::F32, Avx2), "");
  const auto unclaimed = [&](std::int64_t channels, DType type) {
    return choice(square(6, channels), type, Avx512, {}, Rewrite::When::Unclaimed);
  };
  EXPECT_EQ(unclaimed(16, DType::BF16), multiplies ? "winograd" : "widened");
  EXPECT_EQ(unclaimed(32, DType::F16), multiplies ? "winograd" : "widened");
  EXPECT_EQ(unclaimed(16, DType::F16), "widened");
  if constexpr (device::kOnCores) {
    LinearRequest limited{.shape = square(6, 64), .type = DType::F32, .passes = {}};
    for (const std::int64_t more : {0, -1}) {
      limited.cap = winograd_scratch(square(6, 64)) + more;
      const Rewrite* const row = find_rewrite(limited, Rewrite::When::Measured, Avx512);
      EXPECT_EQ(row != nullptr, multiplies && more == 0) << "within the limit of scratch";
    }
  }
  const ConvShape narrow =
      ConvCase{"", 1, {56, 56, 128}, 128, {3, 3}, {1, 1}, {1, 1, 1, 1}, 32}.shape();
  EXPECT_EQ(choice(narrow, DType::BF16, Avx512), "");
  EXPECT_EQ(choice(narrow, DType::BF16, Amx), "merged groups");
  EXPECT_EQ(choice(narrow, DType::F32, Avx512, {true, false}), "");
  EXPECT_EQ(choice(narrow, DType::F32, Avx512, kOnlyWeight), "merged groups");
  EXPECT_EQ(choice(narrow, DType::F32, Avx2, kOnlyWeight), "");
  EXPECT_EQ(choice(narrow, DType::F32, Avx2, {false, false}), "merged groups");
  std::int64_t groups = 0;
  const LinearRequest asked{.shape = narrow, .type = DType::BF16, .passes = {}};
  (void)find_rewrite(asked, Rewrite::When::Measured, Amx)
      ->make(asked, [&](const LinearRequest& inner) {
        groups = std::get<ConvShape>(inner.shape).groups;
        return make_plain(std::get<ConvShape>(inner.shape), inner.type);
      });
  EXPECT_EQ(groups, 8);
}

#ifdef MILLRACE_ONEDNN
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
