// SPDX-License-Identifier: Apache-2.0
#include "core/json.hpp"

#include <nlohmann/json.hpp>

#include "tests/support/test.hpp"

namespace millrace {
namespace {

const std::string kTextOfAll =
    R"({"text":"a\n\"ü","none":null,"yes":true,"low":-9223372036854775808,)"
    R"("high":18446744073709551615,"real":0.1,"whole":3.0,"large":1e+300,"empty":[],"nothing":{},)"
    R"("list":[1,[2,{"deep":[]}],"b"]})";

TEST(JsonTest, WritesWhatTheLibraryWrites) {
  const Json json = Json::parse(kTextOfAll);
  const auto expected = nlohmann::ordered_json::parse(kTextOfAll);
  EXPECT_EQ(json.dump(), expected.dump());
  EXPECT_EQ(json.dump(1), expected.dump(1));
  EXPECT_EQ(json.dump(2), expected.dump(2));
}

TEST(JsonTest, IsBuiltFromValues) {
  const Json json = Json::object({{"count", std::size_t{3}},
                                  {"shape", std::vector<std::int64_t>{2, -1}},
                                  {"names", std::vector<std::string>{"a", "b"}},
                                  {"text", "literal"},
                                  {"flag", false},
                                  {"rate", std::nan("")}});
  EXPECT_EQ(json.dump(), R"({"count":3,"shape":[2,-1],"names":["a","b"],"text":"literal",)"
                         R"("flag":false,"rate":null})");
}

TEST(JsonTest, SetReplacesOrAppends) {
  Json json;
  EXPECT_EQ(json.dump(), "null");
  json.set("a", 1);
  json.set("b", 2);
  json.set("a", "one");
  EXPECT_EQ(json.dump(), R"({"a":"one","b":2})");
}

TEST(JsonTest, DistinguishesNumbers) {
  const Json json = Json::parse("[1, -1, 1.5, true]");
  EXPECT_TRUE(json.items()[0].is_unsigned());
  EXPECT_FALSE(json.items()[1].is_unsigned());
  EXPECT_TRUE(json.items()[1].is_integer());
  EXPECT_EQ(json.items()[1].as_int64(), -1);
  EXPECT_EQ(json.items()[1].as_double(), -1.0);
  EXPECT_FALSE(json.items()[2].is_integer());
  EXPECT_EQ(json.items()[2].as_double(), 1.5);
  EXPECT_FALSE(json.items()[3].is_number());
  EXPECT_THROW((void)json.items()[3].as_double(), JsonError);
}

TEST(JsonTest, ReportsErrorsWithTheLibrarysMessage) {
  std::string expected;
  try {
    const auto parsed = nlohmann::json::parse("{\"a\": 1,\n}");
    FAIL() << parsed;
  } catch (const nlohmann::json::exception& error) {
    expected = error.what();
  }
  try {
    (void)Json::parse("{\"a\": 1,\n}");
    FAIL();
  } catch (const JsonError& error) {
    EXPECT_EQ(error.what(), expected);
    EXPECT_EQ(error.byte(), 10u);
  }
  EXPECT_FALSE(Json::try_parse("[1e999]"));
  EXPECT_FALSE(Json::try_parse(""));
}

TEST(JsonTest, LastOfDuplicateKeysCounts) {
  const std::string text = R"({"a": 1, "b": 2, "a": 3})";
  EXPECT_EQ(Json::parse(text).dump(), R"({"a":3,"b":2})");
  try {
    (void)Json::parse(text, Json::Duplicates::Refused);
    FAIL();
  } catch (const JsonDuplicate& duplicate) {
    EXPECT_STREQ(duplicate.what(), "\"a\"");
  }
}

TEST(JsonTest, RefusesWhatIsNestedTooDeep) {
  const std::string open(100, '[');
  const std::string close(100, ']');
  EXPECT_TRUE(Json::try_parse(open + close));
  EXPECT_FALSE(Json::try_parse('[' + open + close + ']'));
  EXPECT_FALSE(Json::try_parse(std::string(1'000'000, '[')));
}

TEST(JsonLimitTest, RefusesMoreValuesThanAnyFileHolds) {
  const auto list_of = [](std::size_t items) {
    std::string text = "[";
    for (std::size_t i = 1; i < items; ++i) text += "1,";
    return text + "1]";
  };
  EXPECT_TRUE(Json::try_parse(list_of(Json::kMaxItems)));
  EXPECT_FALSE(Json::try_parse(list_of(Json::kMaxItems + 1)));
  const std::string most = list_of(Json::kMaxItems);
  EXPECT_TRUE(Json::try_parse("[" + most + "," + most + "]"));
  EXPECT_FALSE(Json::try_parse("[" + most + "," + most + "," + most + "," + most + "]"));
}

TEST(JsonLimitTest, MessagesAreShort) {
  for (const std::string& text : {"\"" + std::string(100'000, 'x'), std::string(100'000, '1') + "x",
                                  "{\"" + std::string(100'000, 'x') + "\"]"}) {
    try {
      (void)Json::parse(text);
      FAIL() << text.substr(0, 10);
    } catch (const JsonError& error) {
      EXPECT_LT(std::string(error.what()).size(), 300u);
    }
  }
}

TEST(JsonLimitTest, NumbersDoNotWrap) {
  const Json json = Json::parse("[1e300, -1e300, 9223372036854775808.0, 1.5e3]");
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_THROW((void)json.items()[i].as_int64(), JsonError) << i;
  EXPECT_THROW((void)json.items()[1].as_uint64(), JsonError);
  EXPECT_EQ(json.items()[3].as_int64(), 1500);
}

TEST(JsonTest, RefusesOrReplacesWhatIsNotUtf8) {
  const Json json("a\xff");
  EXPECT_THROW((void)json.dump(), JsonError);
  EXPECT_EQ(json.dump(-1, Json::NotUtf8::Replaced), "\"a\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace millrace
