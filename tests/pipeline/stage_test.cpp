// SPDX-License-Identifier: Apache-2.0
#include "pipeline/stage.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "models/registry.hpp"
#include "support/stage_chain.hpp"

namespace millrace::pipeline {
namespace {

using models::Graph;
using models::ModelOptions;
using test::StageChain;
using test::StepState;

Graph resnet8(models::NormKind norm, models::BlockKind block) {
  ModelOptions options;
  options.size = block == models::BlockKind::Bottleneck ? "11" : "8";
  options.norm = norm;
  options.groups = 4;
  options.image = {8, 8, 3};
  return models::build_model(options);
}

Graph resnet_batch() { return resnet8(models::NormKind::Batch, models::BlockKind::Basic); }
Graph resnet_group() { return resnet8(models::NormKind::Group, models::BlockKind::Basic); }
Graph bottleneck() { return resnet8(models::NormKind::Batch, models::BlockKind::Bottleneck); }

/// A stem with a max pool, and projections in all shortcuts.
Graph resnet10() {
  ModelOptions options;
  options.size = "10";
  options.task = models::Task::ImageNet;
  options.shortcut = 'B';
  options.classes = 7;
  options.image = {33, 33, 3};
  return models::build_model(options);
}

/// Squeeze-and-excite, and groups of four channels.
Graph resnext() {
  ModelOptions options = models::default_options("resnext", models::Task::Cifar);
  options.size = "11";
  options.image = {8, 8, 3};
  options.resnext.groups = 8;
  options.resnext.squeeze_excitation = models::SqueezeExcitation::On;
  // If the last gamma of a block were zero, its branch would get no gradient.
  options.residual.initialisers = models::InitialiserSet::Nvidia;
  return models::build_model(options);
}

/// Concatenations, additions without a norm, dropout of pixels, more logits than classes.
Graph squeezenet() {
  ModelOptions options = models::default_options("squeezenet", models::Task::Cifar);
  options.squeezenet.bypass = models::Bypass::Simple;
  return models::build_model(options);
}

/// Swish, group normalization, depthwise 3x3 and 5x5, squeeze-and-excite, drop-connect, dropout,
/// with values down to one pixel.
Graph efficientnet() {
  ModelOptions options = models::default_options("efficientnet", models::Task::Cifar);
  options.size = "cifar";
  options.image = {12, 12, 3};
  options.group_order = models::GroupOrder::Strided;
  options.efficientnet.depth = 0.4;
  options.efficientnet.width = 0.3;
  options.efficientnet.expand_ratio = 2;
  options.efficientnet.top_width = 320;
  options.efficientnet.dropout_rate = 0.3;
  options.efficientnet.block_survival = 0.5;
  return models::build_model(options);
}

struct NetCase {
  const char* name;
  Graph (*build)();
  DType type;
  std::int32_t every;   ///< which cuts are tried
  double slope = 0.05;  ///< tolerated error of a slope, relative
};
void PrintTo(const NetCase& c, std::ostream* out) { *out << c.name; }

/// Every kind of op is in one of these networks.
constexpr NetCase kNets[] = {
    {"ResNetFloat32", resnet_batch, DType::F32, 1, 0.02},
    {"ResNetBfloat16", resnet_batch, DType::BF16, 1},
    {"GroupNormFloat32", resnet_group, DType::F32, 1, 0.02},
    {"GroupNormBfloat16", resnet_group, DType::BF16, 1},
    {"BottleneckBfloat16", bottleneck, DType::BF16, 1},
    {"ResNeXtFloat32", resnext, DType::F32, 5},
    {"ResNeXtBfloat16", resnext, DType::BF16, 7},
    {"SqueezeNetFloat32", squeezenet, DType::F32, 5},
    {"SqueezeNetBfloat16", squeezenet, DType::BF16, 7},
    {"EfficientNetFloat32", efficientnet, DType::F32, 11},
    {"EfficientNetBfloat16", efficientnet, DType::BF16, 13},
};

TEST(StageNetsTest, ContainEveryKindOfOp) {
  std::vector<bool> seen(std::variant_size_v<models::OpKind>);
  for (const NetCase& net : kNets)
    for (const models::Op& op : net.build().ops) seen[op.kind.index()] = true;
  for (std::size_t kind = 0; kind < seen.size(); ++kind)
    EXPECT_TRUE(seen[kind]) << "number " << kind << " of models::OpKind is in no network of kNets";
}

class StageTest : public testing::TestWithParam<NetCase> {
 protected:
  StageTest() : graph_(GetParam().build()) {
    options_.batch = 3;
    options_.type = GetParam().type;
    options_.parameters.rule = UpdateRule::Momentum;
  }
  StepState plain(const std::vector<std::int32_t>& cuts, std::int64_t micro_batches) {
    return StageChain(graph_, cuts, options_, *backend_).plain_step(micro_batches);
  }
  [[nodiscard]] std::int32_t ops() const { return static_cast<std::int32_t>(graph_.ops.size()); }

