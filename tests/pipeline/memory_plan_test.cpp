// SPDX-License-Identifier: Apache-2.0
#include "pipeline/memory_plan.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "core/random.hpp"
#include "models/registry.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

std::vector<Lifetime> random_lifetimes(std::uint64_t seed, std::size_t n) {
  const RandomStream stream(seed, RandomPurpose::SyntheticData);
  std::vector<Lifetime> lives;
  for (std::size_t i = 0; i < n; ++i) {
    const RandomBlock r = stream.block(0, i);
    const std::int64_t first = uniform_below(r[0], 100);
    lives.push_back({1 + uniform_below(r[1], 5000), first, first + uniform_below(r[2], 30)});
  }
  return lives;
}

/// Maximum number of bytes alive at once: a lower bound for every packing.
std::int64_t peak_bytes(const std::vector<Lifetime>& lives) {
  std::int64_t peak = 0;
  for (const Lifetime& at : lives) {
    std::int64_t alive = 0;
    for (const Lifetime& life : lives)
      if (life.first <= at.first && at.first <= life.last) alive += (life.bytes + 63) / 64 * 64;
    peak = std::max(peak, alive);
  }
  return peak;
}

TEST(PackTest, BuffersAliveTogetherNeverOverlap) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<Lifetime> lives = random_lifetimes(seed, 120);
    const Packing packing = pack(lives, 64);
    for (std::size_t a = 0; a < lives.size(); ++a) {
      EXPECT_EQ(packing.offsets[a] % 64, 0);
      EXPECT_LE(packing.offsets[a] + lives[a].bytes, packing.bytes);
      for (std::size_t b = 0; b < a; ++b) {
        const bool together = lives[a].first <= lives[b].last && lives[b].first <= lives[a].last;
        const bool apart = packing.offsets[a] + lives[a].bytes <= packing.offsets[b] ||
                           packing.offsets[b] + lives[b].bytes <= packing.offsets[a];
        EXPECT_TRUE(!together || apart) << "seed " << seed << ": " << a << " and " << b;
      }
    }
    EXPECT_GE(packing.bytes, peak_bytes(lives));
  }
}

TEST(PackTest, DisjointLivesShareOnePlace) {
  const std::vector<Lifetime> lives = {{1000, 0, 1}, {500, 2, 3}, {1000, 4, 9}};
  EXPECT_EQ(pack(lives, 64).bytes, 1024);
  EXPECT_EQ(peak_bytes(lives), 1024);
}

models::Graph resnet(const char* size, models::Task task) {
  models::ModelOptions options;
  options.size = size;
  options.task = task;
  options.shortcut = task == models::Task::Cifar ? 'A' : 'B';
  if (task == models::Task::ImageNet) {
    options.image = {224, 224, 3};
    options.classes = 1000;
  }
  return models::build_model(options);
}

models::Graph family(const char* model, const char* size) {
  models::ModelOptions options = models::default_options(model, models::Task::ImageNet);
  options.size = size;
  options.squeezenet.bypass = models::Bypass::Simple;
  options.resnext.squeeze_excitation = models::SqueezeExcitation::On;
  return models::build_model(options);
}

// The plan of a real network is close to the lower bound.
TEST(MemoryPlanTest, NearTheBoundForRealNetworks) {
  for (const auto& graph :
       {resnet("20", models::Task::Cifar), resnet("50", models::Task::ImageNet),
        family("resnext", "50"), family("squeezenet", "1.0"), family("efficientnet", "B0")}) {
    ProgramOptions options;
    options.batch = 16;
    options.type = DType::BF16;
    const StageProgram program = compile(graph, whole(graph), options);
    const MemoryPlan one = plan_memory(program, {1, 0});
    const MemoryPlan two = plan_memory(program, {2, 0});
    EXPECT_EQ(one.stash_slot_bytes, 0);
    EXPECT_LT(one.bytes(), two.stash_slot_bytes + two.transient_bytes + two.stash_slot_bytes / 20)
        << graph.name;
    std::int64_t activations = 0;
    for (const Buffer& buffer : program.buffers) activations += buffer.bytes;
    EXPECT_LT(one.bytes(), activations);
  }
}

