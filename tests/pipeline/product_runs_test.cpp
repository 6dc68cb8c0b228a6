// SPDX-License-Identifier: Apache-2.0
//
// Products that add up what norms need, with a stand-in that multiplies in plain loops: the bits of
// runs and separate calls, and how many bytes of a ResNet-50 step they save.
#include "ops/cutlass/product_ops.hpp"

#include "models/registry.hpp"
#include "ops/cutlass/products.hpp"
#include "ops/cutlass/tile_norms.hpp"
#include "pipeline/bound_program.hpp"
#include "pipeline/compiler.hpp"
#include "pipeline/op_shapes.hpp"
#include "support/stage_chain.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

Graph resnet50(std::int64_t pixels) {
  models::ModelOptions options;
  options.size = "50";
  options.task = models::Task::ImageNet;
  options.shortcut = 'B';
  options.classes = 1000;
  options.image = {pixels, pixels, 3};
  // If the last gamma of a block were zero, its branch would get no gradient.
  options.residual.initialisers = models::InitialiserSet::Nvidia;
  return models::build_model(options);
}

/// The claimed runs of a step, as the number of their first call in each phase.
std::vector<std::pair<std::size_t, std::size_t>> runs_of(const Graph& graph,
                                                         const StageProgram& program) {
  const ops::Backend backend;
  const ClaimedRuns claimed(graph, program, backend);
  std::vector<std::pair<std::size_t, std::size_t>> runs;
  for (std::size_t phase = 0; phase < kPhases; ++phase)
    for (std::size_t i = 0; i < program.calls[phase].size(); ++i)
      if (claimed.contains(phase, i)) runs.emplace_back(phase, i++);
  return runs;
}

/// What an op makes of random values: y, then dx.
std::vector<std::byte> results_of(ops::LinearOp& op, const ops::ConvShape& s) {
  using ops::DeviceValues;
  const device::ExecutionSpace space;
  const std::int64_t pixels = s.window.batch * s.window.out.pixels();
  DeviceValues<bfloat16> x(ops::random_as<bfloat16>(pixels * s.window.in.c, 1));
  DeviceValues<bfloat16> dy(ops::random_as<bfloat16>(pixels * s.window.out.c, 2));
  DeviceValues<bfloat16> kernel(ops::random_as<bfloat16>(s.kernel_elements(), 3));
  DeviceValues<bfloat16> y(pixels * s.window.out.c), dx(pixels * s.window.in.c);
  op.bind({.kernel = kernel.raw()});
  op.forward(space, y.raw(), x.raw());
  op.backward_input(space, dx.raw(), dy.raw());
  std::vector<std::byte> results = y.bits();
  const std::vector<std::byte> more = dx.bits();
  results.insert(results.end(), more.begin(), more.end());
  return results;
}

TEST(ProductRunsTest, PassesAreThoseOfPlainLoops) {
  ops::ConvShape s;
  s.window = {.batch = 3, .in = {4, 12, 64}, .out = {4, 12, 128}};
  const ops::Passes passes = ops::tiles::product_passes(s);
  EXPECT_TRUE(passes.forward && passes.backward_input && !passes.backward_weight);
  const auto product = ops::tiles::make_product(s, DType::BF16);
  const auto plain = ops::make_plain(s, DType::BF16);
  EXPECT_EQ(results_of(*product, s), results_of(*plain, s));
  const auto has_forward = [&](const auto& change) {
    ops::ConvShape other = s;
    change(other);
    return ops::tiles::product_passes(other).forward;
  };
  EXPECT_FALSE(has_forward([](ops::ConvShape& o) { o.window.kernel_w = 3; }));
  EXPECT_FALSE(has_forward([](ops::ConvShape& o) { o.window.stride_h = 2; }));
  EXPECT_FALSE(has_forward([](ops::ConvShape& o) { o.window.pad_top = 1; }));
  EXPECT_FALSE(has_forward([](ops::ConvShape& o) { o.groups = 2; }));
  EXPECT_FALSE(has_forward([](ops::ConvShape& o) { o.bias = true; }));
  EXPECT_FALSE(has_forward([](ops::ConvShape& o) { o.window.in.c = 60; }));
  EXPECT_FALSE(has_forward([](ops::ConvShape& o) { o.window.out.c = 96; }));
  EXPECT_FALSE(has_forward([](ops::ConvShape& o) { o.window.batch = 1, o.window.out.w = 7; }));
}

