// SPDX-License-Identifier: Apache-2.0
//
// The kernels that one training step of ResNet-50 launches, by label. Each costs an accelerator a
// few microseconds of its step, whatever it computes. Part of the preset fake-device only.
//
// Linear ops are those of a vendor that stands in for cuDNN: its library calls fill their results
// with a constant, and beside them it launches what src/ops/cudnn/linear_op.cpp launches. That is
// the sum over micro-batches of each weight gradient, because the library has no float32 result,
// and the sums of a bias' gradient. What the library itself launches is not counted.
#include <Kokkos_Core.hpp>

#include "io/data/synthetic.hpp"
#include "models/registry.hpp"
#include "ops/elementwise.hpp"
#include "ops/linear.hpp"
#include "ops/sums.hpp"
#include "pipeline/executor.hpp"
#include "pipeline/op_shapes.hpp"
#include "pipeline/stage_messages.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

using device::ExecutionSpace;

// ---- a vendor like cuDNN ------------------------------------------------------------------------

void fill(const ExecutionSpace& space, std::byte* to, std::int64_t bytes) {
  device::call_library(space, [=] { std::memset(to, 0, static_cast<std::size_t>(bytes)); });
}

class LibraryOp final : public ops::LinearOp {
 public:
  LibraryOp(const ops::ConvShape& shape, DType type) : shape_(shape), type_(type) {}
  [[nodiscard]] ops::LinearBytes bytes() const override {
    return {.scratch = std::max(shape_.kernel_elements() * size_of(type_),
                                ops::channel_sums_bytes(shape_.window.out.c)),
            .reads_kernel = true};
  }
  void bind(const ops::LinearMemory& memory) override { memory_ = memory; }
  void pack(const ExecutionSpace&, bool) override {}
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte*) override {
    fill(space, y, shape_.window.out_elements() * size_of(type_));
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte*) override {
    fill(space, dx, shape_.window.in_elements() * size_of(type_));
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte*,
                       bool first) override {
    std::byte* const part = memory_.scratch;
    fill(space, part, shape_.kernel_elements() * size_of(type_));
    device::dispatch(type_, [&]<class T>() {
      ops::accumulate(space, memory_.dkernel, reinterpret_cast<const T*>(part),
                      shape_.kernel_elements(), first);
      if (shape_.bias)
        ops::add_channel_sums(
            space, memory_.dbias, reinterpret_cast<float*>(part), reinterpret_cast<const T*>(dy),
            shape_.window.batch * shape_.window.out.pixels(), shape_.window.out.c, first);
    });
  }

 private:
  ops::ConvShape shape_;
  DType type_;
  ops::LinearMemory memory_;
};

class Library final : public ops::Vendor {
 public:
  [[nodiscard]] const char* name() const override { return "library"; }
  [[nodiscard]] bool multiplies(DType) const override { return true; }
  [[nodiscard]] ops::LinearClaim claim(const ops::ConvShape& s, DType type, ops::Passes passes,
                                       std::int64_t) const override {
    return {passes, std::make_unique<LibraryOp>(s, type)};
  }
  [[nodiscard]] ops::LinearClaim claim(const ops::DenseShape& s, DType type, ops::Passes passes,
                                       std::int64_t cap) const override {
    return claim(ops::as_convolution(s), type, passes, cap);
  }
  using Vendor::claim;  // of runs: none
};

// ---- counting -----------------------------------------------------------------------------------

using Launches = std::map<std::string, int>;

/// Counts the launches of this process while it exists, by label.
class LaunchCounter {
 public:
  LaunchCounter() {
    counted().clear();
    using namespace Kokkos::Tools::Experimental;  // NOLINT(google-build-using-namespace)
    set_begin_parallel_for_callback(
        [](const char* label, const std::uint32_t, std::uint64_t*) { ++counted()[label]; });
    set_begin_parallel_reduce_callback(
        [](const char* label, const std::uint32_t, std::uint64_t*) { ++counted()[label]; });
  }
  ~LaunchCounter() {
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(nullptr);
    Kokkos::Tools::Experimental::set_begin_parallel_reduce_callback(nullptr);
  }
  LaunchCounter(const LaunchCounter&) = delete;
  LaunchCounter& operator=(const LaunchCounter&) = delete;
  [[nodiscard]] static const Launches& launches() { return counted(); }

