// SPDX-License-Identifier: Apache-2.0
//
// Networks cut into stages in this process: no cut, order of the phases or recomputation changes a
// bit, and gradients are slopes of the loss.
#include "pipeline/stage.hpp"

#include "models/registry.hpp"
#include "support/slope.hpp"
#include "support/stage_chain.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

using models::Graph;
using models::ModelOptions;
using test::StageChain;
using test::StepState;

// ---- networks -----------------------------------------------------------------------------------

Graph resnet(const char* size, models::NormKind norm) {
  ModelOptions options;
  options.size = size;
  options.norm = norm;
  options.groups = 4;
  options.image = {8, 8, 3};
  return models::build_model(options);
}
Graph batch_norm() { return resnet("8", models::NormKind::Batch); }
Graph group_norm() { return resnet("8", models::NormKind::Group); }
// With projections in shortcuts:
Graph bottleneck() { return resnet("11", models::NormKind::Batch); }
Graph group_bottleneck() { return resnet("11", models::NormKind::Group); }

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

struct FamilyCase {
  const char* name;
  Graph (*build)();
  DType type;
  std::int32_t every;  ///< which cuts are tried
};
void PrintTo(const FamilyCase& c, std::ostream* out) { *out << c.name; }

class FamilyTest : public testing::TestWithParam<FamilyCase> {
 protected:
  FamilyTest() : graph_(GetParam().build()) {
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

TEST_P(FamilyTest, CutsGiveTheSameBits) {
  const StepState whole_net = plain({}, 2);
  for (const double loss : whole_net.losses) EXPECT_TRUE(std::isfinite(loss));
  for (std::int32_t cut = 1; cut < ops(); cut += GetParam().every)
    expect_equal(plain({cut}, 2), whole_net,
                 "cut before " + graph_.ops[static_cast<std::size_t>(cut)].name);
  std::vector<std::int32_t> everywhere;
  for (std::int32_t cut = 1; cut < ops(); ++cut) everywhere.push_back(cut);
  expect_equal(plain(everywhere, 2), whole_net, "every op a stage");
}

/// Whether the input gradient adds up the gradient of a parameter as well: on accelerators that of
/// a norm.
bool is_added_early(const std::string& parameter) {
  return !device::kOnCores && (parameter.ends_with("/gamma") || parameter.ends_with("/beta"));
}

// Input gradients of all micro-batches come before the first weight gradient, which they leave
// alone.
TEST_P(FamilyTest, AllForwardsFirstAndSplitBackwardGiveTheSameBits) {
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
      for (const auto& [name, values] : chain.gradients()) {
        if (is_added_early(name)) continue;
        EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float x) { return x == 0.0f; }))
            << name;
      }
      for (int m = 0; m < 3; ++m) chain.backward_weight(chain.context(m, m));
      expect_equal(chain.finish(std::move(state), 3), joined, "three forwards first");
    }
  }
}

// Recomputing some layers, or the stage with all its convolutions, needs less and less memory.
TEST_P(FamilyTest, RecomputationGivesTheSameBitsInLessMemory) {
  options_.slots = {3, 1};
  StageChain kept(graph_, {}, options_, *backend_);
  const StepState expected = kept.plain_step(3);
  options_.recompute = Recompute::Layers;
  for (std::size_t i = 0; i < graph_.layers.size(); i += 2)
    options_.recompute_layers.push_back(graph_.layers[i].name);
  StageChain some(graph_, {}, options_, *backend_);
  EXPECT_LT(some.bytes(), kept.bytes());
  expect_equal(some.plain_step(3), expected, "every other layer recomputed");
  options_.recompute = Recompute::Stage;
  StageChain all(graph_, {}, options_, *backend_);
  EXPECT_LT(all.bytes(), some.bytes());
  expect_equal(all.plain_step(3), expected, "the stage recomputed");
}

// Wherever segments of a recomputation begin.
TEST_P(FamilyTest, SavingTrafficGivesTheSameBits) {
  if (!waits_for_memory()) GTEST_SKIP() << "kernels for cores compute no inlined norms";
  options_.saves_traffic = false;
  const StepState expected = plain({}, 2);
  options_.saves_traffic = true;
  options_.backward = Backward::Split;
  expect_equal(plain({}, 2), expected, "kept");
  options_.recompute = Recompute::Stage;
  options_.repeats_last_segment = false;
  for (std::int32_t begin = 1; begin < ops(); begin += GetParam().every) {
    options_.segments = {models::OpId{begin}};
    expect_equal(plain({}, 2), expected,
                 "segment from " + graph_.ops[static_cast<std::size_t>(begin)].name);
  }
}

/// The gradients of micro-batch 0.
std::map<std::string, std::vector<float>> first_gradients(StageChain& chain) {
  chain.begin_step();
  chain.forward(0, chain.context(0));
  chain.backward_input(chain.context(0));
  return chain.gradients();
}

/// Error of the slope of the loss of micro-batch 0 along the gradient of a parameter.
double slope_error(StageChain& chain, models::ParameterId id, const std::vector<float>& g,
                   const std::vector<double>& steps) {
  return test::slope_error(chain.stage(0).parameters().value(id), g, steps, [&] {
    chain.begin_step();
    return chain.forward(0, chain.context(0)) / 4.0;
  });
}