TEST(MemoryPlanTest, RecomputeStashesOnlyTheInput) {
  const models::Graph graph = resnet("20", models::Task::Cifar);
  ProgramOptions options;
  options.batch = 4;
  options.recompute = Recompute::Stage;
  const StageProgram program = compile(graph, whole(graph), options);
  const MemoryPlan plan = plan_memory(program, {2, 1});
  // Images, labels, and the metrics that are read after the forward phase.
  const std::int64_t images = 4 * 32 * 32 * 3 * 4;
  EXPECT_EQ(plan.stash_slot_bytes, images + 3 * 64);
}

TEST(ProgramTest, FusesNormAdditionAndActivation) {
  const models::Graph graph = resnet("8", models::Task::Cifar);
  const StageProgram program = compile(graph, whole(graph), {});
  int with_skip = 0;
  for (const Call& call : program.phase(Phase::Forward)) {
    EXPECT_NE(call.kind, KernelKind::AddForward);
    EXPECT_NE(call.kind, KernelKind::ActivationForward);
    with_skip += call.kind == KernelKind::NormApply && call.has(Role::Skip) ? 1 : 0;
  }
  EXPECT_EQ(with_skip, 3);
  EXPECT_TRUE(program.phase(Phase::BackwardWeight).empty());
}

/// Two norms whose sum goes through a ReLU: a block of these channels with a projection.
models::Graph projected(std::int64_t channels) {
  models::GraphBuilder b("projected", {8, 8, 3}, 4);
  b.begin_layer("block");
  const auto normalized = [&](const std::string& name) {
    const models::ValueId x = b.conv(name, b.input(), {.out_channels = channels});
    return b.batch_norm(name + "_norm", x, {});
  };
  const models::ValueId x = normalized("conv");
  models::ValueId y = b.add("add", x, normalized("shortcut"));
  y = b.activation("relu", y, {Activation::Relu});
  y = b.global_average_pool("pool", y);
  b.begin_layer("fc");
  y = b.dense("", y, {.units = 4});
  b.begin_layer("loss");
  b.softmax_loss("", y);
  return std::move(b).build();
}

ProgramOptions saving_traffic() {
  ProgramOptions options;
  options.batch = 2;
  options.saves_traffic = true;
  return options;
}

/// The only call of a kind.
const Call& call_of(const StageProgram& program, Phase phase, KernelKind kind, Role role) {
  const Call* found = nullptr;
  for (const Call& call : program.phase(phase)) {
    if (call.kind != kind || !call.has(role)) continue;
    EXPECT_EQ(found, nullptr);
    found = &call;
  }
  MILLRACE_ASSERT(found != nullptr);
  return *found;
}

// Behind an addition the backward pass reads bits of ReLU's output, which nothing else keeps.
TEST(ProgramTest, ReluBehindAnAdditionLeavesAMask) {
  ProgramOptions options = saving_traffic();
  const auto reduce = [&](const models::Graph& graph) {
    const StageProgram program = compile(graph, whole(graph), options);
    return call_of(program, Phase::BackwardInput, KernelKind::NormBackwardReduce, Role::Dz);
  };
  const models::Graph graph = projected(16);
  const StageProgram program = compile(graph, whole(graph), options);
  const Call& apply = call_of(program, Phase::Forward, KernelKind::NormApply, Role::Skip);
  EXPECT_EQ(program.buffer(apply.at(Role::Mask)).bytes, 2 * 8 * 8 * 16 / 8);
  EXPECT_EQ(reduce(graph).at(Role::Mask), apply.at(Role::Mask));
  EXPECT_FALSE(reduce(graph).has(Role::Y));
  const MemoryPlan plan = plan_memory(program, {2, 1});
  EXPECT_EQ(plan.placements[apply.at(Role::Mask).at()].region, Region::Stash);
  EXPECT_EQ(plan.placements[apply.at(Role::Y).at()].region, Region::Transient);
  EXPECT_FALSE(reduce(projected(12)).has(Role::Mask)) << "a byte would be of two rows";
  EXPECT_TRUE(reduce(projected(12)).has(Role::Y));
  options.saves_traffic = false;
  EXPECT_FALSE(reduce(graph).has(Role::Mask));
  options = saving_traffic();
  options.mode = Mode::Evaluation;
  const StageProgram evaluation = compile(graph, whole(graph), options);
  for (const Call& call : evaluation.phase(Phase::Forward)) EXPECT_FALSE(call.has(Role::Mask));
}

