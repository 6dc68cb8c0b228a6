// SPDX-License-Identifier: Apache-2.0
#include "io/data/loader.hpp"

#include <thread>

#include "core/bfloat16.hpp"
#include "core/float16.hpp"
#include "core/random.hpp"
#include "io/data/cifar.hpp"
#include "tests/io/allocation_counter.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/samples.hpp"

namespace millrace::io {
namespace {

constexpr Shape kShape{5, 7, 3};  // sizes that do not divide a vector register

/// Pixels are a function of key and index; samples can be made to fail or to be slow.
class FakeDataset final : public Dataset {
 public:
  explicit FakeDataset(std::int64_t size) : size_(size) {}
  std::vector<std::int64_t> broken;
  std::chrono::microseconds delay{0};
  mutable std::atomic<std::int64_t> reads = 0;

  [[nodiscard]] std::string name() const override { return "fake"; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] Shape image_shape() const override { return kShape; }
  [[nodiscard]] std::int64_t classes() const override { return 1000; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return static_cast<std::int32_t>(index % 1000);
  }
  Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override {
    reads.fetch_add(1);
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    if (std::find(broken.begin(), broken.end(), index) != broken.end())
      throw std::runtime_error("sample " + std::to_string(index));
    const RandomStream stream(key.seed, RandomPurpose::Augment,
                              key.epoch * 2 + (key.augment ? 1 : 0));
    for (std::size_t i = 0; i < image.size(); ++i)
      image[i] = static_cast<std::uint8_t>(stream.block(static_cast<std::uint64_t>(index), i)[0]);
    scaling = {.mean = {100.0f, 110.0f, 120.0f},
               .scale = {0.017f, 0.0171f, 0.0172f},
               .real = {.bottom = kShape.h, .right = kShape.w},
               .erased = {}};
    return Sample::Own;
  }

