// SPDX-License-Identifier: Apache-2.0
//
// Nothing of ours allocates within a step. Every malloc of this program is counted while a flag is
// up, except those made inside a vendor's library (device::VendorScope).
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "device/vendor_scope.hpp"
#include "models/registry.hpp"
#include "support/stage_chain.hpp"

namespace {

std::atomic<bool> g_counting{false};
std::atomic<int> g_allocations{0};

void note_allocation() {
  if (g_counting.load(std::memory_order_relaxed) && !millrace::device::VendorScope::inside()) {
    g_allocations.fetch_add(1);
  }
}

}  // namespace

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) {
  note_allocation();
  return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
  note_allocation();
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
  note_allocation();
  return __libc_realloc(p, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
  note_allocation();
  return __libc_memalign(alignment, n);
}
}

namespace millrace::pipeline {
namespace {

TEST(AllocationTest, NoneWithinAStep) {
  models::ModelOptions model;
  model.size = "8";
  const models::Graph graph = models::build_model(model);
  const auto backend = ops::make_default_backend();
  StageOptions options;
  options.batch = 4;
  options.type = DType::BF16;
  options.parameters.momentum = true;
  Stage stage(graph, whole(graph), options, *backend);
  device::Arena arena(stage.bytes());
  stage.bind(arena.at(0));
  stage.parameters().initialise(3);
  const std::vector<std::byte> images(4 * 32 * 32 * 3 * 2);
  const std::vector<std::int32_t> labels = {1, 2, 3, 4};
  const device::ExecutionSpace space;
  const auto step = [&] {
    BoundProgram& program = stage.training();
    program.begin_step(space, 1.0f);
    Stage::load(program, {}, images, labels);
    program.run(space, Phase::Forward, {});
    const MicroBatchMetrics metrics = stage.metrics(program, {});
    program.run(space, Phase::BackwardInput, {});
    stage.parameters().update(space, {}, 1);
    space.fence();
    return metrics.samples;
  };
  step();  // thread pools and primitive caches fill once
  step();
  g_allocations = 0;
  g_counting = true;
  for (int i = 0; i < 3; ++i) step();
  g_counting = false;
  EXPECT_EQ(g_allocations.load(), 0);
  // The counter is alive.
  g_counting = true;
  void* volatile block = std::malloc(10);
  g_counting = false;
  std::free(block);
  EXPECT_EQ(g_allocations.load(), 1);
}

}  // namespace
}  // namespace millrace::pipeline