/// Calls that apply a norm, and of these those that apply that of a skip, too.
std::pair<int, int> applied(const models::Graph& graph, OpRange range,
                            const ProgramOptions& options) {
  std::pair<int, int> calls;
  const StageProgram program = compile(graph, range, options);
  for (const Call& call : program.phase(Phase::Forward)) {
    if (call.kind != KernelKind::NormApply) continue;
    ++calls.first;
    if (!call.skip_norm.valid()) continue;
    ++calls.second;
    EXPECT_EQ(graph.op(call.skip_norm).name, "block/shortcut_norm");
    EXPECT_TRUE(call.has(Role::Skip) && call.has(Role::SkipStatistics));
  }
  return calls;
}

TEST(ProgramTest, NormOfAShortcutIsAppliedWhereItIsAdded) {
  using Calls = std::pair<int, int>;
  const models::Graph graph = projected(16);
  const OpRange all = whole(graph);
  ProgramOptions options = saving_traffic();
  for (const Mode mode : {Mode::Training, Mode::Evaluation}) {
    options.mode = mode;
    options.saves_traffic = true;
    EXPECT_EQ(applied(graph, all, options), Calls(1, 1));
    const std::int32_t norm = graph.find("block/shortcut_norm").value;
    for (const std::int32_t cut : {norm, norm + 1}) {
      EXPECT_EQ(applied(graph, {0, cut}, options).second, 0);
      EXPECT_EQ(applied(graph, {cut, all.last}, options).second, 0);
    }
    models::Graph other = graph;
    other.ops[graph.find("block/shortcut_norm").at()].kind = models::GroupNorm{.groups = 4};
    EXPECT_EQ(applied(other, all, options), Calls(2, 0)) << "another kind";
    options.saves_traffic = false;
    EXPECT_EQ(applied(graph, all, options), Calls(2, 0));
  }
  models::Graph other = graph;
  other.ops[graph.find("block/pool").at()].inputs = {
      graph.op(graph.find("block/shortcut_norm")).output};
  options.saves_traffic = true;
  EXPECT_EQ(applied(other, all, options), Calls(2, 0)) << "another reader";
}

int count(const StageProgram& program, Phase phase, KernelKind kind) {
  const std::vector<Call>& calls = program.phase(phase);
  return static_cast<int>(
      std::count_if(calls.begin(), calls.end(), [&](const Call& c) { return c.kind == kind; }));
}

// A ReLU after a convolution works in place or is fused into the concatenation; a bypass adds.
TEST(ProgramTest, SqueezeNetFusesReluInPlaceOrIntoTheConcatenation) {
  const models::Graph graph = family("squeezenet", "1.0");
  const StageProgram program = compile(graph, whole(graph), {});
  EXPECT_EQ(count(program, Phase::Forward, KernelKind::ConcatForward), 16);
  EXPECT_EQ(count(program, Phase::BackwardInput, KernelKind::ConcatBackward), 16);
  EXPECT_EQ(count(program, Phase::Forward, KernelKind::AddForward), 4);
  // conv1, eight squeezes and conv10 in place; both expansions in the concatenation.
  EXPECT_EQ(count(program, Phase::Forward, KernelKind::ActivationForward), 10);
  for (const Call& call : program.phase(Phase::Forward)) {
    if (call.kind == KernelKind::ActivationForward) {
      EXPECT_EQ(call.at(Role::X), call.at(Role::Y));
    } else if (call.kind == KernelKind::ConcatForward) {
      EXPECT_EQ(call.fn, Activation::Relu);
    }
  }
}

