// SPDX-License-Identifier: Apache-2.0
#include "pipeline/memory_plan.hpp"

#include <fmt/format.h>

#include "models/registry.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

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

// Images, labels and metrics as ever, and the two values that cross a border.
TEST(SegmentsTest, StashOnlyTheirBorders) {
  const models::Graph graph = network("resnet", "20", models::Task::Cifar);
  ProgramOptions options = recomputing(4);
  const auto stashed = [&] {
    return plan_memory(compile(graph, whole(graph), options), {2, 1}).stash_slot_bytes;
  };
  const std::int64_t alone = stashed();
  options.segments = {graph.find("b2/0"), graph.find("b3/1")};
  const std::int64_t borders = 4 * 4 * (32 * 32 * 16 + 8 * 8 * 64);
  EXPECT_EQ(stashed(), alone + borders);
}

}  // namespace
}  // namespace millrace::pipeline