 private:
  std::int64_t size_;
};

struct Copy {
  std::int64_t first_position;
  std::int64_t count;
  std::vector<std::byte> images;
  std::vector<std::int32_t> labels;
  friend bool operator==(const Copy&, const Copy&) = default;
};

Copy copy_of(const Batch& batch) {
  return {batch.first_position,
          batch.count,
          {batch.images.begin(), batch.images.end()},
          {batch.labels.begin(), batch.labels.end()}};
}

std::vector<Copy> take(Loader& loader, int batches) {
  std::vector<Copy> copies;
  for (int b = 0; b < batches; ++b) {
    const Batch* const batch = loader.next();
    if (batch == nullptr) break;
    copies.push_back(copy_of(*batch));
  }
  return copies;
}

TEST(LoaderTest, BatchesDoNotDependOnTheThreads) {
  const auto dataset = std::make_shared<FakeDataset>(50);
  for (const DType type : {DType::F32, DType::BF16, DType::F16}) {
    std::vector<std::vector<Copy>> runs;
    for (const int threads : {0, 1, 2, 4}) {
      Loader loader(dataset, SampleOrder::shuffled(3, 50),
                    {.batch_size = 8,
                     .type = type,
                     .threads = threads,
                     .batches_ahead = 2,
                     .seed = 11,
                     .augment = true,
                     .first_position = 20});
      runs.push_back(take(loader, 30));  // several epochs, many turns of the ring
      ASSERT_EQ(runs.back().size(), 30u);
    }
    for (std::size_t run = 1; run < runs.size(); ++run) EXPECT_TRUE(runs[run] == runs[0]) << run;
  }
}

/// Batches of the samples of their positions, rounded to nearest.
template <class T>
void expect_samples(DType type) {
  const auto dataset = std::make_shared<FakeDataset>(10);
  const SampleOrder order = SampleOrder::shuffled(5, 10);
  Loader loader(dataset, order,
                {.batch_size = 4,
                 .type = type,
                 .threads = 2,
                 .seed = 6,
                 .augment = true,
                 .first_position = 3});
  for (std::int64_t b = 0; b < 9; ++b) {
    const Batch* const batch = loader.next();
    ASSERT_NE(batch, nullptr);
    EXPECT_EQ(batch->first_position, 3 + 4 * b);
    EXPECT_EQ(batch->count, 4);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(batch->images.data()) % 64, 0u);
    std::vector<T> expected;
    for (std::size_t i = 0; i < 4; ++i) {
      const auto place = order.at(batch->first_position + static_cast<std::int64_t>(i));
      EXPECT_EQ(batch->labels[i], dataset->label(place.index));
      EXPECT_EQ(batch->indices[i], place.index);
      for (const float value :
           image_of(*dataset, place.index, {.seed = 6, .epoch = place.epoch, .augment = true}))
        expected.push_back(store_as<T>(value));
    }
    EXPECT_TRUE(std::ranges::equal(batch->images, std::as_bytes(std::span(expected))));
  }
}

TEST(LoaderTest, BatchesHoldTheSamplesOfTheirPositions) {
  expect_samples<float>(DType::F32);
  expect_samples<bfloat16>(DType::BF16);
  expect_samples<float16>(DType::F16);
}

TEST(LoaderTest, ImagesThatAreOnTheDeviceAreNotRead) {
  const auto dataset = std::make_shared<FakeDataset>(10);
  const SampleOrder order = SampleOrder::shuffled(5, 10);
  const std::vector<std::byte> device(2 * static_cast<std::size_t>(kShape.elements()));
  ResidentImages resident{.images = device.data(), .scaling = {}};
  resident.scaling.mean[0] = 7.0f;
  Loader loader(dataset, order, {.batch_size = 2, .type = DType::U8, .resident = resident});
  for (std::int64_t b = 0; b < 12; ++b) {
    const Batch* const batch = loader.next();
    ASSERT_NE(batch, nullptr);
    EXPECT_TRUE(batch->on_device);
    EXPECT_EQ(batch->images.data(), device.data());
    EXPECT_EQ(batch->images.size(), device.size());
    ASSERT_EQ(batch->scaling.size(), 2u);
    EXPECT_EQ(batch->scaling[1].mean[0], 7.0f);
    EXPECT_EQ(batch->labels[1], dataset->label(order.at(2 * b + 1).index));
  }
  EXPECT_EQ(dataset->reads, 0);
}

TEST(LoaderTest, ImagesAreStoredInTheGivenMemory) {
  const auto dataset = std::make_shared<FakeDataset>(10);
  std::vector<std::shared_ptr<std::byte>> given;
  const HostMemory memory = [&given](std::size_t bytes) {
    return given.emplace_back(new std::byte[bytes], [](std::byte* p) { delete[] p; });
  };
  {
    Loader loader(dataset, SampleOrder::sequential(10), {.batch_size = 3, .memory = memory});
    const Batch* const batch = loader.next();
    ASSERT_EQ(given.size(), 5u);
    EXPECT_EQ(batch->images.data(), given[0].get());
    EXPECT_FALSE(batch->on_device);
  }
  for (const auto& buffer : given) EXPECT_EQ(buffer.use_count(), 1);
}

/// A generated set of 64 images as CIFAR-10.
std::shared_ptr<const Dataset> noise_set(const TemporaryDirectory& folder) {
  const RandomStream stream(6, RandomPurpose::GeneratedData);
  std::vector<std::uint8_t> records(64 * 3073);
  for (std::size_t i = 0; i < records.size(); ++i)
    records[i] = static_cast<std::uint8_t>(i % 3073 == 0 ? i / 3073 % 10 : stream.block(0, i)[0]);
  write_bytes(folder / "data_batch_1.bin", records);
  return open_cifar(folder.path(), {});
}

TEST(LoaderTest, BytesTakeAQuarterAndBecomeTheSameImages) {
  const TemporaryDirectory folder;
  const std::shared_ptr<const Dataset> dataset = noise_set(folder);
  for (const int threads : {0, 3}) {
    LoaderOptions options{.batch_size = 16, .threads = threads, .seed = 2, .augment = true};
    Loader floats(dataset, SampleOrder::shuffled(1, 64), options);
    options.type = DType::U8;
    Loader bytes(dataset, SampleOrder::shuffled(1, 64), options);
    for (int b = 0; b < 9; ++b) {
      const Batch* const expected = floats.next();
      const Batch* const batch = bytes.next();
      ASSERT_EQ(batch->images.size() * 4, expected->images.size());
      ASSERT_EQ(batch->scaling.size(), 16u);
      EXPECT_TRUE(expected->scaling.empty());
      EXPECT_TRUE(std::equal(batch->labels.begin(), batch->labels.end(), expected->labels.begin()));
      std::vector<float> image(3072);
      for (std::size_t n = 0; n < 16; ++n) {
        const auto* pixels = reinterpret_cast<const std::uint8_t*>(batch->images.data());
        normalise_bytes<float>({pixels + n * 3072, 3072}, batch->scaling[n], {32, 32, 3}, image);
        const auto wanted = expected->images.subspan(n * 3072 * 4, 3072 * 4);
        ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(image)), wanted));
      }
    }
  }
}