TEST(ProgramTest, EfficientNetDropsAndAddsInOnePass) {
  const models::Graph graph = family("efficientnet", "B0");
  ProgramOptions options;
  const StageProgram training = compile(graph, whole(graph), options);
  // 9 of 16 blocks add their input; block 1a, which never drops, is not one of them.
  EXPECT_EQ(count(training, Phase::Forward, KernelKind::DropConnectForward), 9);
  EXPECT_EQ(count(training, Phase::Forward, KernelKind::AddForward), 0);
  EXPECT_EQ(count(training, Phase::Forward, KernelKind::DropoutForward), 1);
  options.mode = Mode::Evaluation;
  const StageProgram evaluation = compile(graph, whole(graph), options);
  EXPECT_EQ(count(evaluation, Phase::Forward, KernelKind::DropConnectForward), 0);
  EXPECT_EQ(count(evaluation, Phase::Forward, KernelKind::AddForward), 0) << "fused after the norm";
  EXPECT_EQ(count(evaluation, Phase::Forward, KernelKind::DropoutForward), 0);
}

// Statistics are computed while the norm's input is at hand, though an addition may wait for a
// shortcut; what the maximum pool reads is not stored.
TEST(ProgramTest, ResNetReadsTheInputsOfNormsAtOnce) {
  const models::Graph graph = family("resnet", "50");
  ProgramOptions options;
  options.saves_traffic = true;
  const StageProgram program = compile(graph, whole(graph), options);
  const std::vector<Call>& calls = program.phase(Phase::Forward);
  EXPECT_EQ(count(program, Phase::Forward, KernelKind::NormStatistics), 53);
  // Without those of the stem and of four shortcuts.
  EXPECT_EQ(count(program, Phase::Forward, KernelKind::NormApply), 48);
  for (std::size_t i = 1; i < calls.size(); ++i) {
    if (calls[i].kind == KernelKind::NormStatistics) {
      EXPECT_EQ(calls[i - 1].kind, KernelKind::LinearForward) << graph.op(calls[i].op).name;
      EXPECT_EQ(calls[i - 1].at(Role::Y), calls[i].at(Role::X));
    } else if (calls[i].kind == KernelKind::PoolForward) {
      EXPECT_TRUE(calls[i].inlined.valid());
      EXPECT_EQ(calls[i].at(Role::X), calls[i - 1].at(Role::X));
    }
  }
}

// An output that a global average and a product read is not stored, nor is its gradient.
TEST(ProgramTest, EfficientNetInlinesExcitedNorms) {
  const models::Graph graph = family("efficientnet", "B0");
  ProgramOptions options;
  options.saves_traffic = false;
  const StageProgram stored = compile(graph, whole(graph), options);
  options.saves_traffic = true;
  const StageProgram inlined = compile(graph, whole(graph), options);
  const auto difference = [&](Phase phase, KernelKind kind) {
    return count(stored, phase, kind) - count(inlined, phase, kind);
  };
  EXPECT_EQ(difference(Phase::Forward, KernelKind::NormApply), 16);
  EXPECT_EQ(difference(Phase::BackwardInput, KernelKind::GlobalPoolBackward), 16);
  EXPECT_EQ(difference(Phase::BackwardInput, KernelKind::NormBackwardReduce), 0);
  int readers = 0;
  for (const Call& call : inlined.phase(Phase::Forward)) {
    if (!call.inlined.valid()) continue;
    EXPECT_EQ(call.fn, Activation::Swish);
    EXPECT_TRUE(call.has(Role::Statistics));
    ++readers;
  }
  EXPECT_EQ(readers, 32);
  for (const Call& call : inlined.phase(Phase::BackwardInput)) {
    if (call.kind == KernelKind::ScaleBackward) {
      EXPECT_FALSE(call.has(Role::Dx));
      EXPECT_TRUE(call.inlined.valid());
    } else if (call.kind == KernelKind::NormBackwardReduce && call.has(Role::Scale)) {
      EXPECT_FALSE(call.has(Role::Dz));
      EXPECT_LT(inlined.buffer(call.at(Role::Dy2)).bytes, inlined.buffer(call.at(Role::Dy)).bytes);
    }
  }
}

