// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include "core/dtype.hpp"
#include "core/shape.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace {
namespace {

using Strings = std::vector<std::string>;

TEST(Text, NearestMatchFindsTypingErrors) {
  const Strings options = {"--batch-size", "--batch-norm", "--groups", "--epochs"};
  EXPECT_EQ(nearest_match("--batchsize", options), "--batch-size");
  EXPECT_EQ(nearest_match("--batch-nrom", options), "--batch-norm");
  EXPECT_EQ(nearest_match("--epoch", options), "--epochs");
  EXPECT_EQ(nearest_match("--groups", options), "--groups");
  EXPECT_EQ(nearest_match("zzzzzz", options), "");
  EXPECT_EQ(nearest_match("", options), "");
  EXPECT_EQ(nearest_match("x", {}), "");
}

TEST(Text, RecognizesUtf8) {
  for (const char* text :
       {"", "plain", "\xc3\xa9t\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8d\x80", "\x1b"})
    EXPECT_TRUE(is_utf8(text)) << text;
  for (const char* text : {"\xfe", "a\x80", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82"})
    EXPECT_FALSE(is_utf8(text)) << text;
}

TEST(Text, PrintableEscapesControlCharacters) {
  EXPECT_EQ(printable("a b.JPEG"), "a b.JPEG");
  EXPECT_EQ(printable("\xc3\xa9t\xc3\xa9"), "\xc3\xa9t\xc3\xa9");
  EXPECT_EQ(printable("a\x1b[2J\nb\tc\x7f"), "a\\x1b[2J\\nb\\tc\\x7f");
  EXPECT_EQ(printable("t\xfe.JPEG"), "t\\xfe.JPEG");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");  // one character that starts an escape sequence
  EXPECT_EQ(printable(printable("a\nb")), "a\\nb");
}

TEST(Text, HumanBytesHasThreeDigits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(12), "12 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(9994), "9.99 kB");
  EXPECT_EQ(human_bytes(9996), "10.0 kB");
  EXPECT_EQ(human_bytes(99960), "100 kB");
  EXPECT_EQ(human_bytes(210000), "210 kB");
  EXPECT_EQ(human_bytes(999600), "1.00 MB");
  EXPECT_EQ(human_bytes(1430000000), "1.43 GB");
  EXPECT_EQ(human_bytes(2500000000000), "2.50 TB");
  EXPECT_EQ(human_bytes(12500000000000000), "12500 TB");
}

TEST(Text, HumanSecondsRoundsToWholeSeconds) {
  EXPECT_EQ(human_seconds(0), "0:00");
  EXPECT_EQ(human_seconds(41.6), "0:42");
  EXPECT_EQ(human_seconds(59.6), "1:00");
  EXPECT_EQ(human_seconds(7384), "2:03:04");
  EXPECT_EQ(human_seconds(360000), "100:00:00");
}

TEST(Text, WithCommasGroupsDigitsByThree) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  EXPECT_EQ(with_commas(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Text, ContainsAnyLooksForEveryPart) {
  const Strings parts = {"bias", "norm"};
  EXPECT_TRUE(contains_any("b1/norm/scale", parts));
  EXPECT_TRUE(contains_any("bias", parts));
  EXPECT_FALSE(contains_any("b1/conv/weight", parts));
  EXPECT_FALSE(contains_any("bia", parts));
  EXPECT_FALSE(contains_any("bias", {}));
  EXPECT_TRUE(contains_any("", Strings{"x", ""}));
}

TEST(Text, ParseNumberTakesTheWholeTextOrNothing) {
  EXPECT_EQ(parse_number<std::int64_t>("-42"), -42);
  EXPECT_EQ(parse_number<double>("2.5e-1"), 0.25);
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "x", "0x10", "1.5", "9223372036854775808"})
    EXPECT_EQ(parse_number<std::int64_t>(text), std::nullopt) << text;
  for (const char* text : {"", "1.5.", "1,5", "1e", "1e999"})
    EXPECT_EQ(parse_number<double>(text), std::nullopt) << text;
}

TEST(Text, ToLowerChangesCapitalsOnly) {
  EXPECT_EQ(to_lower("ResNet-50 [A] \xc3\x84"), "resnet-50 [a] \xc3\x84");
}

TEST(Text, SplitListTrimsAndDropsEmptyPieces) {
  EXPECT_EQ(split_list("b1/2/relu, b2/3/relu ,b3/5/relu"),
            (Strings{"b1/2/relu", "b2/3/relu", "b3/5/relu"}));
  EXPECT_EQ(split_list("a b  c", ' '), (Strings{"a", "b", "c"}));
  EXPECT_EQ(split_list(",, a ,"), Strings{"a"});
  EXPECT_EQ(split_list(""), Strings{});
  EXPECT_EQ(split_list("   "), Strings{});
}

TEST(ParseBytes, KnowsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("12 b"), 12);
  EXPECT_EQ(parse_bytes("1.5kB"), 1500);
  EXPECT_EQ(parse_bytes("3 MB"), 3'000'000);
  EXPECT_EQ(parse_bytes("8GB"), 8'000'000'000);
  EXPECT_EQ(parse_bytes("2tb"), 2'000'000'000'000);
  EXPECT_EQ(parse_bytes("1KiB"), 1024);
  EXPECT_EQ(parse_bytes("512MiB"), 512 << 20);
  EXPECT_EQ(parse_bytes("8gib"), std::int64_t{8} << 30);
  EXPECT_EQ(parse_bytes("1TiB"), std::int64_t{1} << 40);
  for (const char* none : {"", "GB", "0", "-1", "0.5", "1 GBs", "1e30", "nan", "inf", "8 G"})
    EXPECT_EQ(parse_bytes(none), std::nullopt) << none;
}

// ---- error --------------------------------------------------------------------------------------

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
  expect_error(ErrorKind::Data, "test_batch.bin: label 12 of 10",
               [] { fail(ErrorKind::Data, "{}: label {} of {}", "test_batch.bin", 12, 10); });
}

TEST(Error, ShortensTheMiddleOfLongMessages) {
  std::string quoted;
  for (int i = 0; i < 100'000; ++i) quoted += "\u00e4";
  const std::string text = message_of(ErrorKind::Data, [&] {
    fail(ErrorKind::Data, "a.csv: '{}' is not a number: fix it", quoted);
  });
  EXPECT_LT(text.size(), 4000u);
  EXPECT_TRUE(text.starts_with("a.csv: '\u00e4"));
  EXPECT_TRUE(text.ends_with("is not a number: fix it"));
  EXPECT_TRUE(is_utf8(text));
}

TEST(Error, AssertNamesTheInvariant) {
  EXPECT_NO_THROW(MILLRACE_ASSERT(1 + 1 == 2));
  expect_error(ErrorKind::Internal, {"text_test.cpp", "broken invariant: 1 + 1 == 3"},
               [] { MILLRACE_ASSERT(1 + 1 == 3); });
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
