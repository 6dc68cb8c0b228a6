// SPDX-License-Identifier: Apache-2.0
//
// Rooflines and shares from given times; nothing is measured.
#include "tools/bench/kernel_table.hpp"

#include "core/text.hpp"
#include "tests/support/test.hpp"

namespace millrace::report {
namespace {

const std::vector<Peak> kPeaks = {{"vectors", DType::F32, 100e9},
                                  {"tiles", DType::BF16, 400e9},
                                  {"reading", {}, 10e9},
                                  {"copying", {}, 8e9}};

/// A product of 2 GFLOP and 10 MB in 40 ms, and a norm of 100 MB in 12.5 ms.
KernelTime product() {
  return {"LinearForward", "3x3/1 8x8x4 -> 8x8x4", "forward", 1.0, 40e-3, 2e9, 10e6};
}
KernelTime norm() { return {"NormApply relu", "8x8x4", "forward", 1.0, 12.5e-3, 0.0, 100e6}; }

/// 100 ms, of which two products and a norm have 95 ms, and would have 92.5 ms in the best case.
KernelTable step(DType type) {
  const std::vector<KernelTime> times = {product(), norm(), product()};
  return kernel_table(kPeaks, type, times, {.seconds = 0.1, .known = 0.095});
}

TEST(KernelTableTest, AlikeKernelsAreOneRowAndTheRowsAddUpToTheStep) {
  const KernelTable table = step(DType::F32);
  ASSERT_EQ(table.times.size(), 4u);
  EXPECT_EQ(table.times[0].kernel, "LinearForward") << "the heaviest first";
  EXPECT_DOUBLE_EQ(table.times[0].count, 2.0);
  EXPECT_DOUBLE_EQ(table.times[0].seconds, 80e-3);
  EXPECT_DOUBLE_EQ(table.times[0].flops, 4e9);
  EXPECT_DOUBLE_EQ(table.times[1].count, 1.0);
  EXPECT_EQ(table.times[2].kernel, "spread");
  EXPECT_NEAR(table.times[2].seconds, 2.5e-3, 1e-12);
  EXPECT_EQ(table.times[3].kernel, "framework");
  EXPECT_NEAR(table.times[3].seconds, 5e-3, 1e-12);
  EXPECT_DOUBLE_EQ(table.seconds, 0.1);
  KernelTime again = product();
  again.pass = "again";
  EXPECT_EQ(added_up(std::vector{product(), again, product()}).size(), 2u);
}

TEST(KernelTableTest, TheRooflineIsTheLongerOfProductsAndMemory) {
  const auto least = [](DType type, std::size_t row) {
    return step(type).times.at(row).least_seconds;
  };
  EXPECT_DOUBLE_EQ(least(DType::F32, 0), 40e-3) << "4 GFLOP by vectors";
  EXPECT_DOUBLE_EQ(least(DType::BF16, 0), 10e-3) << "by tiles";
  EXPECT_DOUBLE_EQ(least(DType::F16, 0), 40e-3) << "by vectors, in float32";
  EXPECT_DOUBLE_EQ(least(DType::F32, 1), 10e-3) << "100 MB at the higher of the two rates";
  EXPECT_EQ(least(DType::F32, 2), 0.0);
  // Where the processor's products of 16 bits are slower than those of float32, these count.
  std::vector<Peak> slow = kPeaks;
  slow[1].per_second = 50e9;
  const std::vector<KernelTime> times = {product()};
  EXPECT_DOUBLE_EQ(kernel_table(slow, DType::BF16, times, {}).times[0].least_seconds, 20e-3);
}

TEST(KernelTableTest, TextHasThePeaksThenTheHeaviest) {
  EXPECT_EQ(to_text(step(DType::F32), 20), 1 + R"(
kernel          shape                 pass     count      ms  GFLOP/s  GB/s  roofline %  step %
peak            float32 vectors                                 100.0
peak            bfloat16 tiles                                  400.0
peak            memory reading                                         10.0
peak            memory copying                                          8.0
LinearForward   3x3/1 8x8x4 -> 8x8x4  forward      2  80.000     50.0   0.2        50.0    80.0
NormApply relu  8x8x4                 forward      1  12.500            8.0        80.0    12.5
spread                                                 2.500                                2.5
framework                                              5.000                                5.0
)");
}

TEST(KernelTableTest, LightRowsAreAddedUpInText) {
  std::vector<KernelTime> times(5, norm());
  for (std::size_t i = 0; i < times.size(); ++i) times[i].shape = std::to_string(i);
  const KernelTable table = kernel_table(kPeaks, DType::F32, times, {0.1, 0.08});
  EXPECT_EQ(table.times.size(), 7u);
  const auto lines = [&](std::size_t most) {
    return std::ssize(split_list(to_text(table, most), '\n')) - 1 - std::ssize(kPeaks);
  };
  EXPECT_EQ(lines(2), 5) << "two, the others, spread and framework";
  EXPECT_EQ(lines(4), 7) << "a single row stays as it is";
  test::expect_in(to_text(table, 2),
                  {"others", "  3  37.500            8.0        80.0    37.5\n"});
  EXPECT_EQ(std::ssize(split_list(to_csv(table), '\n')) - 1 - std::ssize(kPeaks), 7);
}

TEST(KernelTableTest, CsvAndJsonHaveTheSameNumbers) {
  const KernelTable table = step(DType::BF16);
  const std::vector<std::string> lines = split_list(to_csv(table), '\n');
  ASSERT_EQ(lines.size(), 9u);
  EXPECT_EQ(lines[0], "kernel,shape,pass,count,ms,GFLOP/s,GB/s,roofline %,step %");
  EXPECT_EQ(lines[2], "peak,bfloat16 tiles,,,,400,,,");
  EXPECT_EQ(lines[5],
            "LinearForward,3x3/1 8x8x4 -> 8x8x4,forward,2,80.000000,50,0.25,12.5,80.0000");
  EXPECT_EQ(lines[8], "framework,,,,5.000000,,,,5.0000");
  const Json json = to_json(table);
  EXPECT_EQ(json.at("peaks").items()[1].at("type").text(), "bfloat16");
  EXPECT_DOUBLE_EQ(json.at("peaks").items()[3].at("per_second").as_double(), 8e9);
  EXPECT_DOUBLE_EQ(json.at("kernels").items()[0].at("least_seconds").as_double(), 10e-3);
  double sum = 0.0;
  for (const Json& item : json.at("kernels").items()) sum += kernel_time_of(item).seconds;
  EXPECT_DOUBLE_EQ(sum, json.at("step_seconds").as_double());
  const KernelTime again = kernel_time_of(json.at("kernels").items()[0]);
  EXPECT_EQ(again.shape, "3x3/1 8x8x4 -> 8x8x4");
  EXPECT_DOUBLE_EQ(again.bytes, 20e6);
}

}  // namespace
}  // namespace millrace::report