// A cut between the norm, the average, and the product stores what they share.
TEST(ProgramTest, CutsStoreExcitedNorms) {
  const models::Graph graph = family("efficientnet", "B0");
  ProgramOptions options;
  options.saves_traffic = true;
  const auto inlined = [&](OpRange range) {
    int readers = 0;
    const StageProgram program = compile(graph, range, options);
    for (const Call& call : program.phase(Phase::Forward)) readers += call.inlined.valid() ? 1 : 0;
    return readers;
  };
  std::int32_t average = 0;
  while (!std::holds_alternative<models::GlobalAveragePool>(graph.op(OpId{average}).kind))
    ++average;
  std::int32_t product = average;
  while (!std::holds_alternative<models::ScaleChannels>(graph.op(OpId{product}).kind)) ++product;
  for (const std::int32_t cut : {average, average + 1, product}) {
    EXPECT_EQ(inlined({0, cut}), 0);
    EXPECT_EQ(inlined({cut, whole(graph).last}), 30);
  }
  EXPECT_EQ(inlined({0, product + 1}), 2);
}

TEST(ProgramTest, SqueezeAndExciteFusesScaleAdditionAndRelu) {
  const models::Graph graph = family("resnext", "50");
  const StageProgram program = compile(graph, whole(graph), {});
  EXPECT_EQ(count(program, Phase::Forward, KernelKind::ScaleForward), 16);
  EXPECT_EQ(count(program, Phase::Forward, KernelKind::AddForward), 0);
  for (const Call& call : program.phase(Phase::Forward)) {
    if (call.kind != KernelKind::ScaleForward) continue;
    EXPECT_TRUE(call.has(Role::Skip));
    EXPECT_EQ(call.fn, Activation::Relu);
  }
}

models::Graph spanning(std::int64_t span) {
  models::ModelOptions options;
  options.size = "8";
  options.batch_norm_span = span;
  return models::build_model(options);
}

// Two calls instead of one, with an exchange in between; evaluation is unchanged.
TEST(ProgramTest, NormsThatSpanReplicasSumInTwoCalls) {
  const models::Graph graph = spanning(3);
  const models::Graph alone = spanning(1);
  ProgramOptions options;
  const StageProgram program = compile(graph, whole(graph), options);
  const StageProgram plain = compile(alone, whole(alone), options);
  const int norms = count(plain, Phase::Forward, KernelKind::NormStatistics);
  EXPECT_GT(norms, 5);
  EXPECT_EQ(count(program, Phase::Forward, KernelKind::NormStatistics), 0);
  EXPECT_EQ(count(program, Phase::Forward, KernelKind::NormMoments), norms);
  EXPECT_EQ(count(program, Phase::Forward, KernelKind::NormJoinMoments), norms);
  EXPECT_EQ(count(program, Phase::BackwardInput, KernelKind::NormBackwardReduce), 0);
  EXPECT_EQ(count(program, Phase::BackwardInput, KernelKind::NormBackwardSums), norms);
  EXPECT_EQ(count(program, Phase::BackwardInput, KernelKind::NormJoinSums), norms);
  for (const std::vector<Call>& calls : program.calls) {
    for (const Call& call : calls) {
      if (!exchanges_before(call.kind)) continue;
      const std::int64_t channels = graph.value(graph.op(call.op).output).shape.c;
      EXPECT_EQ(program.buffer(call.at(Role::Exchange)).bytes, 3 * 2 * 8 * channels);
    }
  }
  options.mode = Mode::Evaluation;
  EXPECT_EQ(compile(graph, whole(graph), options), compile(alone, whole(alone), options));
}

