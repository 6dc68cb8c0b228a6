// SPDX-License-Identifier: Apache-2.0
#include "io/data/class_names.hpp"

#include "shards.hpp"

namespace millrace::io {
namespace {

using Names = std::vector<std::string>;
using Numbers = std::vector<std::int32_t>;

NumberedClasses number(const Names& texts, const KnownClasses& known = {}) {
  return number_classes(
      {.texts = texts, .place_of = [](std::size_t i) { return fmt::format("line {}", i + 1); }},
      known);
}

TEST(ClassNumbersTest, NamesAreSorted) {
  const NumberedClasses result = number({"dog", "cat", "emu"});
  EXPECT_EQ(result.numbers, (Numbers{1, 0, 2}));
  EXPECT_EQ(result.known.names, (Names{"cat", "dog", "emu"}));
  EXPECT_EQ(result.known.count, 3);
  EXPECT_TRUE(result.known.complete);
}

TEST(ClassNumbersTest, NumbersAreNumbers) {
  const NumberedClasses result = number({"7", "0", "3"});
  EXPECT_EQ(result.numbers, (Numbers{7, 0, 3}));
  EXPECT_EQ(result.known.count, 8);
  EXPECT_TRUE(result.known.names.empty());
  EXPECT_EQ(number({"7", "0"}, {.names = {}, .count = 10}).known.count, 10);
  expect_error(ErrorKind::Data, {"line 2: class 10 is not one of 0 to 9 (`classes`)"}, [&] {
    (void)number({"7", "10"}, {.names = {}, .count = 10});
  });
  expect_error(ErrorKind::Data, {"line 1: class 8 is not one of 0 to 7, the classes of the set"},
               [&] { (void)number({"8"}, result.known); });
  expect_error(ErrorKind::Data, {"class 1000000 is not one of 0 to 999999"},
               [&] { (void)number({"1000000"}); });
  expect_error(ErrorKind::Data,
               {"line 2: class 'cat' is a name, but the training images have numbers from 0 to 7"},
               [&] {
                 (void)number({"7", "cat"}, result.known);
               });
}

TEST(ClassNumbersTest, KnownNamesComeFirst) {
  const KnownClasses known{.names = {"b", "a", "2"}, .count = 3, .complete = true};
  EXPECT_EQ(number({"a", "2"}, known).numbers, (Numbers{1, 2}));
  EXPECT_EQ(number({"1", "0"}, known).numbers, (Numbers{1, 0})) << "numbers of known names";
  expect_error(ErrorKind::Data,
               {"line 2: class 'bb' is not one of the 3 classes of the training images",
                "did you mean 'b'?"},
               [&] {
                 (void)number({"a", "bb"}, known);
               });
  expect_error(ErrorKind::Data, {"class 3 is not one of 0 to 2"},
               [&] { (void)number({"3"}, known); });
  // Folders "0", "1", "10": names, although they look like numbers.
  const KnownClasses folders{.names = {"0", "1", "10"}, .count = 3, .complete = true};
  EXPECT_EQ(number({"10", "1"}, folders).numbers, (Numbers{2, 1}));
}

TEST(ClassWordsTest, StandBehindATab) {
  EXPECT_EQ(parse_class_words("n01\tgoldfish, Carassius\r\nn02 \nn03\t\n\n", "names"),
            (ClassWords{{"n01", "goldfish, Carassius"}, {"n02", ""}, {"n03", ""}}));
  expect_error(ErrorKind::Data, {"names: line 2 has no name"},
               [] { (void)parse_class_words("a\n\nb\n", "names"); });
  expect_error(ErrorKind::Data, {"names: lines 1 and 3 have the same name 'a'"},
               [] { (void)parse_class_words("a\nb\na", "names"); });
  expect_error(ErrorKind::Data, {"names: holds no class names"},
               [] { (void)parse_class_words("\n\n", "names"); });
  expect_error(ErrorKind::Data, {"line 1 has a name of 1025 bytes"},
               [] { (void)parse_class_words(std::string(1025, 'x'), "names"); });
}

}  // namespace
}  // namespace millrace::io
