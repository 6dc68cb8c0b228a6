// SPDX-License-Identifier: Apache-2.0
#include "train/warm_start.hpp"

#include "core/error.hpp"
#include "models/registry.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::training {
namespace {

models::Graph resnet8(std::int64_t classes) {
  models::ModelOptions options;
  options.size = "8";
  options.image = {8, 8, 3};
  options.classes = classes;
  return models::build_model(options);
}

/// The tensors of a checkpoint of the network.
std::vector<io::TensorInfo> tensors_of(const models::Graph& graph) {
  std::vector<io::TensorInfo> tensors;
  for (const models::Parameter& p : graph.parameters) {
    const auto role = p.trainable() ? io::TensorRole::Parameter : io::TensorRole::State;
    tensors.push_back({p.name, role, DType::F32, p.shape});
    if (p.trainable())
      tensors.push_back({p.name + "/momentum", io::TensorRole::Slot, DType::F32, p.shape});
  }
  return tensors;
}

std::string refusal(const models::Graph& graph, const std::vector<io::TensorInfo>& tensors,
                    const std::vector<std::string>& fresh, ErrorKind kind = ErrorKind::Checkpoint) {
  return message_of(kind, [&] { (void)tensors_to_take(graph, tensors, fresh, "RUN"); });
}

TEST(WarmStart, TakesWeightsAndStatisticsButNoSlots) {
  const models::Graph graph = resnet8(10);
  const std::set<std::string> taken = tensors_to_take(graph, tensors_of(graph), {}, "RUN");
  EXPECT_EQ(taken.size(), graph.parameters.size());
  EXPECT_TRUE(taken.contains("b0/norm/moving_variance"));
  EXPECT_FALSE(taken.contains("fc1/kernel/momentum"));
}

TEST(WarmStart, OtherClassesNeedAFreshLastLayer) {
  const models::Graph graph = resnet8(100);
  const std::vector<io::TensorInfo> tensors = tensors_of(resnet8(10));
  EXPECT_EQ(refusal(graph, tensors, {}),
            "`init-path` RUN: does not fit resnet-8: fc1/kernel has shape 10x64 in the checkpoint "
            "but needs 100x64, fc1/bias has shape 10 in the checkpoint but needs 100; `init-fresh` "
            "fc1 begins with a new last layer");
  const std::vector<std::string> fresh = {"fc1"};
  const std::set<std::string> taken = tensors_to_take(graph, tensors, fresh, "RUN");
  EXPECT_EQ(taken.size(), graph.parameters.size() - 2);
  EXPECT_FALSE(taken.contains("fc1/kernel"));
}

TEST(WarmStart, WhatIsOnOneSideOnlyIsNamedToo) {
  const models::Graph graph = resnet8(10);
  std::vector<io::TensorInfo> tensors = tensors_of(graph);
  tensors[0].name = "b9/conv/kernel";
  EXPECT_EQ(refusal(graph, tensors, {}),
            "`init-path` RUN: does not fit resnet-8: b0/conv/kernel is missing in the checkpoint, "
            "b9/conv/kernel is only in the checkpoint; name the parameters to initialize with "
            "`init-fresh`");
  EXPECT_EQ(refusal(graph, tensors, {"conv/kernel"}), "");
}

TEST(WarmStart, WhatAsksForAnotherNetworkIsToBeLeftOut) {
  models::ModelOptions options;
  options.size = "8";
  options.image = {8, 8, 3};
  options.norm = models::NormKind::Group;
  options.groups = 8;
  const std::string error = message_of(ErrorKind::Checkpoint, [&] {
    (void)tensors_to_take(models::build_model(options), tensors_of(resnet8(10)), {}, "RUN",
                          "`group-norm`");
  });
  EXPECT_TRUE(
      error.ends_with("; leave out what asks for another network (`group-norm`), or name the "
                      "parameters to initialize with `init-fresh`"))
      << error;
}

TEST(WarmStart, ATextMustBeInAName) {
  const models::Graph graph = resnet8(10);
  const std::string error = refusal(graph, tensors_of(graph), {"logits"}, ErrorKind::Config);
  test::expect_in(error, {"`init-fresh`: no parameter name of resnet-8 contains 'logits'"});
}

}  // namespace
}  // namespace millrace::training