// Exchanged statistics are kept, even if everything else is recomputed.
TEST(ProgramTest, RecomputationRepeatsNoExchange) {
  const models::Graph graph = spanning(2);
  ProgramOptions options;
  options.batch = 4;
  options.recompute = Recompute::Stage;
  const StageProgram program = compile(graph, whole(graph), options);
  EXPECT_EQ(count(program, Phase::BackwardInput, KernelKind::NormMoments), 0);
  EXPECT_EQ(count(program, Phase::BackwardInput, KernelKind::NormJoinMoments), 0);
  EXPECT_GT(count(program, Phase::BackwardInput, KernelKind::NormApply), 5);
  // Images, labels, metrics, and mean and deviation of every channel.
  std::int64_t bytes = 4 * 32 * 32 * 3 * 4 + 3 * 64;
  for (const models::Op& op : graph.ops)
    if (std::holds_alternative<models::BatchNorm>(op.kind))
      bytes += (2 * 4 * graph.value(op.output).shape.c + 63) / 64 * 64;
  const MemoryPlan plan = plan_memory(program, {2, 1});
  EXPECT_EQ(plan.stash_slot_bytes, bytes);
}

// Their place must not depend on the slot, because messages are prepared once.
TEST(MemoryPlanTest, ExchangesHaveOnePlace) {
  const models::Graph graph = spanning(2);
  for (const Recompute recompute : {Recompute::None, Recompute::Stage}) {
    for (const Backward backward : {Backward::Joined, Backward::Split}) {
      for (const Slots slots : {Slots{1, 1, 0}, Slots{3, 2, 2}}) {
        ProgramOptions options;
        options.recompute = recompute;
        options.backward = backward;
        const StageProgram program = compile(graph, whole(graph), options);
        const MemoryPlan plan = plan_memory(program, slots);
        for (const std::vector<Call>& calls : program.calls)
          for (const Call& call : calls)
            if (call.has(Role::Exchange)) {
              EXPECT_EQ(plan.placements[call.at(Role::Exchange).at()].region, Region::Transient);
            }
      }
    }
  }
}

TEST(ProgramTest, RefusesTwoSpans) {
  models::Graph graph = spanning(2);
  for (models::Op& op : graph.ops)
    if (op.name == "b2/0/norm1") std::get<models::BatchNorm>(op.kind).span = 4;
  expect_error(ErrorKind::Config, {"op b2/0/norm1 between 4"}, [&] { (void)span_of(graph); });
  EXPECT_EQ(span_of(spanning(2)), 2);
  EXPECT_EQ(span_of(resnet("8", models::Task::Cifar)), 1);
}

// There is no gradient of the images, and evaluation keeps nothing.
TEST(ProgramTest, ComputesNothingThatIsNotRead) {
  const models::Graph graph = resnet("8", models::Task::Cifar);
  const StageProgram training = compile(graph, whole(graph), {});
  for (const Call& call : training.phase(Phase::BackwardInput)) {
    EXPECT_FALSE(call.kind == KernelKind::LinearBackwardInput &&
                 graph.op(call.op).name == "b0/conv");
  }
  ProgramOptions options;
  options.mode = Mode::Evaluation;
  const StageProgram evaluation = compile(graph, whole(graph), options);
  EXPECT_TRUE(evaluation.phase(Phase::BackwardInput).empty());
  EXPECT_LT(plan_memory(evaluation, {1, 0}).bytes(), plan_memory(training, {1, 0}).bytes() / 3);
}

// ---- segments -----------------------------------------------------------------------------------

models::Graph network(const char* model, const char* size, models::Task task) {
  models::ModelOptions options = models::default_options(model, task);
  options.size = size;
  return models::build_model(options);
}

ProgramOptions recomputing(std::int64_t batch) {
  ProgramOptions options;
  options.batch = batch;
  options.recompute = Recompute::Stage;
  return options;
}

std::int64_t bytes_of(const models::Graph& graph, const ProgramOptions& options, Slots slots) {
  return plan_memory(compile(graph, whole(graph), options), slots).bytes();
}