TEST(LoaderTest, PaddingOfBytesBecomesZeros) {
  const TemporaryDirectory folder;
  Loader loader(noise_set(folder), SampleOrder::sequential(64),
                {.batch_size = 48, .type = DType::U8, .threads = 2, .end_position = 64});
  (void)loader.next();
  const Batch* const last = loader.next();
  ASSERT_EQ(last->count, 16);
  for (std::size_t n = 0; n < 48; ++n) {
    EXPECT_EQ(last->scaling[n].real.pixels(), n < 16 ? 1024 : 0) << n;
    EXPECT_EQ(last->labels[n] < 0, n >= 16);
  }
}

TEST(LoaderTest, MixingDependsOnPositionsNotOnContent) {
  const auto dataset = std::make_shared<FakeDataset>(50);
  const MixingConfig mixing{.mixup_alpha = 0.4, .cutmix_lambda = 0.5};
  for (const int threads : {0, 2}) {
    for (const Content content : {Content::Both, Content::Images, Content::Labels}) {
      Loader loader(dataset, SampleOrder::shuffled(3, 50),
                    {.batch_size = 6,
                     .threads = threads,
                     .seed = 9,
                     .first_position = 12,
                     .replicas = 2,
                     .replica = 1,
                     .content = content,
                     .mixing = mixing});
      for (std::int64_t b = 0; b < 15; ++b) {
        const Batch* const batch = loader.next();
        ASSERT_EQ(batch->first_position, 12 + 6 * (2 * b + 1));
        ASSERT_EQ(batch->mixing.size(), 6u);
        for (std::int64_t n = 0; n < 6; ++n)
          EXPECT_EQ(batch->mixing[static_cast<std::size_t>(n)],
                    draw_mixing(mixing, 9, batch->first_position + n, n, 6, kShape));
      }
    }
  }
}

TEST(LoaderTest, TheLastBatchIsPaddedWithZeros) {
  const auto dataset = std::make_shared<FakeDataset>(10);
  for (const int threads : {0, 1, 2, 3}) {
    Loader loader(dataset, SampleOrder::sequential(10),
                  {.batch_size = 4, .threads = threads, .batches_ahead = 1, .end_position = 10});
    ASSERT_EQ(take(loader, 2).size(), 2u);
    const Batch* const last = loader.next();
    ASSERT_NE(last, nullptr);
    EXPECT_EQ(last->first_position, 8);
    EXPECT_EQ(last->count, 2);
    EXPECT_TRUE(std::ranges::equal(last->labels, std::array{8, 9, -1, -1}));
    const auto none = [](std::byte b) { return b == std::byte{0}; };
    const auto half = last->images.size() / 2;
    EXPECT_FALSE(std::ranges::all_of(last->images.first(half), none));
    EXPECT_TRUE(std::ranges::all_of(last->images.subspan(half), none));
    EXPECT_EQ(loader.next(), nullptr);
    EXPECT_EQ(loader.next(), nullptr);
    Loader empty(dataset, SampleOrder::sequential(10),
                 {.batch_size = 4, .threads = threads, .first_position = 6, .end_position = 6});
    EXPECT_EQ(empty.next(), nullptr);
  }
  EXPECT_EQ(dataset->reads.load(), 4 * 10);
}

TEST(LoaderTest, ErrorsComeWithTheirBatch) {
  const auto dataset = std::make_shared<FakeDataset>(40);
  dataset->broken = {13, 9, 22};
  for (const int threads : {0, 1, 4}) {
    Loader loader(dataset, SampleOrder::sequential(40),
                  {.batch_size = 8, .threads = threads, .batches_ahead = 3});
    ASSERT_NE(loader.next(), nullptr);
    for (int repeat = 0; repeat < 2; ++repeat) {
      try {
        (void)loader.next();
        FAIL() << "no error";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "sample 9");
      }
    }
  }
}

