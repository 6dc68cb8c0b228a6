// SPDX-License-Identifier: Apache-2.0
//
// How programs prepare images that arrive as bytes or unmixed, and what they stash.
#include "core/image_records.hpp"
#include "models/registry.hpp"
#include "pipeline/memory_plan.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

Graph resnet8() {
  models::ModelOptions options;
  options.size = "8";
  return models::build_model(options);
}

constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kPixels = kBatch * 32 * 32 * 3;

using Arriving = std::optional<DType>;
constexpr Arriving kBytes = DType::U8;

ProgramOptions options_of(Arriving images, bool mixing, Recompute recompute = Recompute::None) {
  ProgramOptions options;
  options.batch = kBatch;
  options.type = DType::BF16;
  options.recompute = recompute;
  options.images = images;
  options.mixing = mixing;
  return options;
}

std::int64_t count(const StageProgram& program, Phase phase, KernelKind kind) {
  const std::vector<Call>& calls = program.phase(phase);
  return std::count_if(calls.begin(), calls.end(), [&](const Call& c) { return c.kind == kind; });
}

BufferId arrival(const StageProgram& program) {
  EXPECT_EQ(program.inputs.at(0).value, Graph::input());
  return program.inputs.at(0).activation;
}

TEST(PrepareImagesTest, ComesFirstAndMakesWhatTheNetworkReads) {
  const Graph graph = resnet8();
  for (const Arriving images :
       {Arriving{}, kBytes, Arriving(DType::BF16), Arriving(DType::F16), Arriving(DType::F32)}) {
    const DType type = images.value_or(DType::BF16);
    const bool bytes = type == DType::U8;
    for (const bool mixing : {false, true}) {
      const StageProgram program = compile(graph, whole(graph), options_of(images, mixing));
      if (type == DType::BF16 && !mixing) {
        EXPECT_EQ(count(program, Phase::Forward, KernelKind::PrepareImages), 0);
        continue;
      }
      const Call& first = program.phase(Phase::Forward).front();
      EXPECT_EQ(first.kind, KernelKind::PrepareImages);
      EXPECT_EQ(first.at(Role::X), arrival(program));
      EXPECT_EQ(program.buffer(first.at(Role::X)).bytes, kPixels * size_of(type));
      EXPECT_EQ(program.buffer(first.at(Role::Y)).bytes, kPixels * 2);
      EXPECT_EQ(first.has(Role::Scaling), bytes);
      EXPECT_EQ(first.has(Role::Mixing), mixing);
      EXPECT_EQ(program.scaling.valid(), bytes);
      EXPECT_EQ(program.mixing.valid(), mixing);
      const Call& stem = program.phase(Phase::Forward).at(1);
      EXPECT_EQ(stem.kind, KernelKind::LinearForward);
      EXPECT_EQ(stem.at(Role::X), first.at(Role::Y));
      for (const Phase phase : {Phase::Forward, Phase::BackwardInput})
        for (const Call& call : program.phase(phase))
          if (call.kind == KernelKind::LossForward || call.kind == KernelKind::LossBackward) {
            EXPECT_EQ(call.at(Role::Mixing), program.mixing);
          }
    }
  }
}

TEST(PrepareImagesTest, ChangesOnlyStagesThatReadImagesOrLabels) {
  const Graph graph = resnet8();
  const auto ops = static_cast<std::int32_t>(graph.ops.size());
  const ProgramOptions options = options_of(kBytes, true);
  const StageProgram first = compile(graph, {0, ops / 3}, options);
  const StageProgram middle = compile(graph, {ops / 3, 2 * ops / 3}, options);
  const StageProgram last = compile(graph, {2 * ops / 3, ops}, options);
  EXPECT_TRUE(first.scaling.valid() && first.mixing.valid());
  EXPECT_FALSE(middle.scaling.valid() || middle.mixing.valid());
  EXPECT_FALSE(last.scaling.valid());
  EXPECT_TRUE(last.mixing.valid());
  EXPECT_EQ(count(last, Phase::Forward, KernelKind::PrepareImages), 0);
  EXPECT_EQ(last.buffer(last.mixing).bytes,
            kBatch * static_cast<std::int64_t>(sizeof(ImageMixing)));
  EXPECT_EQ(first.buffer(first.scaling).bytes,
            kBatch * static_cast<std::int64_t>(sizeof(PixelScaling)));
}

TEST(PrepareImagesTest, StashesImagesOrTheirBytesIfTheyAreRecomputed) {
  const Graph graph = resnet8();
  const auto region_of = [](const MemoryPlan& plan, BufferId b) {
    return plan.placements.at(b.at()).region;
  };
  const auto plan_of = [&](const StageProgram& program) {
    return plan_memory(program, Slots{.stash = 3, .weight = 1, .outbox = 0});
  };
  {
    const StageProgram program = compile(graph, whole(graph), options_of(kBytes, true));
    const MemoryPlan plan = plan_of(program);
    EXPECT_EQ(region_of(plan, arrival(program)), Region::Transient);
    EXPECT_EQ(region_of(plan, program.phase(Phase::Forward).front().at(Role::Y)), Region::Stash);
  }
  for (const Recompute recompute : {Recompute::Stage, Recompute::Layers}) {
    ProgramOptions options = options_of(kBytes, false, recompute);
    options.recompute_layers = {"b0"};
    const StageProgram program = compile(graph, whole(graph), options);
    const MemoryPlan plan = plan_of(program);
    EXPECT_EQ(count(program, Phase::BackwardInput, KernelKind::PrepareImages), 1);
    EXPECT_EQ(region_of(plan, arrival(program)), Region::Stash);
    EXPECT_EQ(region_of(plan, program.scaling), Region::Stash);
    EXPECT_EQ(region_of(plan, program.phase(Phase::Forward).front().at(Role::Y)),
              Region::Transient);
    // A slot needs one byte less per pixel than with images in 16 bits.
    options.images.reset();
    const MemoryPlan floats = plan_of(compile(graph, whole(graph), options));
    const std::int64_t scaling = kBatch * static_cast<std::int64_t>(sizeof(PixelScaling));
    EXPECT_EQ(floats.stash_slot_bytes - plan.stash_slot_bytes, kPixels - scaling);
  }
  ProgramOptions elsewhere = options_of(kBytes, false, Recompute::Layers);
  elsewhere.recompute_layers = {"b3"};
  const StageProgram program = compile(graph, whole(graph), elsewhere);
  EXPECT_EQ(count(program, Phase::BackwardInput, KernelKind::PrepareImages), 0);
  EXPECT_EQ(region_of(plan_of(program), arrival(program)), Region::Transient);
}

TEST(PrepareImagesTest, EvaluationNormalisesAndNeverMixes) {
  const Graph graph = resnet8();
  ProgramOptions options = options_of(kBytes, false);
  options.mode = Mode::Evaluation;
  const StageProgram program = compile(graph, whole(graph), options);
  EXPECT_EQ(program.phase(Phase::Forward).front().kind, KernelKind::PrepareImages);
  EXPECT_FALSE(program.mixing.valid());
}

}  // namespace
}  // namespace millrace::pipeline
