// SPDX-License-Identifier: Apache-2.0
#include "partition/cost.hpp"

#include "partition/cuts.hpp"
#include "tests/partition/nets.hpp"
#include "tests/support/test.hpp"

namespace millrace::partition {
namespace {

/// Devices that take one second per flop, per byte, or per call, and no time for the rest.
const DeviceModel kProducts = {"products", 1.0, 1e300, 0.0};
const DeviceModel kBytes = {"bytes", 1e300, 1.0, 0.0};
const DeviceModel kCalls = {"calls", 1e300, 1e300, 1.0};

/// Costs of one net under one model, by name of the op.
struct Costs {
  Graph graph;
  std::vector<OpCost> all;
  Costs(Graph g, std::int64_t batch, DType type, const DeviceModel& device)
      : graph(std::move(g)), all(analytic_costs(graph, batch, type, device)) {}
  const OpCost& operator[](const std::string& op) const { return all.at(graph.find(op).at()); }
  [[nodiscard]] OpRange whole() const { return pipeline::whole(graph); }
};

TEST(CostTest, ConvolutionsAndProductsCostTheirProducts) {
  const Costs costs(imagenet_resnet("50"), 3, DType::F32, kProducts);
  const pipeline::StageCost all = stage_cost(costs.all, costs.whole(), Recompute::None);
  const double forward = 2.0 * 3.0 * static_cast<double>(costs.graph.forward_macs());
  EXPECT_NEAR(all.forward, forward, 1e-9 * forward);
  EXPECT_NEAR(all.backward_weight, forward, 1e-9 * forward);
  // 7x7 kernels over 3 channels, 112x112 pixels of 64 channels. Images have no gradient.
  const double stem = 2.0 * 3.0 * 7 * 7 * 3 * 112 * 112 * 64;
  EXPECT_DOUBLE_EQ(costs["b0/conv"].forward, stem);
  EXPECT_EQ(costs["b0/conv"].backward_input, 0.0);
  EXPECT_DOUBLE_EQ(costs["b0/conv"].backward_weight, stem);
  EXPECT_NEAR(all.backward_input, forward - stem, 1e-9 * forward);
  EXPECT_DOUBLE_EQ(costs["fc1"].forward, 2.0 * 3.0 * 2048 * 1000);
}

models::Graph family(const char* model, const char* size) {
  models::ModelOptions options = models::default_options(model, models::Task::ImageNet);
  options.size = size;
  options.squeezenet.bypass = models::Bypass::Simple;
  return models::build_model(options);
}

TEST(CostTest, EveryFamilyCostsItsProducts) {
  for (const Graph& graph :
       {family("resnext", "50"), family("squeezenet", "1.0"), family("efficientnet", "B0")}) {
    const Costs costs(graph, 3, DType::BF16, kProducts);
    double forward = 0.0;
    for (std::size_t op = 0; op < graph.ops.size(); ++op)
      if (!std::holds_alternative<models::Dropout>(graph.ops[op].kind))
        forward += costs.all[op].forward;
    EXPECT_NEAR(forward, 2.0 * 3.0 * static_cast<double>(graph.forward_macs()), 1e-9 * forward);
  }
}

// Images that are stored in blocks for the first convolution, and are no op's value.
TEST(CostTest, PreparedImagesAreStashedByTheirReader) {
  Graph graph = imagenet_resnet("50");
  const Costs plain(graph, 2, DType::BF16, kBytes);
  graph.stored_image = Shape{112, 112, 16};
  const Costs stored(graph, 2, DType::BF16, kBytes);
  EXPECT_EQ(stored["b0/conv"].stash_bytes - plain["b0/conv"].stash_bytes,
            2 * 2 * (112 * 112 * 16 - 224 * 224 * 3));
  EXPECT_EQ(stored["b0/relu"].stash_bytes, plain["b0/relu"].stash_bytes);
}

TEST(CostTest, ChannelsCostTheBytesTheyMove) {
  const Costs squeezenet(family("squeezenet", "1.0"), 2, DType::F32, kBytes);
  const double half = 2 * 55 * 55 * 64 * 4;  // one operand of the first concatenation
  EXPECT_DOUBLE_EQ(squeezenet["fire2/concat"].forward, 2 * (2 * half)) << "read and written";
  // Backward also reads the output for its sign. Before that, the gradients of two readers (the
  // next fire module and its bypass) are added.
  EXPECT_DOUBLE_EQ(squeezenet["fire2/concat"].backward_input, 2 * (3 * half) + 3 * (2 * half));
  const Costs efficientnet(family("efficientnet", "B0"), 2, DType::F32, kBytes);
  const double x = 2 * 112 * 112 * 32 * 4;
  const double s = 2 * 32 * 4;
  EXPECT_DOUBLE_EQ(efficientnet["block1a/SE/scale"].forward, 2 * x + s);
  EXPECT_DOUBLE_EQ(efficientnet["block1a/SE/scale"].backward_input, 3 * x + 2 * s);
}

TEST(CostTest, TheRestCostsTheBytesItMoves) {
  const Costs costs(cifar_resnet("8"), 2, DType::F32, kBytes);
  const double n = 2 * 32 * 32 * 16 * 4;  // one value
  // Statistics read x; applying them reads x and writes y. 16 means and deviations each.
  EXPECT_DOUBLE_EQ(costs["b1/0/norm1"].forward, 3 * n + 2 * 128);
  // Sums read dy, x, statistics; dx is made from dy, x, statistics and three coefficients per
  // channel.
  EXPECT_DOUBLE_EQ(costs["b1/0/norm1"].backward_input, 5 * n + 2 * (128 + 192) + 128);
  EXPECT_DOUBLE_EQ(costs["b1/0/norm1"].backward_weight, 128);
  // Adding the shortcut after a norm reads one more value.
  EXPECT_DOUBLE_EQ(costs["b1/0/norm2"].forward, 4 * n + 2 * 128);
  EXPECT_EQ(costs["b1/0/relu1"].forward, 0.0) << "runs within the norm's kernel";
  EXPECT_EQ(costs["b1/0/add"].forward, 0.0) << "runs within the norm's kernel";
  // A convolution also reads its kernel.
  EXPECT_DOUBLE_EQ(costs["b1/0/conv1"].forward, 2 * n + 3 * 3 * 16 * 16 * 4);
}

TEST(CostTest, EveryCallCostsItsStart) {
  const Costs costs(cifar_resnet("8"), 1, DType::BF16, kCalls);
  EXPECT_DOUBLE_EQ(costs["b1/0/conv1"].forward, 1.0);
  EXPECT_DOUBLE_EQ(costs["b1/0/norm1"].forward, 2.0);
  EXPECT_DOUBLE_EQ(costs["b1/0/norm1"].seconds(), 5.0);
}

TEST(CostTest, HalfTheBytesAndFasterProductsIn16Bits) {
  const Graph graph = imagenet_resnet("18");
  const auto seconds = [&](DType type) {
    const std::vector<OpCost> costs = analytic_costs(graph, 4, type, cpu_model(type));
    return stage_cost(costs, pipeline::whole(graph), Recompute::None).forward;
  };
  EXPECT_GT(seconds(DType::F32), 1.9 * seconds(DType::BF16));
}

TEST(CostTest, StashIsWhatTheMemoryPlanKeeps) {
  const Costs costs(cifar_resnet("20"), 8, DType::BF16, kBytes);
  pipeline::ProgramOptions options;
  options.batch = 8;
  options.type = DType::BF16;
  options.backward = pipeline::Backward::Split;
  const std::vector<OpRange> thirds =
      stages_of(costs.graph, std::vector<std::string>{"b2/0/relu", "b3/0/relu"});
  for (const OpRange range : {costs.whole(), thirds[0], thirds[1], thirds[2]}) {
    for (const Recompute recompute : {Recompute::None, Recompute::Stage}) {
      options.recompute = recompute;
      pipeline::Slots slots;
      slots.stash = 2;
      slots.weight = 2;
      const pipeline::MemoryPlan plan = plan_memory(compile(costs.graph, range, options), slots);
      const auto planned = static_cast<double>(plan.stash_slot_bytes);
      const double summed = stage_cost(costs.all, range, recompute).stash_bytes;
      EXPECT_NEAR(summed, planned, 0.02 * planned);
      if (recompute != Recompute::None) continue;
      double kept = 0.0;
      for (std::int32_t op = range.first; op < range.last; ++op)
        kept += static_cast<double>(costs.all[static_cast<std::size_t>(op)].kept_bytes);
      const auto weight = static_cast<double>(plan.weight_slot_bytes);
      EXPECT_NEAR(kept, weight, 0.02 * weight);
    }
  }
}

TEST(CostTest, RecomputingRunsTheForwardAgainAndKeepsTheInputs) {
  const Costs costs(cifar_resnet("20"), 8, DType::BF16, kBytes);
  const OpRange second = stages_of(costs.graph, std::vector<std::string>{"b2/0/relu"})[1];
  const pipeline::StageCost plain = stage_cost(costs.all, second, Recompute::None);
  const pipeline::StageCost again = stage_cost(costs.all, second, Recompute::Stage);
  EXPECT_EQ(again.forward, plain.forward);
  EXPECT_DOUBLE_EQ(again.backward_input, plain.backward_input + plain.forward);
  EXPECT_EQ(again.backward_weight, plain.backward_weight);
  EXPECT_EQ(again.stash_bytes, 8 * 16 * 16 * 32 * 2);
  const OpRange first = {0, second.first};
  EXPECT_EQ(stage_cost(costs.all, first, Recompute::Stage).stash_bytes,
            8 * 32 * 32 * 3 * 2 + 2 * 8 * 16 * 16 * 32 * 2)
      << "images in, a value and its gradient";
  EXPECT_EQ(stage_cost(costs.all, costs.whole(), Recompute::Stage).stash_bytes,
            8 * 32 * 32 * 3 * 2);
}

TEST(CostTest, LayersThatAreComputedAgainRunTheirForwardTwice) {
  const Costs costs(imagenet_resnet("50"), 3, DType::F32, kProducts);
  const std::vector<std::string> layers = {"b1", "b2/0"};
  const std::vector<OpCost> again = recomputing(costs.graph, costs.all, layers);
  for (std::size_t op = 0; op < again.size(); ++op) {
    const std::string& layer = costs.graph.layers[costs.graph.ops[op].layer.at()].name;
    const bool twice = (layer + "/").starts_with("b1/") || (layer + "/").starts_with("b2/0/");
    const OpCost& once = costs.all[op];
    EXPECT_EQ(again[op].backward_input, once.backward_input + (twice ? once.forward : 0.0))
        << layer;
    EXPECT_EQ(again[op].stash_bytes, twice ? 0 : once.stash_bytes) << layer;
    EXPECT_EQ(again[op].boundary_bytes, once.boundary_bytes) << layer;
  }
}

TEST(CostTest, BytesAtABoundary) {
  const Costs costs(cifar_resnet("8"), 2, DType::F32, kBytes);
  const std::int64_t value = 2 * 32 * 32 * 16 * 4;
  EXPECT_EQ(costs["b0/conv"].boundary_bytes, 2 * 32 * 32 * 3 * 4) << "the images";
  EXPECT_EQ(costs["b0/norm"].boundary_bytes, value) << "the images are not read from here on";
  EXPECT_EQ(costs["b1/0/relu"].boundary_bytes, value);
  EXPECT_EQ(costs["b1/0/conv2"].boundary_bytes, 2 * value) << "with the shortcut";
}

TEST(CostTest, ParametersAreCountedWithGradientsAndOptimizerState) {
  const Costs costs(cifar_resnet("8"), 2, DType::F32, kBytes);
  EXPECT_EQ(costs["fc1"].parameter_bytes, (64 * 10 + 10) * 4);
  EXPECT_EQ(costs["b0/norm"].parameter_bytes, 4 * 16 * 4);
  const OpRange head = stages_of(costs.graph, std::vector<std::string>{"fc1"})[1];
  // A kernel of 2560 bytes, and a bias of 40 bytes padded to 64.
  EXPECT_EQ(parameter_state_bytes(costs.graph, head, UpdateRule::Sgd), 2 * (2560 + 64));
  EXPECT_EQ(parameter_state_bytes(costs.graph, head, UpdateRule::Momentum), 3 * (2560 + 64));
  // Gamma and beta with gradients and velocities, two running statistics with their sums.
  const auto norm = costs.graph.find("b0/norm").value;
  EXPECT_EQ(parameter_state_bytes(costs.graph, {norm, norm + 1}, UpdateRule::Momentum),
            3 * 2 * 64 + 2 * 2 * 64);
}

TEST(CostTest, AStageNeedsItsParametersAndItsPlan) {
  const Graph graph = cifar_resnet("8");
  const OpRange range = stages_of(graph, std::vector<std::string>{"b2/0/relu"})[0];
  pipeline::ProgramOptions options;
  options.batch = 4;
  pipeline::Slots slots;
  slots.stash = 3;
  const std::int64_t plan = plan_memory(compile(graph, range, options), slots).bytes();
  EXPECT_EQ(stage_bytes(graph, range, options, slots, UpdateRule::Sgd),
            plan + parameter_state_bytes(graph, range, UpdateRule::Sgd));
  EXPECT_GT(plan, 0);
}

}  // namespace
}  // namespace millrace::partition