TEST(LoaderTest, ABatchStaysUntilTheNextIsAsked) {
  const auto dataset = std::make_shared<FakeDataset>(64);
  Loader loader(dataset, SampleOrder::shuffled(1, 64),
                {.batch_size = 4, .threads = 2, .batches_ahead = 1, .augment = true});
  for (int b = 0; b < 20; ++b) {
    const Batch* const batch = loader.next();
    ASSERT_NE(batch, nullptr);
    const Copy before = copy_of(*batch);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // let the threads reach the limit
    EXPECT_TRUE(copy_of(*batch) == before);
  }
}

TEST(LoaderTest, ReadsNoFurtherAheadThanAsked) {
  const auto dataset = std::make_shared<FakeDataset>(1000);
  Loader loader(dataset, SampleOrder::sequential(1000),
                {.batch_size = 2, .threads = 2, .batches_ahead = 3});
  ASSERT_NE(loader.next(), nullptr);
  // One batch in use and three ahead. Waits for them, and then a little longer for any excess.
  while (dataset->reads.load() < 8) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(dataset->reads.load(), 8);
}

TEST(LoaderTest, EndsInTheMiddleOfABatch) {
  const auto dataset = std::make_shared<FakeDataset>(1000);
  dataset->delay = std::chrono::milliseconds(5);
  {
    const Loader loader(dataset, SampleOrder::sequential(1000),
                        {.batch_size = 200, .threads = 2, .batches_ahead = 2});
  }
  // The two claims would be 400 samples, a second of sleeping each.
  EXPECT_LT(dataset->reads.load(), 200);
}

TEST(LoaderTest, CanBeMovedWhileItReads) {
  const auto dataset = std::make_shared<FakeDataset>(30);
  const LoaderOptions options{.batch_size = 5, .threads = 2, .end_position = 30};
  Loader first(dataset, SampleOrder::sequential(30), options);
  ASSERT_NE(first.next(), nullptr);
  Loader second(std::move(first));
  EXPECT_EQ(take(second, 100).size(), 5u);
  second = Loader(dataset, SampleOrder::sequential(30), options);
  EXPECT_EQ(take(second, 100).size(), 6u);
}

TEST(LoaderTest, NothingIsAllocatedInSteadyState) {
  const TemporaryDirectory folder;
  const std::shared_ptr<const Dataset> dataset = noise_set(folder);
  for (const DType type : {DType::F32, DType::BF16, DType::U8}) {
    for (const int threads : {0, 2}) {
      Loader loader(dataset, SampleOrder::shuffled(1, 64),
                    {.batch_size = 16,
                     .type = type,
                     .threads = threads,
                     .augment = true,
                     .mixing = {.mixup_alpha = 0.2, .cutmix_lambda = 0.5}});
      for (int b = 0; b < 20; ++b) ASSERT_NE(loader.next(), nullptr);
      const std::int64_t before = allocation_count();
      for (int b = 0; b < 200; ++b)
        if (loader.next() == nullptr) std::abort();
      EXPECT_EQ(allocation_count(), before) << threads << " threads";
    }
  }
  EXPECT_GT(allocation_count(), 0);  // the counter counts
}

TEST(LoaderTest, ImpossibleOptionsAreRefused) {
  const auto dataset = std::make_shared<FakeDataset>(10);
  const auto open = [&](const LoaderOptions& options) {
    return [&dataset, options] { Loader(dataset, SampleOrder::sequential(10), options); };
  };
  expect_error(ErrorKind::Config, {"batch size 0", "5x7x3", "1 .. "}, open({.batch_size = 0}));
  expect_error(ErrorKind::Config, {"batch size"}, open({.batch_size = INT64_MAX / 2}));
  expect_error(ErrorKind::Config, {"-1 reading threads"}, open({.threads = -1}));
  expect_error(ErrorKind::Config, {"0 batches ahead"}, open({.batches_ahead = 0}));
  expect_error(ErrorKind::Internal, {"type"}, open({.type = DType::I32}));
  expect_error(ErrorKind::Config, {"`batch-size` is 1"}, open({.mixing = {.mixup_alpha = 0.2}}));
  expect_error(ErrorKind::Internal, {"end_position"},
               open({.batch_size = 2, .end_position = 8, .mixing = {.mixup_alpha = 0.2}}));
  expect_error(ErrorKind::Internal, {"end_position"},
               open({.first_position = 5, .end_position = 4}));
  expect_error(ErrorKind::Internal, {"order.size()"},
               [&] { Loader(dataset, SampleOrder::sequential(11), {}); });
}

}  // namespace
}  // namespace millrace::io