  Graph graph_;
  StageOptions options_;
  std::unique_ptr<ops::Backend> backend_ = ops::make_default_backend();
};

// Compares tensor by tensor, so that a failure names tensors instead of listing all floats.
void expect_equal(const StepState& actual, const StepState& expected, const std::string& what) {
  EXPECT_EQ(actual.losses, expected.losses) << what;
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size()) << what;
  for (const auto& [name, values] : expected.gradients) {
    EXPECT_TRUE(actual.gradients.at(name) == values) << what << ": gradient of " << name;
  }
  ASSERT_EQ(actual.values.size(), expected.values.size()) << what;
  for (const auto& [name, values] : expected.values) {
    EXPECT_TRUE(actual.values.at(name) == values) << what << ": " << name;
  }
}

// For a chain with split backward: runs a micro-batch without BackwardWeight.
void expect_weight_gradients_untouched(StageChain& chain) {
  chain.begin_step();
  chain.forward(0, chain.context(0));
  chain.backward_input(chain.context(0));
  for (const auto& [name, values] : chain.gradients()) {
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float x) { return x == 0.0f; }))
        << name;
  }
}

TEST_P(StageTest, CutsGiveTheSameBits) {
  const StepState whole_net = plain({}, 2);
  for (const double loss : whole_net.losses) EXPECT_TRUE(std::isfinite(loss));
  for (std::int32_t cut = 1; cut < ops(); cut += GetParam().every)
    expect_equal(plain({cut}, 2), whole_net,
                 "cut before " + graph_.ops[static_cast<std::size_t>(cut)].name);
  std::vector<std::int32_t> everywhere;
  for (std::int32_t cut = 1; cut < ops(); ++cut) everywhere.push_back(cut);
  expect_equal(plain(everywhere, 2), whole_net, "every op a stage");
}

TEST_P(StageTest, AllForwardsFirstAndSplitBackwardGiveTheSameBits) {
  const StepState joined = plain({}, 3);
  options_.backward = Backward::Split;
  options_.slots = {3, 3};
  for (const auto& cuts : {std::vector<std::int32_t>{}, {ops() / 3, 2 * ops() / 3}}) {
    for (const Recompute recompute : {Recompute::None, Recompute::Stage}) {
      options_.recompute = recompute;
      StageChain chain(graph_, cuts, options_, *backend_);
      StepState state;
      chain.begin_step();
      for (int m = 0; m < 3; ++m) state.losses.push_back(chain.forward(m, chain.context(m, m)));
      for (int m = 0; m < 3; ++m) chain.backward_input(chain.context(m, m));
      for (int m = 0; m < 3; ++m) chain.backward_weight(chain.context(m, m));
      expect_equal(chain.finish(std::move(state), 3), joined, "three forwards first");
    }
  }
}

TEST_P(StageTest, RecomputationGivesTheSameBitsInLessMemory) {
  options_.slots = {3, 1};
  StageChain kept(graph_, {}, options_, *backend_);
  const StepState expected = kept.plain_step(3);
  options_.recompute = Recompute::Stage;
  StageChain again(graph_, {}, options_, *backend_);
  EXPECT_LT(again.bytes(), kept.bytes());
  expect_equal(again.plain_step(3), expected, "recompute");
  const auto& calls = again.program(0).phase(Phase::BackwardInput);
  EXPECT_TRUE(std::any_of(calls.begin(), calls.end(),
                          [](const Call& c) { return c.kind == KernelKind::LinearForward; }));
  options_.recompute = Recompute::Layers;
  for (std::size_t i = 0; i < graph_.layers.size(); i += 2)
    options_.recompute_layers.push_back(graph_.layers[i].name);
  expect_equal(plain({}, 3), expected, "every other layer recomputed");
}

TEST_P(StageTest, BackwardInputLeavesWeightGradientsAlone) {
  options_.backward = Backward::Split;
  StageChain chain(graph_, {}, options_, *backend_);
  expect_weight_gradients_untouched(chain);
}

// With equal masks, the slope of the loss along the gradient of any parameter matches the gradient.
TEST_P(StageTest, SlopeOfTheLossIsTheGradient) {
  if (GetParam().type != DType::F32) GTEST_SKIP() << "finite differences need float32";
  options_.batch = 4;
  StageChain chain(graph_, {}, options_, *backend_);
  chain.begin_step();
  chain.forward(0, chain.context(0));
  chain.backward_input(chain.context(0));
  const auto gradients = chain.gradients();
  Parameters& parameters = chain.stage(0).parameters();
  int tried = 0;
  for (const models::ParameterId id : parameters.ids()) {
    const models::Parameter& parameter = graph_.parameter(id);
    if (!parameter.trainable()) continue;
    const std::vector<float>& g = gradients.at(parameter.name);
    double squares = 0.0;
    for (const float x : g) squares += static_cast<double>(x) * static_cast<double>(x);
    const double length = std::sqrt(squares);
    if (length < 1e-3) continue;  // too small to measure in float32
    float* w = parameters.value(id);
    const std::vector<float> start(w, w + g.size());
    const auto loss_at = [&](double t) {
      for (std::size_t i = 0; i < g.size(); ++i)
        w[i] = start[i] + static_cast<float>(t / length) * g[i];
      chain.begin_step();
      return chain.forward(0, chain.context(0)) / 4.0;
    };
    // One of these steps is small enough for the kinks of ReLU and large enough for float32.
    double error = 1e9;
    for (const double step : {2e-2, 5e-3, 1e-3}) {
      const double measured = (loss_at(step) - loss_at(-step)) / (2.0 * step);
      error = std::min(error, std::abs(measured - length));
    }
    EXPECT_LT(error, GetParam().slope * (length + 0.004)) << parameter.name;
    std::copy(start.begin(), start.end(), w);
    ++tried;
  }
  EXPECT_GT(tried, 20);
}

