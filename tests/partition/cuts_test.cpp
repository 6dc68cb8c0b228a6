// SPDX-License-Identifier: Apache-2.0
#include "partition/cuts.hpp"

#include "partition/balance.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "tests/partition/nets.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::partition {
namespace {

using Names = std::vector<std::string>;

const Names kResNet50 = {"b1/0/relu", "b1/1/relu", "b1/2/relu", "b2/0/relu",
                         "b2/1/relu", "b2/2/relu", "b2/3/relu", "b3/0/relu",
                         "b3/1/relu", "b3/2/relu", "b3/3/relu", "b3/4/relu",
                         "b3/5/relu", "b4/0/relu", "b4/1/relu", "b4/2/relu"};

/// Two branches that meet again, then a third reader of the first value.
models::Graph forked() {
  models::GraphBuilder b("forked", {8, 8, 3}, 10);
  b.begin_layer("stem");
  const ValueId x = b.conv("conv", b.input(), {.out_channels = 4});
  b.begin_layer("left");
  const ValueId left = b.conv("", x, {.out_channels = 4});
  b.begin_layer("right");
  const ValueId right = b.conv("", x, {.out_channels = 4});
  b.begin_layer("join");
  const ValueId sum = b.add("add", left, right);
  const ValueId all = b.concat("concat", {x, sum});
  b.begin_layer("head");
  b.softmax_loss("loss", b.dense("dense", all, {.units = 10}));
  return std::move(b).build();
}

TEST(CutsTest, SplitsOfAResidualNetAreItsRelus) {
  EXPECT_EQ(possible_splits(imagenet_resnet("50")), kResNet50);
  EXPECT_EQ(possible_splits(cifar_resnet("8")), (Names{"b1/0/relu", "b2/0/relu", "b3/0/relu"}));
}

TEST(CutsTest, SplitsOfOtherNetsAreAllLayersButTheFirst) {
  EXPECT_EQ(possible_splits(forked()), (Names{"left", "right", "join", "head"}));
}

TEST(CutsTest, StagesBeginWithTheSplitNamed) {
  const Graph graph = imagenet_resnet("50");
  const std::vector<OpRange> stages = stages_of(graph, Names{"b1/2/relu", "b2/3", "b3/5/conv2"});
  ASSERT_EQ(stages.size(), 4u);
  const auto first = [&](std::size_t s) { return graph.op(OpId{stages[s].first}).name; };
  EXPECT_EQ(stages[0].first, 0);
  EXPECT_EQ(first(1), "b1/2/relu");
  EXPECT_EQ(first(2), "b2/3/conv1");
  EXPECT_EQ(first(3), "b3/5/conv2");
  for (std::size_t s = 1; s < 4; ++s) EXPECT_EQ(stages[s].first, stages[s - 1].last);
  EXPECT_EQ(stages[3].last, std::ssize(graph.ops));
  EXPECT_EQ(splits_of(graph, stages), (Names{"b1/2/relu", "b2/3", "b3/5/conv2"}));
}

TEST(CutsTest, WithoutSplitsThereIsOneStage) {
  const Graph graph = cifar_resnet("8");
  EXPECT_EQ(stages_of(graph, {}), std::vector<OpRange>{pipeline::whole(graph)});
}

TEST(CutsTest, AnOpIsNamedByTheLayerThatBeginsThere) {
  const Graph graph = cifar_resnet("8");
  EXPECT_EQ(cut_name(graph, graph.find("b1/0/conv1")), "b1/0");
  EXPECT_EQ(cut_name(graph, graph.find("b1/0/norm1")), "b1/0/norm1");
  EXPECT_EQ(cut_name(graph, graph.find("b1/0/relu")), "b1/0/relu");
  EXPECT_EQ(filtered_cuts(graph, {}).size(), graph.layers.size() - 1);
  EXPECT_EQ(op_cuts(graph).size(), graph.ops.size() - 1);
}

TEST(CutsTest, RefusesInvalidSplits) {
  const Graph graph = imagenet_resnet("50");
  const auto refuses = [&](const Names& splits, const std::string& message) {
    expect_error(ErrorKind::Config, "`pipeline-splits`: " + message,
                 [&] { (void)stages_of(graph, splits); });
  };
  refuses({"b1/2/rely"}, "resnet-50 has no layer or op 'b1/2/rely'; did you mean b1/2/relu?");
  refuses({"classifier_weights"},
          "resnet-50 has no layer or op 'classifier_weights'; its layers go from b0 to loss");
  refuses({"b0"},
          "b0 is the beginning of resnet-50, so the first stage would be empty; a split is the "
          "first layer of the next stage");
  refuses({"b2/0/relu", "b1/0/relu", "b1/1/relu"},
          "b1/0/relu comes before b2/0/relu in resnet-50; use the order b1/0/relu b1/1/relu "
          "b2/0/relu");
  refuses({"b2/0/relu", "b3/0", "b2/0/relu"}, "b2/0/relu is given twice");
  refuses({"b3/1", "b3/1/conv1"}, "b3/1 and b3/1/conv1 both mean op b3/1/conv1; remove one");
}

TEST(CutsTest, AWrongNumberOfSplitsGivesTheMessageOfTheIpuTrainer) {
  const Graph graph = cifar_resnet("8");
  const std::string list = " of ['b1/0/relu', 'b2/0/relu', 'b3/0/relu']";
  const std::string words = "`pipeline-splits` not specified or wrong number of splits. Need ";
  expect_error(ErrorKind::Config, words + "1" + list, [&] { check_count(graph, {}, 2); });
  expect_error(ErrorKind::Config, words + "2" + list,
               [&] { check_count(graph, Names{"b1/0/relu"}, 3); });
  EXPECT_NO_THROW(check_count(graph, {}, 1));
  EXPECT_NO_THROW(check_count(graph, Names{"b1/0/relu", "fc1"}, 3));
}

TEST(CutsTest, BetweenBlocksOneValueCrosses) {
  const Graph graph = imagenet_resnet("50");
  const std::vector<OpRange> stages = stages_of(graph, Names{"b1/2/relu", "b3/5/relu"});
  EXPECT_EQ(pipeline::links(graph, stages), pipeline::chain(3));
  const auto bytes = [&](Link link, Direction direction) {
    return message_bytes(graph, stages, link, 4, DType::BF16, direction);
  };
  EXPECT_EQ(bytes({0, 1}, Direction::Activations), 4 * 56 * 56 * 256 * 2);
  EXPECT_EQ(bytes({1, 2}, Direction::Activations), 4 * 14 * 14 * 1024 * 2);
  EXPECT_EQ(bytes({1, 2}, Direction::Gradients), 4 * 14 * 14 * 1024 * 2);
  EXPECT_EQ(bytes({0, 2}, Direction::Activations), 0);
}

// b0's output is read by b1/0/conv1 on stage 1 and by b1/0/add on stage 3, but not on stage 2.
TEST(CutsTest, InsideABlockTheShortcutSkipsStagesAndItsGradientGoesFromReaderToReader) {
  const Graph graph = cifar_resnet("8");
  const std::vector<OpRange> stages =
      stages_of(graph, Names{"b1/0", "b1/0/conv2", "b1/0/add", "b2/0/relu"});
  const std::vector<Link> expected = {{0, 1, true, true},  {0, 3, true, false}, {1, 2, true, true},
                                      {1, 3, false, true}, {2, 3, true, true},  {3, 4, true, true}};
  EXPECT_EQ(pipeline::links(graph, stages), expected);

  const ValueId shortcut = graph.op(graph.find("b0/relu")).output;
  const auto values = [&](Link link, Direction d) { return values_on(graph, stages, link, d); };
  EXPECT_EQ(values({0, 3}, Direction::Activations), std::vector{shortcut});
  EXPECT_TRUE(values({0, 3}, Direction::Gradients).empty());
  EXPECT_EQ(values({1, 3}, Direction::Gradients), std::vector{shortcut});
  EXPECT_TRUE(values({1, 3}, Direction::Activations).empty());
  EXPECT_EQ(message_bytes(graph, stages, {1, 3}, 2, DType::F32, Direction::Gradients),
            2 * 32 * 32 * 16 * 4);
}

TEST(CutsTest, AValueWithThreeReadersComesBackThroughAllOfThem) {
  const Graph graph = forked();
  const std::vector<OpRange> stages = stages_of(graph, Names{"left", "right", "join", "head"});
  const std::vector<Link> expected = {{0, 1, true, true},  {0, 2, true, false}, {0, 3, true, false},
                                      {1, 2, false, true}, {1, 3, true, true},  {2, 3, true, true},
                                      {3, 4, true, true}};
  EXPECT_EQ(pipeline::links(graph, stages), expected);
  // Two gradients go from 3 to 2: that of `right`, and that of x.
  EXPECT_EQ(values_on(graph, stages, {2, 3}, Direction::Gradients).size(), 2u);
  EXPECT_EQ(message_bytes(graph, stages, {2, 3}, 1, DType::F32, Direction::Activations),
            8 * 8 * 4 * 4);
  EXPECT_EQ(message_bytes(graph, stages, {2, 3}, 1, DType::F32, Direction::Gradients),
            2 * 8 * 8 * 4 * 4);
}

TEST(CutsTest, LinksOfEveryCutGiveValidSchedules) {
  const Graph graph = cifar_resnet("8");
  pipeline::ScheduleRequest request;
  request.devices = 3;
  request.micro_batches = 4;
  const pipeline::Schedule schedule = pipeline::generate(request);
  const std::vector<OpId> cuts = op_cuts(graph);
  for (std::size_t a = 0; a < cuts.size(); ++a) {
    for (std::size_t b = a + 1; b < cuts.size(); ++b) {
      const std::vector<OpRange> stages =
          stages_of(graph, Names{graph.op(cuts[a]).name, graph.op(cuts[b]).name});
      const std::vector<Link> links = pipeline::links(graph, stages);
      ASSERT_NO_THROW(pipeline::validate(pipeline::with_communication(schedule, links), links));
    }
  }
}

}  // namespace
}  // namespace millrace::partition