 private:
  static Launches& counted() {
    static Launches launches;  // Kokkos calls plain functions
    return launches;
  }
};

int sum_of(const Launches& launches) {
  return std::accumulate(launches.begin(), launches.end(), 0,
                         [](int sum, const auto& entry) { return sum + entry.second; });
}

// ---- a step -------------------------------------------------------------------------------------

struct StepCase {
  models::NormKind norm = models::NormKind::Batch;
  std::int64_t image = 224;
  std::int64_t batch = 2;
  std::int32_t micro_batches = 1;
};

/// The launches of one step of ResNet-50 on one device, after one that fills caches.
Launches launches_of_step(const StepCase& step) {
  models::ModelOptions model = models::default_options("resnet", models::Task::ImageNet);
  model.size = "50";
  model.norm = step.norm;
  model.image = {step.image, step.image, 3};
  models::Graph graph = models::build_model(model);
  pad_images(graph, step.batch, [](const ops::ConvShape&) { return 8; });  // as cuDNN asks for
  ops::Backend backend(std::make_unique<Library>());
  PipelinePlan plan;
  plan.ranges = {whole(graph)};
  ScheduleRequest request;
  request.devices = 1;
  request.micro_batches = step.micro_batches;
  plan.schedule = with_communication(generate(request), links(graph, plan.ranges));
  plan.ranks = {.devices = 1, .replicas = 1, .ranks = 1};

  StageOptions options;
  options.batch = step.batch;
  options.type = DType::BF16;
  options.images = DType::U8;
  options.parameters.rule = UpdateRule::Momentum;
  options.parameters.precision.master = DType::F32;
  Stage stage(graph, plan.ranges[0], options, backend);
  const std::vector<LocalStage> units = {{0, 0, &stage}};
  Executor executor(graph, plan, units, 0);
  const std::int64_t bytes = device::aligned(stage.bytes());
  const device::Arena arena(bytes + executor.bytes());
  stage.bind(arena.at(0));
  stage.parameters().initialise(1);
  const comm::World world;
  const auto transport = comm::make_transport(world, device_memory());
  executor.bind(arena.at(bytes), *transport, world);

  // Bytes that the device scales.
  const std::shared_ptr<const io::Dataset> data =
      io::make_synthetic({.image_shape = graph.input_shape, .classes = 1000, .size = 64});
  io::LoaderOptions loading;
  loading.batch_size = step.batch;
  loading.type = DType::U8;
  loading.threads = 0;
  io::Loader loader(data, io::SampleOrder::shuffled(1, data->size()), loading);
  const std::vector<io::BatchSource*> feeds = {&loader};
  const ExecutionSpace space;
  executor.run(space, {}, feeds);
  const LaunchCounter counter;
  executor.run(space, {}, feeds);
  return LaunchCounter::launches();
}

class LaunchesTest : public testing::TestWithParam<models::NormKind> {};

TEST_P(LaunchesTest, OfAStepOfResNet50AreAtMost300) {
  const Launches launches = launches_of_step({.norm = GetParam()});
  EXPECT_LE(sum_of(launches), 300);
  EXPECT_EQ(launches.at("momentum"), 1);  // the step was not skipped
}

TEST_P(LaunchesTest, DoNotDependOnTheSizeOfImagesAndBatch) {
  EXPECT_EQ(launches_of_step({.norm = GetParam(), .image = 64, .batch = 1}),
            launches_of_step({.norm = GetParam(), .image = 96, .batch = 3}));
}

INSTANTIATE_TEST_SUITE_P(Norms, LaunchesTest,
                         testing::Values(models::NormKind::Batch, models::NormKind::Group),
                         [](const auto& test) {
                           return std::string(test.param == models::NormKind::Batch ? "Batch"
                                                                                    : "Group");
                         });

}  // namespace
}  // namespace millrace::pipeline