TEST_P(StageTest, EveryParameterMoves) {
  // With a gamma of zero the kernels of the branch get no gradient in the first step.
  if (GetParam().build == bottleneck) GTEST_SKIP() << "initial gammas are zero";
  StageChain chain(graph_, {}, options_, *backend_);
  const auto before = chain.values();
  const StepState after = chain.plain_step(1);
  for (const auto& [name, values] : before) EXPECT_NE(after.values.at(name), values) << name;
}

INSTANTIATE_TEST_SUITE_P(Nets, StageTest, testing::ValuesIn(kNets),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(StageImageNetTest, EveryThirdCutGivesTheSameBits) {
  const Graph graph = resnet10();
  const auto backend = ops::make_default_backend();
  StageOptions options;
  options.batch = 2;
  options.type = DType::BF16;
  const StepState expected = StageChain(graph, {}, options, *backend).plain_step(2);
  for (std::int32_t cut = 1; cut < static_cast<std::int32_t>(graph.ops.size()); cut += 3) {
    StageChain chain(graph, {cut}, options, *backend);
    expect_equal(chain.plain_step(2), expected,
                 "cut before " + graph.ops[static_cast<std::size_t>(cut)].name);
  }
}

TEST(RecomputationTest, OfLayersNeedsMemoryInBetween) {
  const Graph graph = resnet_batch();
  const auto backend = ops::make_default_backend();
  StageOptions options;
  options.batch = 3;
  options.slots = {3, 1};
  const auto bytes = [&] { return StageChain(graph, {}, options, *backend).bytes(); };
  const std::int64_t all_kept = bytes();
  options.recompute = Recompute::Layers;
  options.recompute_layers = {"b1", "b2/0"};
  const std::int64_t some_kept = bytes();
  EXPECT_LT(some_kept, all_kept);
  options.recompute = Recompute::Stage;
  EXPECT_LT(bytes(), some_kept);
}

/// Loss of the evaluation program on the images of micro-batch 0.
double evaluate(const Graph& graph, const std::vector<std::int32_t>& cuts, ops::Backend& backend) {
  StageOptions options;
  options.batch = 3;
  options.evaluation_batch = 3;
  StageChain chain(graph, cuts, options, backend);
  return chain.evaluate(0);
}

// Also if a dropout is a stage of its own, or the last op of a stage. The expected result is that
// of a network with the same weights and no dropout.
TEST(EvaluationTest, DropsNothingWhereverTheCutsAre) {
  const auto backend = ops::make_default_backend();
  for (const Graph& graph : {squeezenet(), efficientnet()}) {
    Graph without = graph;
    std::vector<std::int32_t> drops;
    for (std::size_t i = 0; i < without.ops.size(); ++i) {
      auto* dropout = std::get_if<models::Dropout>(&without.ops[i].kind);
      auto* drop = std::get_if<models::DropConnect>(&without.ops[i].kind);
      if (dropout != nullptr) dropout->rate = 0.0;
      if (drop != nullptr) drop->survival = 1.0;
      if (dropout != nullptr || drop != nullptr) drops.push_back(static_cast<std::int32_t>(i));
    }
    StageOptions options;
    options.batch = 3;
    const double expected = StageChain(without, {}, options, *backend).plain_step(1).losses[0];
    EXPECT_NE(StageChain(graph, {}, options, *backend).plain_step(1).losses[0], expected)
        << "training drops";
    EXPECT_EQ(evaluate(graph, {}, *backend), expected) << graph.name;
    for (const std::int32_t op : drops)
      for (const auto& cuts : {std::vector<std::int32_t>{op}, {op + 1}, {op, op + 1}})
        EXPECT_EQ(evaluate(graph, cuts, *backend), expected) << graph.name << " " << op;
  }
}

TEST(EvaluationTest, DropoutCostsNothing) {
  for (const Graph& graph : {squeezenet(), efficientnet()}) {
    ProgramOptions options;
    options.mode = Mode::Evaluation;
    const StageProgram program = compile(graph, whole(graph), options);
    for (const Call& call : program.phase(Phase::Forward)) {
      EXPECT_FALSE(std::holds_alternative<models::Dropout>(graph.op(call.op).kind));
      EXPECT_FALSE(std::holds_alternative<models::DropConnect>(graph.op(call.op).kind));
    }
  }
}

}  // namespace
}  // namespace millrace::pipeline
