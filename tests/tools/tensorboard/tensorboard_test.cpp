// SPDX-License-Identifier: Apache-2.0
//
// The event files of whole runs.
#include "job.hpp"
#include "run_tables.hpp"
#include "support/event_reader.hpp"

namespace millrace::test {
namespace {

std::vector<std::int64_t> steps_of(const Events& events, const std::string& tag) {
  std::vector<std::int64_t> steps;
  const auto found = events.scalars.find(tag);
  if (found == events.scalars.end()) return steps;
  for (const Point& point : found->second) steps.push_back(point.step);
  return steps;
}

/// The iterations in a CSV file of the run.
std::vector<std::int64_t> rows_of(const fs::path& file) {
  std::vector<std::int64_t> rows;
  for (const double row : Table(file)["iteration"]) rows.push_back(std::llround(row));
  return rows;
}

constexpr const char* kTwoEpochs = "--epochs 2 --logs-per-epoch 3 --validation-mode all";

void expect_files_of_csv(const fs::path& run) {
  const Events training = read_events(run);
  for (const char* tag : {"train_loss", "train_accuracy", "train_accuracy_top_5", "learning_rate",
                          "images_per_second", "steps_per_second", "loss_scale"})
    EXPECT_EQ(steps_of(training, tag), rows_of(run / "training.csv")) << tag;
  const Events validation = read_events(run / "eval");
  for (const char* tag : {"test_loss", "test_accuracy", "test_accuracy_5"})
    EXPECT_EQ(steps_of(validation, tag), rows_of(run / "validation.csv")) << tag;
  const std::vector<double> losses = Table(run / "training.csv")["loss_batch"];
  ASSERT_EQ(training.scalars.at("train_loss").size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_FLOAT_EQ(training.scalars.at("train_loss")[i].value, static_cast<float>(losses[i]));
  const double accuracy = Table(run / "validation.csv").last("val_acc");
  EXPECT_FLOAT_EQ(validation.scalars.at("test_accuracy").back().value,
                  static_cast<float>(accuracy / 100.0));
}

TEST(TensorBoardTest, NothingIsWrittenUnlessAsked) {
  const TemporaryDirectory directory;
  expect_end(train(directory / "run", kTwoEpochs), 0);
  EXPECT_TRUE(event_files_in(directory / "run").empty());
  EXPECT_FALSE(fs::exists(directory / "run" / "eval"));
  expect_end(millrace(small_training() + Words("--no-logs --enable-tensorboard")), 2,
             {"--enable-tensorboard has no effect here: it needs a run directory (no --no-logs)"});
}

TEST(TensorBoardTest, EventsAreThoseOfTheLogs) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(train(run, Words{kTwoEpochs} + "--enable-tensorboard"), 0);
  expect_files_of_csv(run);
  const Events events = read_events(run);
  EXPECT_EQ(steps_of(events, "time_to_train"), std::vector<std::int64_t>{20});
  EXPECT_GE(events.scalars.at("time_to_train").back().value,
            Table(run / "training.csv").last("total_time"));
  EXPECT_TRUE(events.plugins.contains("_hparams_/session_start_info"));
  EXPECT_TRUE(events.plugins.contains("_hparams_/session_end_info"));
}

// A pipeline, killed between two checkpoints.
TEST(TensorBoardTest, ARunThatWasKilledHasNoGapAndNoStepTwice) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const Words more =
      "--epochs 3 --log-freq 1 --checkpoint-every 7 --enable-tensorboard --shards 2 "
      "--ranks 2 --pipeline-splits b2/0/relu";
  Job job(usual_training(run, more));
  ASSERT_TRUE(job.wait_for("iteration:     17,")) << job.output();
  const pid_t leader = process_of_rank(run, 0);
  ASSERT_GT(leader, 0);
  kill(leader, SIGKILL);
  (void)job.wait();
  const std::vector<std::int64_t> killed = steps_of(read_events(run), "train_loss");
  ASSERT_GE(killed.size(), 17u);  // readable up to its last row
  expect_end(restore(run), 0);
  expect_files_of_csv(run);
  EXPECT_EQ(steps_of(read_events(run), "train_loss").size(), 30u);
  EXPECT_EQ(event_files_in(run).size(), 2u);
  ASSERT_EQ(read_events(run).restarts.size(), 1u);
}

TEST(TensorBoardTest, TheIntervalIsThatOfTheOption) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(train(run, "--epochs 1 --summary-every 4 --no-validation"), 0);
  EXPECT_EQ(steps_of(read_events(run), "train_accuracy"), (std::vector<std::int64_t>{4, 8}));
  EXPECT_FALSE(fs::exists(run / "eval"));
}

// Needs `pip install tensorboard`, in the environment of python3 or of MILLRACE_TEST_PYTHON.
TEST(TensorBoardTest, ItsOwnReaderFindsEveryNumber) {
  const char* const given = std::getenv("MILLRACE_TEST_PYTHON");
  const std::string python = given != nullptr ? given : "/usr/bin/python3";
  const std::string reader =
      std::string(MILLRACE_SOURCE_DIR) + "/tests/support/read_tensorboard.py";
  if (!fs::exists(python)) GTEST_SKIP() << "needs " << python;
  constexpr int kNotInstalled = 77;
  if (run_process(python, {reader, "."}).code == kNotInstalled)
    GTEST_SKIP() << python
                 << " has no TensorBoard: install it from PyPI to compare with its reader";
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(train(run, Words{kTwoEpochs} + "--stop-after 12 --enable-tensorboard"), 75);
  expect_end(restore(run), 0);
  std::string steps;
  for (const std::int64_t row : rows_of(run / "training.csv")) steps += ' ' + std::to_string(row);
  expect_end(
      run_process(python, {reader, run}), 0,
      {"train: train_loss" + steps + "\n", "train: learning_rate" + steps + "\n",
       "eval: test_accuracy 10 20\n", "eval: test_accuracy_5 10 20\n", "hparam: batch_size 32.0\n",
       "hparam: model resnet-8\n", "hparam: augment True\n", "hparam status: 1\n"});
}

}  // namespace
}  // namespace millrace::test