// With equal masks, the slope of the loss along the gradient of any parameter matches the gradient.
TEST_P(FamilyTest, SlopeOfTheLossIsTheGradient) {
  if (GetParam().type != DType::F32) GTEST_SKIP() << "finite differences need float32";
  options_.batch = 4;
  StageChain chain(graph_, {}, options_, *backend_);
  const auto gradients = first_gradients(chain);
  int tried = 0;
  for (const models::ParameterId id : chain.stage(0).parameters().ids()) {
    const models::Parameter& parameter = graph_.parameter(id);
    if (!parameter.trainable()) continue;
    const std::vector<float>& g = gradients.at(parameter.name);
    const double length = test::length_of(g);
    if (length < 1e-3) continue;  // too small to measure in float32
    EXPECT_LT(slope_error(chain, id, g, {2e-2, 5e-3, 1e-3}), 0.05 * length + 2e-4)
        << parameter.name;
    ++tried;
  }
  EXPECT_GT(tried, 20);
}

INSTANTIATE_TEST_SUITE_P(
    Nets, FamilyTest,
    testing::Values(FamilyCase{"BatchNormFloat32", batch_norm, DType::F32, 1},
                    FamilyCase{"BatchNormBfloat16", batch_norm, DType::BF16, 1},
                    FamilyCase{"GroupNormFloat32", group_norm, DType::F32, 1},
                    FamilyCase{"GroupNormBfloat16", group_norm, DType::BF16, 1},
                    FamilyCase{"BottleneckBfloat16", bottleneck, DType::BF16, 1},
                    FamilyCase{"GroupBottleneckBfloat16", group_bottleneck, DType::BF16, 3},
                    FamilyCase{"ImageNetBfloat16", resnet10, DType::BF16, 3},
                    FamilyCase{"ResNeXtFloat32", resnext, DType::F32, 5},
                    FamilyCase{"ResNeXtBfloat16", resnext, DType::BF16, 7},
                    FamilyCase{"SqueezeNetFloat32", squeezenet, DType::F32, 5},
                    FamilyCase{"SqueezeNetBfloat16", squeezenet, DType::BF16, 7},
                    FamilyCase{"EfficientNetFloat32", efficientnet, DType::F32, 11},
                    FamilyCase{"EfficientNetBfloat16", efficientnet, DType::BF16, 13}),
    [](const auto& test) { return std::string(test.param.name); });

// What is missing here is not tested by anything above.
TEST(StageNetsTest, ContainEveryKindOfOp) {
  std::set<std::size_t> kinds;
  for (const auto build :
       {batch_norm, group_norm, bottleneck, resnet10, resnext, squeezenet, efficientnet})
    for (const models::Op& op : build().ops) kinds.insert(op.kind.index());
  EXPECT_EQ(kinds.size(), std::variant_size_v<models::OpKind>);
}

TEST(StageTest, EveryParameterMoves) {
  const auto backend = ops::make_default_backend();
  StageOptions options;
  options.batch = 3;
  options.parameters.rule = UpdateRule::Momentum;
  const Graph graph = batch_norm();
  StageChain chain(graph, {}, options, *backend);
  const auto before = chain.values();
  const StepState after = chain.plain_step(1);
  for (const auto& [name, values] : before) EXPECT_NE(after.values.at(name), values) << name;
}

// A position in a window of 20x20 pixels does not fit into a byte.
TEST(StageTest, GradientPassesMaximaOfLargeImages) {
  models::GraphBuilder b("maximum", {20, 20, 3}, 4);
  b.begin_layer("conv");
  models::ValueId x =
      b.conv("", b.input(), {.out_channels = 6, .kernel = {3, 3}, .pad = {1, 1, 1, 1}});
  b.begin_layer("pool");
  x = b.pool("", x, {.kernel = {20, 20}, .stride = {20, 20}});
  b.begin_layer("dense");
  x = b.dense("", x, {.units = 4});
  b.begin_layer("loss");
  b.softmax_loss("", x);
  const Graph graph = std::move(b).build();
  const auto backend = ops::make_default_backend();
  StageOptions options;
  options.batch = 4;
  StageChain chain(graph, {}, options, *backend);
  const auto gradients = first_gradients(chain);
  for (const models::ParameterId id : chain.stage(0).parameters().ids()) {
    const std::string& name = graph.parameter(id).name;
    const std::vector<float>& g = gradients.at(name);
    const double length = test::length_of(g);
    EXPECT_GT(length, 1e-2) << name;
    EXPECT_LT(slope_error(chain, id, g, {1e-2, 2e-3, 5e-4}), 0.02 * length) << name;
  }
}

// ---- evaluation ---------------------------------------------------------------------------------

/// Loss of the evaluation program on the images of micro-batch 0.
double evaluate(const Graph& graph, const std::vector<std::int32_t>& cuts, ops::Backend& backend,
                bool saves_traffic = waits_for_memory()) {
  StageOptions options;
  options.saves_traffic = saves_traffic;
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

TEST(EvaluationTest, SavingTrafficGivesTheSameBits) {
  const auto backend = ops::make_default_backend();
  for (const Graph& graph : {bottleneck(), group_bottleneck(), resnet10()}) {
    std::vector<std::int32_t> everywhere;
    for (std::int32_t cut = 1; cut < std::ssize(graph.ops); ++cut) everywhere.push_back(cut);
    const double expected = evaluate(graph, everywhere, *backend, false);
    EXPECT_EQ(evaluate(graph, {}, *backend, false), expected) << graph.name;
    EXPECT_EQ(evaluate(graph, {}, *backend, true), expected) << graph.name;
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
