// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/benchmark.hpp"

#include "device/parallel.hpp"
#include "tests/support/test.hpp"
#include "tests/train/small_run.hpp"

namespace millrace::training {
namespace {

using namespace small;

/// Noise that counts the reads of each image.
class CountedDataset final : public NoiseDataset {
 public:
  CountedDataset(const Shape& shape, std::int64_t size)
      : NoiseDataset(shape, -1, size), reads_(static_cast<std::size_t>(size)) {}
  io::Sample read(std::int64_t index, const io::ReadKey& key, std::span<std::uint8_t> image,
                  PixelScaling& scaling) const override {
    if (key.augment) augmented_ = true;
    ++reads_[static_cast<std::size_t>(index)];
    return NoiseDataset::read(index, key, image, scaling);
  }
  [[nodiscard]] std::int64_t reads(std::int64_t index) const {
    return reads_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::int64_t all_reads() const {
    std::int64_t sum = 0;
    for (const auto& reads : reads_) sum += reads;
    return sum;
  }
  [[nodiscard]] bool augmented() const { return augmented_; }

 private:
  mutable std::vector<std::atomic<std::int64_t>> reads_;
  mutable std::atomic<bool> augmented_ = false;
};

/// Micro-batches of two images, read when they are needed.
run::Run measured(const Layout& layout) {
  run::Run config = planned(layout);
  config.data.loader_threads = 0;
  return config;
}

BenchResult bench_of(const run::Run& config, BenchUse use, const BenchLength& length,
                     std::shared_ptr<const io::Dataset> data = nullptr) {
  const comm::World world;
  if (!data) data = std::make_shared<NoiseDataset>(network_of(config).input_shape);
  return bench(config, world, data, use, length);
}

TEST(BenchmarkTest, RunsAndMeasuresExactlyTheStepsThatItIsAskedFor) {
  for (const BenchUse use : {BenchUse::Training, BenchUse::Inference}) {
    const run::Run config = measured({});
    const auto data = std::make_shared<CountedDataset>(network_of(config).input_shape, 500);
    const comm::World world;
    std::vector<std::int64_t> steps;
    std::vector<double> seconds;
    const BenchResult result = bench(config, world, data, use, {.warmup = 2, .steps = 3},
                                     [&](std::int64_t step, double time) {
                                       steps.push_back(step);
                                       if (step >= 2) seconds.push_back(time);
                                     });
    EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
    EXPECT_EQ(result.step_seconds, seconds) << "in the order in which they ran";
    EXPECT_EQ(result.images_per_step, config.total_batch());
    EXPECT_EQ(result.metrics.samples, 3 * config.total_batch());
    EXPECT_EQ(data->all_reads(), 5 * config.total_batch());
    EXPECT_EQ(data->augmented(), use == BenchUse::Training);
  }
}

TEST(BenchmarkTest, InferenceReadsTheImagesInOrderAgainAndAgain) {
  const run::Run config = measured({.batch = 4});  // 16 images a step
  const auto data = std::make_shared<CountedDataset>(network_of(config).input_shape, 40);
  (void)bench_of(config, BenchUse::Inference, {.warmup = 1, .steps = 2}, data);
  for (std::int64_t i = 0; i < 40; ++i) EXPECT_EQ(data->reads(i), i < 8 ? 2 : 1) << i;
}

/// What a validation of `images` sums up, with initial weights.
pipeline::MicroBatchMetrics validated(run::Run config, std::int64_t images) {
  config.data.validation_size = images;
  config.validation_batch_size = config.batch_size;
  const comm::World world;
  Session session(config, Session::Use::Evaluation, world);
  session.allocate();
  session.initialise(config.seed);
  const auto data = std::make_shared<NoiseDataset>(network_of(config).input_shape, -1, images);
  return session.evaluate(session.feeder().validation(data), images,
                          [](std::int64_t) { return false; });
}

// Packed weights stay from step to step; the sums would tell if they were not those of the network.
TEST(BenchmarkTest, InferenceComputesWhatAValidationComputes) {
  for (const Layout& layout :
       {Layout{}, Layout{.type = DType::BF16}, Layout{.stages = 3, .schedule = "1F1B"},
        Layout{.replicas = 2}, Layout{.family = Family::EfficientNet}}) {
    SCOPED_TRACE(name_of(layout));
    run::Run config = measured(layout);
    const std::int64_t images = 3 * config.total_batch();
    const BenchResult result =
        bench_of(config, BenchUse::Inference, {.warmup = 0, .steps = 3},
                 std::make_shared<NoiseDataset>(network_of(config).input_shape, -1, images));
    const pipeline::MicroBatchMetrics expected = validated(config, images);
    EXPECT_EQ(result.metrics.samples, expected.samples);
    EXPECT_DOUBLE_EQ(result.metrics.loss, expected.loss);
    EXPECT_EQ(result.metrics.top1, expected.top1);
    EXPECT_EQ(result.metrics.top5, expected.top5);
  }
}

TEST(BenchmarkTest, InferenceKeepsNoStash) {
  run::Run config = measured({});
  config.validation_batch_size = config.batch_size;
  const comm::World world;
  const Session inference(config, Use::Inference, world);
  const Session training(config, Use::Training, world);
  EXPECT_EQ(inference.arena_bytes(), Session(config, Use::Evaluation, world).arena_bytes());
  const BenchLength one{.warmup = 0, .steps = 1};
  EXPECT_EQ(bench_of(config, BenchUse::Inference, one).arena_bytes, inference.arena_bytes());
  // Of its many layers, inference holds the values of two or three at once.
  EXPECT_LT(4 * inference.device_memory().front().activations,
            training.device_memory().front().activations);
}

TEST(BenchmarkTest, SyntheticImagesStayOnTheDevice) {
  for (const BenchUse use : {BenchUse::Training, BenchUse::Inference}) {
    run::Run config = measured({});
    config.data.source = run::ImageSource::Device;
    const auto data = std::make_shared<CountedDataset>(network_of(config).input_shape, 500);
    const BenchResult result = bench_of(config, use, {.warmup = 1, .steps = 2}, data);
    EXPECT_EQ(result.metrics.samples, 2 * config.total_batch());
    EXPECT_EQ(data->all_reads(), config.batch_size) << "one micro-batch, once";
  }
}

/// Products and calls of the kernels of one name.
report::KernelTime sum_of(const report::KernelTable& table, std::string_view kernel,
                          std::string_view pass = "forward") {
  report::KernelTime sum{.kernel = std::string(kernel), .count = 0.0};
  for (const report::KernelTime& time : table.times) {
    if (time.kernel != kernel || time.pass != pass) continue;
    sum.count += time.count;
    sum.flops += time.flops;
  }
  return sum;
}

TEST(BenchKernelsTest, TheRowsAreTheKernelsOfAStepAndAddUpToIt) {
  for (const Layout& layout :
       {Layout{}, Layout{.replicas = 2},
        Layout{.stages = 3, .schedule = "1F1B", .recompute = true, .type = DType::BF16},
        Layout{.stages = 3, .schedule = "1F1B", .family = Family::EfficientNet}}) {
    SCOPED_TRACE(name_of(layout));
    const run::Run config = measured(layout);
    const models::Graph graph = network_of(config);
    const comm::World world;
    const KernelBenchResult result =
        bench_kernels(config, world, std::make_shared<NoiseDataset>(graph.input_shape),
                      {.warmup = 1, .steps = 3}, {});
    EXPECT_EQ(result.step_seconds.size(), 3u);
    const report::KernelTable& table = result.table;
    double seconds = 0.0;
    for (const report::KernelTime& time : table.times) seconds += time.seconds;
    EXPECT_NEAR(seconds, table.seconds, 1e-9 * table.seconds);
    const auto products = std::ranges::count_if(graph.ops, [](const models::Op& op) {
      return std::holds_alternative<models::Conv>(op.kind) ||
             std::holds_alternative<models::Dense>(op.kind);
    });
    const auto images = static_cast<double>(config.total_batch());
    const double flops = 2.0 * images * static_cast<double>(graph.forward_macs());
    const report::KernelTime forward = sum_of(table, "LinearForward");
    EXPECT_DOUBLE_EQ(forward.count, static_cast<double>(products) * images / 2.0) << "of 2 images";
    EXPECT_NEAR(forward.flops, flops, 1e-9 * flops);
    EXPECT_NEAR(sum_of(table, "LinearBackwardWeight", "backward").flops, flops, 1e-9 * flops);
    EXPECT_EQ(sum_of(table, "LinearForward", "again").count > 0.0, layout.recompute);
    EXPECT_EQ(table.times.back().kernel, "framework");
  }
}

TEST(BenchKernelsTest, AConvolutionHasItsShapeAndItsProducts) {
  const comm::World world;
  const KernelBenchResult result =
      bench_kernels(measured({}), world, std::make_shared<NoiseDataset>(Shape{16, 16, 3}),
                    {.warmup = 0, .steps = 1}, {});
  const auto first = std::ranges::find(result.table.times, "3x3/1 16x16x3 -> 16x16x16",
                                       &report::KernelTime::shape);
  ASSERT_NE(first, result.table.times.end());
  EXPECT_DOUBLE_EQ(first->count, 8.0) << "micro-batches";
  EXPECT_DOUBLE_EQ(first->flops, 8.0 * 2 * (2 * 16 * 16 * 16 * 3 * 3 * 3));
  EXPECT_DOUBLE_EQ(first->bytes, 8.0 * 4 * (2 * 16 * 16 * (3 + 16) + 3 * 3 * 3 * 16));
}

TEST(BenchKernelsTest, ThePeaksAreProductsThenMemory) {
  if (!device::kOnCores) GTEST_SKIP() << "there the peaks are those of another device";
  const std::vector<report::Peak> peaks = measure_peaks(comm::World());
  ASSERT_GE(peaks.size(), 3u);
  EXPECT_EQ(peaks.front().type, DType::F32);
  EXPECT_EQ(peaks[peaks.size() - 2].name, "reading");
  EXPECT_EQ(peaks.back().name, "copying");
  for (const report::Peak& peak : peaks) EXPECT_GT(peak.per_second, 0.0) << peak.name;
}

}  // namespace
}  // namespace millrace::training
