// SPDX-License-Identifier: Apache-2.0
//
// Our code does not allocate during a step. While a flag is set, every malloc of this program is
// counted, except inside a vendor library (device::VendorScope) and in an OpenMP library that
// starts its threads.
#include <dlfcn.h>

#include "device/compat.hpp"
#include "device/vendor_scope.hpp"
#include "io/data/synthetic.hpp"
#include "models/registry.hpp"
#include "pipeline/executor.hpp"
#include "pipeline/stage_messages.hpp"
#include "support/stage_chain.hpp"
#include "tests/support/test.hpp"

// Counts for the whole process by replacing the functions of the allocator.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables, readability-identifier-naming)
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

void* malloc(std::size_t size) {
  note_allocation(__builtin_return_address(0));
  return __libc_malloc(size);
}
void* calloc(std::size_t nmemb, std::size_t size) {
  note_allocation(__builtin_return_address(0));
  return __libc_calloc(nmemb, size);
}
void* realloc(void* ptr, std::size_t size) {
  note_allocation(__builtin_return_address(0));
  return __libc_realloc(ptr, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  note_allocation(__builtin_return_address(0));
  return __libc_memalign(alignment, size);
}
}
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables, readability-identifier-naming)

namespace millrace::pipeline {
namespace {

using models::NormKind;
struct Case {
  const char* name;
  const char* model;
  DType type;
  NormKind norm;
  Recompute recompute;
  char shortcut;
  std::int64_t span = 1;
};

class AllocationTest : public testing::TestWithParam<Case> {
 protected:
  static models::Graph network() {
    const Case& variant = GetParam();
    models::ModelOptions model = models::default_options(variant.model, models::Task::Cifar);
    model.norm = variant.norm;
    if (model.model == "resnet") {
      model.size = "8";
      model.groups = 8;
    }
    model.efficientnet.depth = 0.4;
    model.efficientnet.dropout_rate = 0.3;
    model.shortcut = variant.shortcut;
    model.batch_norm_span = variant.span;
    return models::build_model(model);
  }
  static PipelinePlan plan_of(const models::Graph& graph) {
    PipelinePlan plan;
    const auto ops = static_cast<std::int32_t>(graph.ops.size());
    plan.ranges = {{0, ops / 3}, {ops / 3, ops / 2}, {ops / 2, ops}};
    ScheduleRequest request;
    request.devices = 3;
    request.micro_batches = 4;
    plan.schedule = with_communication(generate(request), links(graph, plan.ranges));
    plan.ranks = {.devices = 3, .replicas = 2, .ranks = 1};
    return plan;
  }
  static StageOptions options_of(const Slots& slots) {
    StageOptions options;
    options.batch = 2;
    options.type = GetParam().type;
    options.recompute = GetParam().recompute;
    options.slots = slots;
    options.parameters.rule = UpdateRule::Momentum;
    options.parameters.reduce = {.replicas = 2, .most_bytes = 4096, .type = DType::BF16};
    return options;
  }
};

// Two replicas of a pipeline of three stages, all in this process: executor, kernels, messages,
// reductions, and batch statistics over one replica or both.
TEST_P(AllocationTest, NoneWithinAStep) {
  const models::Graph graph = network();
  const auto backend = ops::make_default_backend();
  const PipelinePlan plan = plan_of(graph);
  const std::vector<Slots> slots = slots_of(graph, plan);
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<LocalStage> units;
  std::vector<std::unique_ptr<io::Loader>> loaders;
  std::vector<io::BatchSource*> feeds;
  std::int64_t bytes = 0;
  const std::shared_ptr<const io::Dataset> data = io::make_synthetic({.size = 64});
  for (std::int32_t r = 0; r < 2; ++r) {
    for (std::int32_t s = 0; s < 3; ++s) {
      const auto at = static_cast<std::size_t>(s);
      stages.push_back(
          std::make_unique<Stage>(graph, plan.ranges[at], options_of(slots[at]), *backend));
      units.push_back({r, s, stages.back().get()});
      bytes += device::aligned(stages.back()->bytes());
      io::LoaderOptions loading;
      loading.batch_size = 2;
      loading.type = GetParam().type;
      loading.threads = 0;
      loading.replicas = 2;
      loading.replica = r;
      loaders.push_back(s == 1 ? nullptr
                               : std::make_unique<io::Loader>(
                                     data, io::SampleOrder::shuffled(1, data->size()), loading));
      feeds.push_back(loaders.back().get());
    }
  }
  Executor executor(graph, plan, units, 0);
  const device::Arena arena(bytes + executor.bytes());
  std::int64_t offset = 0;
  for (const auto& stage : stages) {
    stage->bind(arena.at(offset));
    stage->parameters().initialise(1);
    offset += device::aligned(stage->bytes());
  }
  const comm::World world;
  const auto transport = comm::make_transport(world, device_memory());
  executor.bind(arena.at(offset), *transport, world);
  const device::ExecutionSpace space;
  for (int i = 0; i < 2; ++i) executor.run(space, {}, feeds);  // fills thread pools and caches
  g_allocations = 0;
  g_counting = true;
  for (int i = 0; i < 3; ++i) executor.run(space, {}, feeds);
  g_counting = false;
  EXPECT_EQ(g_allocations.load(), 0);
  // The counter works.
  g_counting = true;
  void* volatile block = std::malloc(10);  // NOLINT(cppcoreguidelines-no-malloc)
  g_counting = false;
  std::free(block);  // NOLINT(cppcoreguidelines-no-malloc)
  EXPECT_EQ(g_allocations.load(), 1);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, AllocationTest,
    testing::Values(
        Case{"Bfloat16", "resnet", DType::BF16, NormKind::Batch, Recompute::None, 'A'},
        Case{"Spanning", "resnet", DType::F32, NormKind::Batch, Recompute::None, 'A', 2},
        Case{"Float32Projecting", "resnet", DType::F32, NormKind::Batch, Recompute::None, 'B'},
        Case{"GroupNorm", "resnet", DType::BF16, NormKind::Group, Recompute::None, 'A'},
        Case{"Recomputing", "resnet", DType::F32, NormKind::Group, Recompute::Stage, 'B'},
        Case{"EfficientNet", "efficientnet", DType::BF16, NormKind::Group, Recompute::Stage, 'A'},
        Case{"SqueezeNet", "squeezenet", DType::F32, NormKind::Batch, Recompute::None, 'A'}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace millrace::pipeline
