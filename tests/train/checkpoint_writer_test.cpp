// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_writer.hpp"

#include <future>
#include <thread>

#include "core/error.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/train/small_run.hpp"

namespace millrace::training {
namespace {

/// A small training with its own checkpoint directory. A writing thread can be made to wait or to
/// fail.
class CheckpointWriterTest : public testing::Test {
 protected:
  CheckpointWriter::Hooks hooks() {
    return {.before =
                [this](const Snapshot&, const io::CheckpointHeader&) {
                  if (hold_.valid()) hold_.wait();
                  if (failing_) fail(ErrorKind::Io, "the disk is full");
                },
            .saved = [this](const fs::path& path) { saved_.push_back(path.filename().string()); },
            .waiting = [this](bool own) { waited_ += own ? 1 : 0; }};
  }

  [[nodiscard]] io::CheckpointHeader header() const { return training_.header(); }
  void step() { (void)training_.step(); }
  [[nodiscard]] std::string digest() const { return training_.digest(); }
  [[nodiscard]] std::string digest_of(const std::string& name) const {
    return io::digest(io::CheckpointReader(directory_ / name));
  }
  /// Number of names in the directory, including temporary ones.
  [[nodiscard]] std::int64_t entries() const {
    return std::distance(fs::directory_iterator(directory_.path()), fs::directory_iterator());
  }

  const comm::World world_;
  test::TemporaryDirectory directory_;
  small::Training training_{small::planned({}), world_};
  bool failing_ = false;
  std::atomic<int> waited_{0};
  std::shared_future<void> hold_;
  std::vector<std::string> saved_;
  CheckpointWriter writer_{world_, training_.session(), directory_.path(), hooks()};
};

TEST_F(CheckpointWriterTest, WhatIsWrittenIsWhatWasThereWhenItBegan) {
  std::promise<void> go;
  hold_ = go.get_future().share();
  step();
  const std::string expected = digest();
  writer_.begin(header(), {});
  for (int i = 0; i < 3; ++i) {  // the thread has written nothing yet
    step();
    EXPECT_NE(writer_.progress(), 0);
    writer_.advance(writer_.progress());
  }
  EXPECT_TRUE(saved_.empty());
  EXPECT_NE(digest(), expected);
  go.set_value();
  writer_.settle();
  EXPECT_EQ(saved_, std::vector<std::string>{"ckpt-1"});
  EXPECT_EQ(digest_of("ckpt-1"), expected);
  EXPECT_EQ(entries(), 1);
}

TEST_F(CheckpointWriterTest, AdvancingAtTheBordersOfStepsIsEnough) {
  writer_.begin(header(), {});
  for (int i = 0; i < 10'000 && saved_.empty(); ++i) {
    writer_.advance(writer_.progress());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(saved_, std::vector<std::string>{"ckpt-0"});
  ASSERT_EQ(writer_.costs().size(), 1u);
  EXPECT_GT(writer_.costs()[0].bytes, 0);
}

TEST_F(CheckpointWriterTest, TheNextOneWaitsForTheOneBefore) {
  std::vector<std::string> digests;
  for (int i = 0; i < 4; ++i) {
    step();
    digests.push_back(digest());
    writer_.begin(header(), {});
  }
  writer_.settle();
  EXPECT_EQ(saved_, (std::vector<std::string>{"ckpt-1", "ckpt-2", "ckpt-3", "ckpt-4"}));
  for (std::size_t i = 0; i < digests.size(); ++i) EXPECT_EQ(digest_of(saved_[i]), digests[i]);
}

TEST_F(CheckpointWriterTest, WhoeverWaitsForItHearsOfItNowAndThen) {
  std::promise<void> go;
  hold_ = go.get_future().share();
  writer_.begin(header(), {});
  const std::jthread later([&] {
    while (waited_ < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    go.set_value();
  });
  writer_.settle();
  EXPECT_GE(waited_, 3);
  EXPECT_EQ(saved_, std::vector<std::string>{"ckpt-0"});
}

TEST_F(CheckpointWriterTest, WhatFailsInTheThreadIsThrownAtABorderAndLeavesNothing) {
  failing_ = true;
  writer_.begin(header(), {});
  expect_error(ErrorKind::Io, "the disk is full", [&] { writer_.settle(); });
  EXPECT_EQ(entries(), 0);
  writer_.settle();  // no checkpoint is being written any more
  failing_ = false;
  writer_.begin(header(), {});
  writer_.settle();
  EXPECT_EQ(saved_, std::vector<std::string>{"ckpt-0"});
}

TEST_F(CheckpointWriterTest, AnEndOfTheRunWaitsForTheThread) {
  {
    CheckpointWriter writer(world_, training_.session(), directory_.path(), hooks());
    writer.begin(header(), {});
  }
  EXPECT_EQ(digest_of("ckpt-0"), digest());
  EXPECT_EQ(entries(), 1);
}

// Young 1974: a cost of one second and one failure a day give 416 s.
TEST(CheckpointCostTest, TheBestIntervalIsYoungs) {
  EXPECT_NEAR(best_interval({.waited_seconds = 0.25, .busy_seconds = 0.75}, 86400.0), 415.7, 0.1);
}

TEST(CheckpointCostTest, IsDescribedByMediansOfAllButTheFirst) {
  const CheckpointCost first{
      .bytes = 1, .waited_seconds = 9.0, .written_seconds = 90.0, .busy_seconds = 9.0};
  CheckpointCost usual{
      .bytes = 204'000'000, .waited_seconds = 0.04, .written_seconds = 0.7, .busy_seconds = 0.46};
  CheckpointCost odd = usual;
  odd.waited_seconds = 5.0;
  EXPECT_EQ(describe(std::vector{first}, 1e6), "");
  const std::string costs =
      "Checkpoints: 4, 204 MB each on rank 0; training waited 40 ms for each, writing took another "
      "0.70 s";
  EXPECT_EQ(describe(std::vector{first, usual, usual, odd}, 3500.0), costs);
  EXPECT_EQ(
      describe(std::vector{first, usual, usual, odd}, 3600.0),
      costs +
          ". With one failure a day, `checkpoint-every` 4.9minutes loses the least time (Young)");
  usual.waited_seconds = usual.busy_seconds = 0.001;
  EXPECT_NE(describe(std::vector{first, usual, usual}, 3600.0).find(" 1minutes loses"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::training
