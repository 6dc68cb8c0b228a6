// SPDX-License-Identifier: Apache-2.0
#include "train/network_facts.hpp"

#include "core/error.hpp"
#include "models/registry.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::training {
namespace {

constexpr const char* kOld = R"({"classes":10,"image":[32,32,3]})";

// Numbers that no short decimal is: every bit must come back.
NetworkFacts whole_facts() {
  return {.classes = 3,
          .image = {.h = 224, .w = 192, .c = 3},
          .class_names = {"cat", "dog, small", "\u00e9t\u00e9"},
          .preparation = run::Preparation{.preset = "tpu",
                                          .shorter_side = 256,
                                          .mean = {255.0 / 7.0, 0.1, 0.0},
                                          .deviation = {1.0 / 3.0, 57.12, 1e-30}}};
}

TEST(NetworkFactsTest, ComeBackAsTheyWereWritten) {
  for (const NetworkFacts& facts :
       {whole_facts(), NetworkFacts{.classes = 10, .image = {.h = 32, .w = 32, .c = 3}},
        NetworkFacts{.classes = 1,
        .image = {.h = 1, .w = 2, .c = 3},
        .preparation = run::Preparation{.by_image = true}}})
    EXPECT_EQ(parse_facts(to_json(facts), "file"), facts) << to_json(facts);
}

TEST(NetworkFactsTest, GivenNetworksComeBack) {
  NetworkFacts facts = whole_facts();
  facts.given.graph = std::make_shared<const models::Graph>(models::build_model({}));
  EXPECT_EQ(parse_facts(to_json(facts), "file"), facts);
}

TEST(NetworkFactsTest, FactsOfOlderCheckpointsAreRead) {
  const NetworkFacts old{.classes = 10, .image = {.h = 32, .w = 32, .c = 3}};
  EXPECT_EQ(parse_facts(kOld, "file"), old);
  EXPECT_EQ(to_json(old), kOld);  // what is unknown is left out
  EXPECT_EQ(parse_facts("", "file"), std::nullopt);
}

TEST(NetworkFactsTest, BadFactsAreRefused) {
  const std::string begin = R"({"classes":10,"image":[32,32,3],)";
  for (const char* const bad :
       {R"("class_names":[1]})", R"("class_names":"cat"})", R"("preparation":{}})",
        R"("preparation":{"mean":[1,2],"deviation":[1,1,1]}})",
        R"("preparation":{"mean":[1,2,3],"deviation":[1,0,1]}})", R"("preparation":{"preset":1}})",
        R"("preparation":{"preset":"tf","mean":[1,2,3],"deviation":[1,1,1]}})",
        R"("graph":{"name":"net","image":[32,32,3],"classes":10,"layers":[]}})"})
    expect_error(ErrorKind::Checkpoint, {"file: the facts about the network cannot be read"},
                 [&] { (void)parse_facts(begin + bad, "file"); });
}

}  // namespace
}  // namespace millrace::training
