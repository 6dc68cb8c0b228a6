// SPDX-License-Identifier: Apache-2.0
//
// The kernels that one training step launches, by label. Each costs an accelerator a few
// microseconds of its step, whatever it computes; ResNet-20 on images of 32 x 32 does little else.
// And how many launches a host has to make where it goes ahead of the device. Part of the preset
// fake-device only.
//
// Linear ops are those of a vendor that stands in for cuDNN: its library calls fill their results
// with a constant, and beside them it does what src/ops/cudnn/linear_op.cpp does: it leaves weight
// gradients to be added to their sums over micro-batches, because the library has no float32
// result, and launches the sums of a bias' gradient. What the library itself launches is not
// counted.
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
            .reads_kernel = true,
            .left_gradient = shape_.kernel_elements() * size_of(type_)};
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
    const bool leaves = memory_.left_gradient != nullptr;
    std::byte* const part = leaves ? memory_.left_gradient : memory_.scratch;
    fill(space, part, shape_.kernel_elements() * size_of(type_));
    device::dispatch(type_, [&]<class T>() {
      if (!leaves)
        ops::accumulate(space, memory_.dkernel, reinterpret_cast<const T*>(part),
                        shape_.kernel_elements(), first);
      if (shape_.bias)
        ops::add_channel_sums(space, memory_.dbias, reinterpret_cast<float*>(memory_.scratch),
                              reinterpret_cast<const T*>(dy),
                              shape_.window.batch * shape_.window.out.pixels(), shape_.window.out.c,
                              first);
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
  std::string size = "50";
  models::NormKind norm = models::NormKind::Batch;
  std::int64_t image = 224;
  std::int64_t batch = 2;
  std::int32_t micro_batches = 1;
  std::string family = "resnet";
};

models::Graph graph_of(const StepCase& step) {
  const bool small = step.size == "20";
  models::ModelOptions model =
      models::default_options(step.family, small ? models::Task::Cifar : models::Task::ImageNet);
  model.size = step.size;
  model.norm = step.norm;
  model.image = {step.image, step.image, 3};
  models::Graph graph = models::build_model(model);
  if (!small)
    store_images(graph, step.batch, [](const ops::ConvShape& first) {
      return ops::Backend().stored_image(first, DType::BF16);
    });
  return graph;
}

PipelinePlan plan_of(const StepCase& step, const models::Graph& graph) {
  PipelinePlan plan;
  plan.ranges = {whole(graph)};
  ScheduleRequest request;
  request.devices = 1;
  request.micro_batches = step.micro_batches;
  plan.schedule = with_communication(generate(request), links(graph, plan.ranges));
  plan.ranks = {.devices = 1, .replicas = 1, .ranks = 1};
  return plan;
}

StageOptions options_of(const StepCase& step) {
  StageOptions options;
  options.batch = step.batch;
  options.type = DType::BF16;
  options.images = DType::U8;
  options.parameters.rule = UpdateRule::Momentum;
  options.parameters.precision.master = DType::F32;
  return options;
}

/// Brings images to the device before anybody asks for them, to one of two places in turns.
class OnDevice final : public io::BatchSource {
 public:
  explicit OnDevice(io::Loader& loader, std::int64_t bytes)
      : loader_(loader), bytes_(device::aligned(bytes)), arena_(2 * bytes_) {}
  [[nodiscard]] const io::Batch* next() override {
    batch_ = *loader_.next();
    std::byte* const to = arena_.at(at_ = bytes_ - at_);
    device::copy_to_device(to, batch_.images.data(), std::ssize(batch_.images));
    batch_.images = {to, batch_.images.size()};
    batch_.on_device = true;
    return &batch_;
  }
  [[nodiscard]] std::int64_t stand_ins() const override { return 0; }

 private:
  io::Loader& loader_;
  std::int64_t bytes_;
  std::int64_t at_ = 0;
  device::Arena arena_;
  io::Batch batch_;
};

/// A network on one device.
class Trained {
 public:
  explicit Trained(const StepCase& step)
      : graph_(graph_of(step)),
        plan_(plan_of(step, graph_)),
        stage_(graph_, plan_.ranges[0], options_of(step), backend_),
        executor_(graph_, plan_, units_, 0),
        arena_(device::aligned(stage_.bytes()) + executor_.bytes()),
        transport_(comm::make_transport(world_, device_memory())),
        data_(io::make_synthetic({.image_shape = graph_.input_shape, .classes = 10, .size = 64})),
        loader_(data_, io::SampleOrder::shuffled(1, data_->size()),
                {.batch_size = step.batch, .type = DType::U8, .threads = 0}),
        images_(loader_, step.batch * graph_.input_shape.elements()) {
    stage_.bind(arena_.at(0));
    stage_.parameters().initialise(1);
    executor_.bind(arena_.at(device::aligned(stage_.bytes())), *transport_, world_);
  }
  void run() { executor_.run(space_, {}, feeds_); }
  void queue() { executor_.queue(space_, {}, feeds_); }
  [[nodiscard]] Executor& executor() { return executor_; }

 private:
  models::Graph graph_;
  PipelinePlan plan_;
  ops::Backend backend_{std::make_unique<Library>()};
  Stage stage_;
  std::vector<LocalStage> units_ = {{0, 0, &stage_}};
  Executor executor_;
  device::Arena arena_;
  comm::World world_;
  std::unique_ptr<comm::Transport> transport_;
  std::shared_ptr<const io::Dataset> data_;
  io::Loader loader_;
  OnDevice images_;
  std::vector<io::BatchSource*> feeds_ = {&images_};
  ExecutionSpace space_;
};

/// The launches of one step, after one that fills caches.
Launches launches_of_step(const StepCase& step) {
  Trained trained(step);
  trained.run();
  const LaunchCounter counter;
  trained.run();
  EXPECT_GE(sum_of(LaunchCounter::launches()), 50) << "nobody counts";
  return LaunchCounter::launches();
}

class LaunchesTest : public testing::TestWithParam<models::NormKind> {};

TEST_P(LaunchesTest, OfAStepOfResNet50DoNotGrow) {
  const Launches launches = launches_of_step({.norm = GetParam()});
  EXPECT_LE(sum_of(launches), 238);
  EXPECT_EQ(launches.at("momentum"), 1);  // the step was not skipped
}

TEST_P(LaunchesTest, DoNotDependOnTheSizeOfImagesAndBatch) {
  EXPECT_EQ(launches_of_step({.norm = GetParam(), .image = 64, .batch = 1}),
            launches_of_step({.norm = GetParam(), .image = 96, .batch = 3}));
}

TEST(SmallLaunchesTest, OfAStepOfResNet20DoNotGrow) {
  EXPECT_LE(sum_of(launches_of_step({.size = "20", .image = 32})), 93);
}

// Each of the 16 blocks has one launch forward, and backward one for activations and one for
// weights, or one more where its memory is not free.
TEST(SmallLaunchesTest, OfExcitationAreThreeOrFourABlock) {
  const Launches launches = launches_of_step({.size = "B0", .image = 64, .family = "efficientnet"});
  EXPECT_EQ(launches.at("one pixel"), 16);
  EXPECT_EQ(launches.at("one pixel dw"), 16);
  EXPECT_GE(launches.at("one pixel dx"), 16);
  EXPECT_LE(launches.at("one pixel dx"), 32);
  EXPECT_EQ(launches.count("activation") + launches.count("activation dx"), 0);
  EXPECT_LE(sum_of(launches), 319);
  EXPECT_EQ(launches.count("joined sums"), 0);  // that of the last layer's bias has few rows
}

// The host makes one launch a step, or one for each micro-batch, whose images it waits for.
TEST(SmallLaunchesTest, OfAHostThatGoesAheadAreOneForEachMicroBatch) {
  for (const std::int32_t micro_batches : {1, 3}) {
    Trained trained({.size = "20", .image = 32, .micro_batches = micro_batches});
    ASSERT_TRUE(trained.executor().goes_ahead());
    trained.queue();
    for (int step = 0; step < 5; ++step) {
      trained.queue();
      trained.executor().finish();
    }
    trained.executor().finish();
    EXPECT_EQ(trained.executor().kept().kept, 2 * micro_batches);  // of the two turns
    EXPECT_EQ(trained.executor().kept().refused, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Norms, LaunchesTest,
                         testing::Values(models::NormKind::Batch, models::NormKind::Group),
                         [](const auto& test) {
                           return std::string(test.param == models::NormKind::Batch ? "Batch"
                                                                                    : "Group");
                         });

}  // namespace
}  // namespace millrace::pipeline
