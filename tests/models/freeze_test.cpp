// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::models {
namespace {

Graph resnet8() {
  ModelOptions options;
  options.size = "8";
  options.image = {8, 8, 3};
  return build_model(options);
}

std::set<std::string> learning(const Graph& graph) {
  std::set<std::string> names;
  for (const Parameter& parameter : graph.parameters)
    if (parameter.learns()) names.insert(parameter.name);
  return names;
}

TEST(TrainOnly, FreezesNamesWithoutAnyFilter) {
  Graph graph = resnet8();
  train_only(graph, std::vector<std::string>{"fc1", "b1/0/norm1"});
  EXPECT_EQ(learning(graph), (std::set<std::string>{"b1/0/norm1/beta", "b1/0/norm1/gamma",
                                                    "fc1/bias", "fc1/kernel"}));
  for (const Parameter& parameter : graph.parameters)
    EXPECT_TRUE(parameter.trainable() || !parameter.frozen) << "state is never frozen";
}

TEST(TrainOnly, WithoutFiltersAllLearn) {
  Graph graph = resnet8();
  train_only(graph, std::vector<std::string>{"fc1"});
  train_only(graph, {});
  EXPECT_EQ(graph, resnet8());
}

TEST(TrainOnly, RefusesAFilterThatMatchesNoName) {
  Graph graph = resnet8();
  expect_error(
      ErrorKind::Config,
      "`variable-filter`: no trainable parameter of resnet-8 has 'fc2' in its name; the nearest "
      "are fc1/kernel, fc1/bias, b0/conv/kernel, b1/0/conv1/kernel, b1/0/conv2/kernel",
      [&] {
        train_only(graph, std::vector<std::string>{"fc1", "fc2"});
      });
  EXPECT_EQ(graph, resnet8());
  // Running statistics do not count as names.
  EXPECT_THROW(train_only(graph, std::vector<std::string>{"moving_mean"}), Error);
}

TEST(WantedGradients, BeginAtTheFirstParameterThatLearns) {
  Graph graph = resnet8();
  const auto wanted_by = [&](std::string_view op) -> bool {
    return wanted_gradients(graph)[graph.op(graph.find(op)).output.at()];
  };
  const std::vector<bool> all = wanted_gradients(graph);
  EXPECT_FALSE(all[Graph::input().at()]);
  EXPECT_EQ(std::count(all.begin(), all.end(), true), std::ssize(all) - 1);
  // A branch that learns beside a shortcut that does not.
  train_only(graph, std::vector<std::string>{"b2/0/conv2"});
  EXPECT_FALSE(wanted_by("b1/0/relu"));
  EXPECT_FALSE(wanted_by("b2/0/norm1"));
  EXPECT_TRUE(wanted_by("b2/0/conv2"));
  EXPECT_TRUE(wanted_by("b2/0/add"));
  EXPECT_TRUE(wanted_by("fc1"));
}

}  // namespace
}  // namespace millrace::models
