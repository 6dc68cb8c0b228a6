// SPDX-License-Identifier: Apache-2.0
#include "core/kernel_table.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>
#include <string>

#include "../support/expect_error.hpp"

namespace millrace {
namespace {

KernelTable example() {
  KernelTable table{
      .device = "NVIDIA H200, 132 multiprocessors", .library = "cuDNN 9.19.0", .rows = {}};
  table.rows[{.shape = "a", .type = DType::BF16, .pass = LinearPass::Forward}] = {
      .best = {.choice = {.engine = 45, .knobs = {{2, 14}, {12, -1}}},
               .scratch = 4096,
               .deterministic = true,
               .microseconds = 81.25},
      .usual = {.choice = {.engine = 28, .knobs = {}},
                .scratch = 0,
                .deterministic = true,
                .microseconds = 103.5}};
  table.rows[{.shape = "a", .type = DType::F32, .pass = LinearPass::BackwardWeight}] = {
      .best = {.choice = {.engine = 1, .knobs = {}},
               .scratch = 0,
               .deterministic = false,
               .microseconds = 7.0},
      .usual = {.choice = {.engine = 0, .knobs = {}},
                .scratch = 0,
                .deterministic = true,
                .microseconds = 9.0}};
  return table;
}

TEST(KernelTableTest, IsReadAsItWasWritten) {
  const KernelTable table = example();
  EXPECT_EQ(parse_kernel_table(to_text(table), "t.json"), table);
  const KernelTable none{.device = "d", .library = "l", .rows = {}};
  EXPECT_EQ(parse_kernel_table(to_text(none), "t.json"), none);
}

TEST(KernelTableTest, FindsAPassOfAShapeAndType) {
  const KernelTable table = example();
  const MeasuredKernel* const found = table.find({"a", DType::BF16, LinearPass::Forward});
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->choice.engine, 45);
  EXPECT_EQ(table.find({"a", DType::F16, LinearPass::Forward}), nullptr);
  EXPECT_EQ(table.find({"a", DType::BF16, LinearPass::BackwardInput}), nullptr);
  EXPECT_EQ(table.find({"b", DType::BF16, LinearPass::Forward}), nullptr);
}

TEST(KernelTableTest, HasTheIdentityOfItsKernelsNotOfTheirTimes) {
  const KernelTable table = example();
  EXPECT_EQ(identity(table).size(), 12u);
  KernelTable other = example();
  auto& row = other.rows.at({"a", DType::BF16, LinearPass::Forward});
  row.best.microseconds *= 2.0;
  row.usual.choice.engine = 3;
  EXPECT_EQ(identity(other), identity(table));
  row.best.choice.knobs.front().value = 15;
  EXPECT_NE(identity(other), identity(table));
  other = example();
  other.library = "cuDNN 9.20.0";
  EXPECT_NE(identity(other), identity(table));
  other = example();
  other.rows.erase(std::prev(other.rows.end()));
  EXPECT_NE(identity(other), identity(table));
}

TEST(KernelTableTest, HoldsForOneDeviceAndVersion) {
  const KernelTable table = example();
  EXPECT_EQ(why_unfit(table, table.device, table.library), "");
  EXPECT_EQ(why_unfit(table, table.device, "cuDNN 9.20.0"),
            "it was measured on NVIDIA H200, 132 multiprocessors with cuDNN 9.19.0, and this is "
            "NVIDIA H200, 132 multiprocessors with cuDNN 9.20.0");
  EXPECT_NE(why_unfit(table, "NVIDIA H100, 132 multiprocessors", table.library), "");
}

/// The text of the example with `old` replaced.
std::string changed(const std::string& old, const std::string& text) {
  std::string all = to_text(example());
  const std::size_t at = all.find(old);
  EXPECT_NE(at, all.npos) << old;
  return all.replace(at, old.size(), text);
}

TEST(KernelTableTest, DamagedFilesAreRefusedByName) {
  const auto refused = [](const std::string& text, const std::string& why) {
    expect_error(ErrorKind::Config, {"t.json: ", why, "millrace bench --tune FILE wrote"},
                 [&] { (void)parse_kernel_table(text, "t.json"); });
  };
  const std::string whole = to_text(example());
  for (const std::size_t length : {std::size_t{0}, std::size_t{10}, whole.size() / 2})
    refused(whole.substr(0, length), "");
  refused("{}", "this is not a kernel table");
  refused("[1]", "this is not a kernel table");
  refused(changed("\"version\": 1", "\"version\": 2"),
          "it has version 2 of the format, and this program reads version 1");
  refused(changed("\"bfloat16\"", "\"int4\""), "'int4' is unknown");
  refused(changed("\"forward\"", "\"sideways\""), "'sideways' is unknown");
  refused(changed("\"engine\":45", "\"engine\":-1"), "-1 is not a number of the library");
  refused(changed("\"engine\":45", "\"engine\":4500000000"), "is not a number of the library");
  refused(changed("[2,14]", "[2]"), "a knob is a pair of type and value");
  refused(changed("4096", "-4096"), "scratch-bytes is negative");
  refused(changed("81.25", "0.0"), "microseconds is not above 0");
  refused(changed("\"varying\"", "\"free\""), "order-of-sums is 'free', not fixed or varying");
  refused(changed("\"float32\",\"pass\":\"backward-weight\"", "\"bfloat16\",\"pass\":\"forward\""),
          "bfloat16 forward of a stands there twice");
}

}  // namespace
}  // namespace millrace
