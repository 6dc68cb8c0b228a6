// SPDX-License-Identifier: Apache-2.0
//
// Nothing of ours allocates within a step. Every malloc of this program is counted while a flag is
// up, except those made inside a vendor's library (device::VendorScope) and those that an OpenMP
// library makes to start its threads.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "device/vendor_scope.hpp"
#include "models/registry.hpp"
#include "support/stage_chain.hpp"

namespace {

std::atomic<bool> g_counting{false};
std::atomic<int> g_allocations{0};

bool in_openmp(const void* caller) {
  Dl_info library{};
  if (dladdr(caller, &library) == 0 || library.dli_fname == nullptr) return false;
  const std::string_view name(library.dli_fname);
  return name.find("libomp") != name.npos || name.find("libgomp") != name.npos;
}

void note_allocation(const void* caller) {
  if (!g_counting.load(std::memory_order_relaxed) || millrace::device::VendorScope::inside())
    return;
  if (!in_openmp(caller)) g_allocations.fetch_add(1);
}

}  // namespace

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) {
  note_allocation(__builtin_return_address(0));
  return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
  note_allocation(__builtin_return_address(0));
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
  note_allocation(__builtin_return_address(0));
  return __libc_realloc(p, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
  note_allocation(__builtin_return_address(0));
  return __libc_memalign(alignment, n);
}
}

namespace millrace::pipeline {
namespace {

struct Case {
  const char* name;
  DType type;
  models::NormKind norm;
  Recompute recompute;
  char shortcut;
};

class AllocationTest : public testing::TestWithParam<Case> {};

TEST_P(AllocationTest, NoneWithinAStep) {
  const Case& variant = GetParam();
  models::ModelOptions model;
  model.size = "8";
  model.norm = variant.norm;
  model.groups = 8;
  model.shortcut = variant.shortcut;
  const models::Graph graph = models::build_model(model);
  const auto backend = ops::make_default_backend();
  StageOptions options;
  options.batch = 4;
  options.type = variant.type;
  options.recompute = variant.recompute;
  options.parameters.momentum = true;
  Stage stage(graph, whole(graph), options, *backend);
  device::Arena arena(stage.bytes());
  stage.bind(arena.at(0));
  stage.parameters().initialise(3);
  const std::int64_t image_bytes = Shape{32, 32, 3}.elements() * size_of(variant.type);
  const std::vector<std::byte> images(static_cast<std::size_t>(4 * image_bytes));
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

using models::NormKind;
INSTANTIATE_TEST_SUITE_P(
    Variants, AllocationTest,
    testing::Values(Case{"Bfloat16", DType::BF16, NormKind::Batch, Recompute::None, 'A'},
                    Case{"Float32Projecting", DType::F32, NormKind::Batch, Recompute::None, 'B'},
                    Case{"GroupNorm", DType::BF16, NormKind::Group, Recompute::None, 'A'},
                    Case{"Recomputing", DType::F32, NormKind::Group, Recompute::Stage, 'B'}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace millrace::pipeline