// On one device, whose backward follows the forward of the same micro-batch at once.
TEST(SegmentsTest, SaveMostOfTheActivationsOfASingleDevice) {
  struct Case {
    const char* model;
    const char* size;
    models::Task task;
    std::int64_t batch;
    double most;  ///< of the bytes without recomputation
  };
  for (const Case& c : {Case{"resnet", "50", models::Task::ImageNet, 32, 0.45},
                        Case{"resnext", "101", models::Task::ImageNet, 16, 0.45},
                        Case{"resnet", "20", models::Task::Cifar, 128, 0.60},
                        Case{"squeezenet", "1.0", models::Task::ImageNet, 16, 0.75},
                        Case{"efficientnet", "B0", models::Task::ImageNet, 16, 0.60}}) {
    const models::Graph graph = network(c.model, c.size, c.task);
    const ProgramOptions chosen =
        with_segments(graph, whole(graph), recomputing(c.batch), {1, 1, 0});
    ProgramOptions none = recomputing(c.batch);
    none.recompute = Recompute::None;
    const std::int64_t all = bytes_of(graph, none, {1, 1, 0});
    const std::int64_t left = bytes_of(graph, chosen, {1, 1, 0});
    const double share = static_cast<double>(left) / static_cast<double>(all);
    fmt::print("{} {}: {} segments, {:.1f} % of {} MB\n", c.model, c.size,
               chosen.segments.size() + 1, 100.0 * share, all / 1'000'000);
    EXPECT_LE(share, c.most) << graph.name;
    EXPECT_FALSE(chosen.repeats_last_segment);
  }
}

// With many micro-batches in flight the borders are stashed for each of them.
TEST(SegmentsTest, AreFewerWhereManyMicroBatchesAreHeld) {
  const models::Graph graph = network("resnet", "50", models::Task::ImageNet);
  std::size_t before = 1000;
  for (const int held : {1, 4, 32}) {
    const ProgramOptions chosen = with_segments(graph, whole(graph), recomputing(8), {held, 1, 0});
    EXPECT_LE(chosen.segments.size(), before) << held;
    EXPECT_EQ(chosen.repeats_last_segment, held > 1);
    EXPECT_LE(bytes_of(graph, chosen, {held, 1, 0}), bytes_of(graph, recomputing(8), {held, 1, 0}));
    before = chosen.segments.size();
  }
}

// Between the repetition of an op and its backward lie only calls of its own segment.
TEST(SegmentsTest, AreRepeatedJustBeforeTheirBackward) {
  const models::Graph graph = network("resnet", "20", models::Task::Cifar);
  ProgramOptions options = recomputing(4);
  options.segments = {graph.find("b2/0"), graph.find("b3/1")};
  for (const bool last : {false, true}) {
    options.repeats_last_segment = last;
    const StageProgram program = compile(graph, whole(graph), options);
    const auto segment_of = [&](OpId op) {
      return std::upper_bound(options.segments.begin(), options.segments.end(), op) -
             options.segments.begin();
    };
    std::ptrdiff_t current = 2;
    std::set<std::ptrdiff_t> repeated;
    for (const Call& call : program.phase(Phase::BackwardInput)) {
      // The gradient of an addition whose result leaves the segment is taken in the next one.
      if (call.kind == KernelKind::AddGradients) continue;
      const std::ptrdiff_t segment = segment_of(call.op);
      EXPECT_LE(segment, current) << graph.op(call.op).name;
      current = segment;
      if (call.kind == KernelKind::LinearForward) repeated.insert(segment);
    }
    EXPECT_EQ(repeated,
              last ? (std::set<std::ptrdiff_t>{0, 1, 2}) : (std::set<std::ptrdiff_t>{0, 1}));
  }
}

// Images, labels and metrics as ever, and the two values that cross a border, with their masks.
TEST(SegmentsTest, StashOnlyTheirBorders) {
  const models::Graph graph = network("resnet", "20", models::Task::Cifar);
  ProgramOptions options = recomputing(4);
  const auto stashed = [&] {
    return plan_memory(compile(graph, whole(graph), options), {2, 1}).stash_slot_bytes;
  };
  for (const bool saves_traffic : {false, true}) {
    options.saves_traffic = saves_traffic;
    options.segments = {};
    const std::int64_t alone = stashed();
    options.segments = {graph.find("b2/0"), graph.find("b3/1")};
    const std::int64_t borders = 4 * 4 * (32 * 32 * 16 + 8 * 8 * 64);
    EXPECT_EQ(stashed(), alone + borders + (saves_traffic ? borders / 32 : 0));
  }
}

}  // namespace
}  // namespace millrace::pipeline
