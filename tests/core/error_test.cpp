// SPDX-License-Identifier: Apache-2.0
#include "core/error.hpp"

#include "core/dtype.hpp"
#include "core/shape.hpp"
#include "core/text.hpp"
#include "tests/support/test.hpp"

namespace millrace {
namespace {

TEST(Error, EachKindHasItsExitCode) {
  EXPECT_EQ(exit_code(ErrorKind::Internal), 70);
  EXPECT_EQ(exit_code(ErrorKind::Usage), 2);
  EXPECT_EQ(exit_code(ErrorKind::Config), 2);
  EXPECT_EQ(exit_code(ErrorKind::Data), 3);
  EXPECT_EQ(exit_code(ErrorKind::Numeric), 4);
  EXPECT_EQ(exit_code(ErrorKind::Io), 5);
  EXPECT_EQ(exit_code(ErrorKind::Checkpoint), 6);
  EXPECT_EQ(exit_code(ErrorKind::Peer), 7);
  EXPECT_EQ(exit_code(ErrorKind::Preempted), 75);
  EXPECT_EQ(exit_code(ErrorKind::Watchdog), 124);
  EXPECT_EQ(exit_code(ErrorKind::Interrupted), 130);
}

TEST(Error, FailCarriesKindAndFormattedMessage) {
  try {
    fail(ErrorKind::Data, "{}: label {} of {}", "test_batch.bin", 12, 10);
    FAIL() << "fail returned";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Data);
    EXPECT_STREQ(error.what(), "test_batch.bin: label 12 of 10");
  }
}

TEST(Error, ShortensTheMiddleOfLongMessages) {
  std::string quoted;
  for (int i = 0; i < 100'000; ++i) quoted += "\u00e4";
  try {
    fail(ErrorKind::Data, "a.csv: '{}' is not a number: fix it", quoted);
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_LT(text.size(), 4000u);
    EXPECT_TRUE(text.starts_with("a.csv: '\u00e4"));
    EXPECT_TRUE(text.ends_with("is not a number: fix it"));
    EXPECT_TRUE(is_utf8(text));
  }
}

TEST(Error, AssertNamesTheInvariant) {
  EXPECT_NO_THROW(MILLRACE_ASSERT(1 + 1 == 2));
  try {
    MILLRACE_ASSERT(1 + 1 == 3);
    FAIL() << "the assertion held";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Internal);
    const std::string text = error.what();
    test::expect_in(text, {"error_test.cpp", "broken invariant: 1 + 1 == 3"});
  }
}

TEST(DType, HasSizeAndName) {
  EXPECT_EQ(size_of(DType::F32), 4);
  EXPECT_EQ(size_of(DType::BF16), 2);
  EXPECT_EQ(size_of(DType::F16), 2);
  EXPECT_EQ(size_of(DType::U8), 1);
  EXPECT_EQ(size_of(DType::I32), 4);
  EXPECT_EQ(name_of(DType::F32), "float32");
  EXPECT_EQ(name_of(DType::BF16), "bfloat16");
  EXPECT_EQ(name_of(DType::F16), "float16");
  EXPECT_EQ(name_of(DType::U8), "uint8");
  EXPECT_EQ(name_of(DType::I32), "int32");
}

TEST(Shape, CountsAndPrints) {
  const Shape shape = {56, 28, 64};
  EXPECT_EQ(shape.elements(), 100352);
  EXPECT_EQ(shape.pixels(), 1568);
  EXPECT_EQ(fmt::format("{}", shape), "56x28x64");
}

}  // namespace
}  // namespace millrace
