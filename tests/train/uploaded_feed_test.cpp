// SPDX-License-Identifier: Apache-2.0
//
// Batches on their way to the device. On cores the copies are done at once; on the fake device
// every other one comes too early or too late for whoever does not keep to the rules.
#include "train/feeder.hpp"

#include <Kokkos_Core.hpp>

#include "device/arena.hpp"
#include "device/queues.hpp"
#include "tests/support/test.hpp"

namespace millrace::training {
namespace {

constexpr std::int64_t kBytes = 100;

/// Batch k has bytes and labels k, in memory that the next call writes again.
class Counted final : public io::BatchSource {
 public:
  explicit Counted(int batches, int broken = -1) : batches_(batches), broken_(broken) {}

  const io::Batch* next() override {
    const int k = read_++;
    if (k == broken_) throw std::runtime_error("batch is broken");
    std::fill_n(images_.get(), kBytes, static_cast<std::byte>(k));
    labels_.assign(3, k);
    mixing_.assign(2, {});
    if (k >= batches_) return nullptr;
    batch_.first_position = k;
    batch_.count = 3;
    batch_.images = {images_.get(), kBytes};
    batch_.labels = labels_;
    batch_.mixing = mixing_;
    batch_.stand_ins = 1;
    return &batch_;
  }
  std::int64_t stand_ins() const override { return read_; }

 private:
  std::shared_ptr<std::byte> images_ = device::host_buffer(kBytes);
  std::vector<std::int32_t> labels_;
  std::vector<ImageMixing> mixing_;
  io::Batch batch_;
  int batches_;
  int broken_;
  int read_ = 0;
};

class UploadedFeedTest : public testing::Test {
 protected:
  static constexpr int kBatches = 7;
  static constexpr std::int64_t kStep = 128;  ///< bytes between the batches that a program read

  /// Expects batch k. A kernel of a program reads it when the device gets to it.
  void read(UploadedFeed& feed, int k) {
    const io::Batch* const batch = feed.next();
    ASSERT_NE(batch, nullptr);
    ASSERT_TRUE(batch->on_device);
    EXPECT_EQ(batch->first_position, k);
    EXPECT_TRUE(std::ranges::equal(batch->labels, std::vector<std::int32_t>(3, k)));
    EXPECT_EQ(batch->mixing.size(), 2u);
    EXPECT_TRUE(batch->scaling.empty());
    device::queue_copy(device::ExecutionSpace(), device::Direction::Within, program_.at(k * kStep),
                       batch->images.data(), std::ssize(batch->images));
    EXPECT_EQ(feed.stand_ins(), k + 1);
  }
  /// What the program read as batch k. Waits for the device.
  std::vector<std::byte> seen(int k) {
    std::vector<std::byte> bytes(kBytes);
    device::copy_to_host(bytes.data(), program_.at(k * kStep), kBytes);
    return bytes;
  }

  device::Arena memory_{UploadedFeed::bytes(kBytes)};
  device::Arena program_{kBatches * kStep};
};

TEST_F(UploadedFeedTest, HandsOutTheBatchesOfItsSource) {
  UploadedFeed feed(std::make_unique<Counted>(kBatches), memory_.at(0), kBytes);
  for (int k = 0; k < kBatches; ++k) read(feed, k);
  EXPECT_EQ(feed.next(), nullptr);
  EXPECT_EQ(feed.next(), nullptr);
  for (int k = 0; k < kBatches; ++k)
    EXPECT_EQ(seen(k), std::vector<std::byte>(kBytes, std::byte(k))) << k;
}

// The batch after the last one that a training uses may be broken.
TEST_F(UploadedFeedTest, ReportsAnErrorForTheBatchThatHasIt) {
  UploadedFeed feed(std::make_unique<Counted>(kBatches, 2), memory_.at(0), kBytes);
  read(feed, 0);
  read(feed, 1);
  EXPECT_THROW((void)feed.next(), std::runtime_error);
}

}  // namespace
}  // namespace millrace::training
