// SPDX-License-Identifier: Apache-2.0
#include "tools/predict/predictions.hpp"

#include "tests/support/test.hpp"

namespace millrace::cli {
namespace {

TEST(PredictionsTest, TheLikeliestComeFirstAndOfEqualOnesTheLowerClass) {
  const float logits[] = {1.0f, 3.0f, 3.0f, -2.0f};
  const std::vector<training::Prediction> all = training::top(logits, 9);
  ASSERT_EQ(all.size(), 4u);
  const std::int64_t order[] = {1, 2, 0, 3};
  double total = 0.0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].label, order[i]);
    total += all[i].probability;
  }
  EXPECT_NEAR(total, 1.0, 1e-15);
  EXPECT_NEAR(all[2].probability / all[0].probability, std::exp(-2.0), 1e-15);
  EXPECT_EQ(all[3].logit, -2.0);
  EXPECT_EQ(training::top(logits, 2).size(), 2u);
  const float large[] = {1000.0f, 0.0f};  // their exponentials overflow
  EXPECT_EQ(training::top(large, 1).front().probability, 1.0);
}

TEST(PredictionsTest, TableAndJsonLine) {
  const std::vector<std::string> names = {"cat", "dog\n"};
  const PredictedImage image{.name = "a b.png",
                             .label = {},
                             .predictions = {{.label = 1, .logit = 2.5, .probability = 0.75},
                                             {.label = 2, .logit = -1.0, .probability = 0.25}}};
  const PredictionText table(names, 9, false);
  EXPECT_EQ(table.head(), "image      probability  class\n");
  EXPECT_EQ(table.lines(image),
            "a b.png        75.00 %      1  dog\\n\n"
            "               25.00 %      2\n");
  // A name that is longer has a line of its own.
  EXPECT_EQ(PredictionText(names, 5, false).lines(image),
            "a b.png\n"
            "           75.00 %      1  dog\\n\n"
            "           25.00 %      2\n");
  const PredictionText json(names, 9, true);
  EXPECT_EQ(json.head(), "");
  EXPECT_EQ(json.lines(image),
            "{\"image\":\"a b.png\",\"top\":[{\"class\":1,\"name\":\"dog\\n\",\"probability\":0.75,"
            "\"logit\":2.5},{\"class\":2,\"probability\":0.25,\"logit\":-1.0}]}\n");
  PredictedImage known = image;
  known.label = 2;
  EXPECT_NE(json.lines(known).find("\"label\":2,"), std::string::npos);
}

}  // namespace
}  // namespace millrace::cli