// ResNet-50 has norms behind 1x1 convolutions with 64 and more channels, before them with and
// without additions, and in its last stage too few rows for tiles.
TEST(ProductRunsTest, HaveTheBitsOfSeparateCalls) {
  const Graph graph = resnet50(32);
  StageOptions options;
  options.batch = 4;
  ops::Backend backend(ops::make_vendor());
  for (const DType type : {DType::BF16, DType::F16}) {
    options.type = type;
    test::StageChain whole(graph, {}, options, backend);
    EXPECT_GT(runs_of(graph, whole.program(0)).size(), 40U);
    std::vector<std::int32_t> cuts;
    for (std::int32_t cut = 1; cut < static_cast<std::int32_t>(graph.ops.size()); ++cut)
      cuts.push_back(cut);
    test::StageChain apart(graph, cuts, options, backend);
    for (std::size_t s = 0; s <= cuts.size(); ++s)
      EXPECT_TRUE(runs_of(graph, apart.program(s)).empty());
    EXPECT_EQ(whole.plain_step(2), apart.plain_step(2));
  }
}

/// Gigabytes that a norm's call reads and writes.
double gigabytes(const StageProgram& program, const Call& norm) {
  std::int64_t bytes = 0;
  for (const Role role :
       {Role::X, Role::Skip, Role::Y, Role::Mask, Role::Dy, Role::Dy2, Role::Dz, Role::Dx})
    if (norm.has(role)) bytes += program.buffer(norm.at(role)).bytes;
  return static_cast<double>(bytes) / 1e9;
}

/// Of these, those that a product saves: it has what it computes, and writes the norm's gradient
/// instead of its own.
double saved_gigabytes(const StageProgram& program, const Call& norm) {
  const bool forward = norm.kind == KernelKind::NormStatistics;
  const std::int64_t value = program.buffer(norm.at(forward ? Role::X : Role::Dy)).bytes;
  return static_cast<double>(norm.has(Role::Dz) ? 2 * value : value) / 1e9;
}

TEST(ProductRunsTest, SaveBytesOfResNet50) {
  const Graph graph = resnet50(224);
  ProgramOptions options;
  options.batch = 256;
  options.type = DType::BF16;
  const StageProgram program = compile(graph, whole(graph), options);
  double all = 0.0;
  for (const auto& calls : program.calls)
    for (const Call& call : calls)
      if (is_norm(call.kind)) all += gigabytes(program, call);
  EXPECT_NEAR(all, 51.94, 0.01);
  struct Saved {
    int runs = 0;
    double gigabytes = 0.0;
  };
  Saved statistics, gradients, sums_of_gradients;
  for (const auto& [phase, i] : runs_of(graph, program)) {
    const Call& norm = program.calls[phase][i + 1];
    Saved& saved = norm.kind == KernelKind::NormStatistics ? statistics
                   : norm.has(Role::Dz)                    ? sums_of_gradients
                                                           : gradients;
    ++saved.runs;
    saved.gigabytes += saved_gigabytes(program, norm);
  }
  EXPECT_EQ(statistics.runs, 33);
  EXPECT_NEAR(statistics.gigabytes, 4.21, 0.01);
  EXPECT_EQ(gradients.runs, 16);
  EXPECT_NEAR(gradients.gigabytes, 0.71, 0.01);
  EXPECT_EQ(sums_of_gradients.runs, 15);
  EXPECT_NEAR(sums_of_gradients.gigabytes, 5.55, 0.01);
}

}  // namespace
}  // namespace millrace::pipeline
