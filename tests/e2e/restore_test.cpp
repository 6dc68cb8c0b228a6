// SPDX-License-Identifier: Apache-2.0
//
// The law: stopping and restoring a training does not change it.
#include "millrace.hpp"
#include "run_tables.hpp"

namespace millrace::test {
namespace {

struct Case {
  const char* name;
  const char* threads;
  Words options;
};

/// Holds for any number of threads, as long as it does not change.
class RestoreTest : public testing::TestWithParam<Case> {};

TEST_P(RestoreTest, StoppedAndRestoredEqualsUninterrupted) {
  const TemporaryDirectory directory;
  const Words options =
      GetParam().options +
      Words{"--epochs 2 --logs-per-epoch 5 --threads-per-device", GetParam().threads};
  const fs::path whole = directory / "whole";
  ASSERT_EQ(train(whole, options).code, 0);

  // Stopped in the middle of the first epoch, between two log points, and again in the second
  // epoch.
  const fs::path parts = directory / "parts";
  expect_end(train(parts, options + "--stop-after 7"), 75);
  expect_end(restore(parts, "--stop-after 6 --pipeline-num-parallel 3"), 75,
             {"Restoring training from latest checkpoint: ", "ckpt-7"});
  // What a restore changes holds for the next one.
  expect_in(read_text(parts / "config.toml"), {"pipeline-num-parallel = 3"});
  expect_end(restore(parts), 0);

  EXPECT_EQ(digest_of(parts), digest_of(whole));
  EXPECT_EQ(timeless_columns(parts / "training.csv"), timeless_columns(whole / "training.csv"));
  EXPECT_EQ(timeless_columns(parts / "validation.csv"), timeless_columns(whole / "validation.csv"));
  const std::string rows = read_text(whole / "training.csv");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 11);  // header and five rows per epoch
}

INSTANTIATE_TEST_SUITE_P(
    Precisions, RestoreTest,
    testing::Values(Case{"Float32", "1", {"--precision 32.32"}},
                    Case{"Bfloat16", "1", {"--precision 16.32"}},
                    Case{"MovingAverage", "1", {"--ema-decay 0.99"}},
                    Case{"Bfloat16TwoThreads", "2", {"--precision 16.32"}},
                    Case{"GroupNormRecomputed",
                         "1",
                         {"--precision 16.32 --group-norm --groups 8 --xla-recompute"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(LawTest, AValidationThatWasCutShortIsMadeUpFor) {
  const TemporaryDirectory directory;
  const Words options = "--epochs 2";
  ASSERT_EQ(train(directory / "whole", options).code, 0);
  // The state after a signal during the validation of the first epoch: the checkpoint exists, the
  // row does not.
  const fs::path cut = directory / "cut";
  ASSERT_EQ(train(cut, options + "--stop-after 10").code, 75);
  const std::string rows = read_text(cut / "validation.csv");
  ASSERT_EQ(std::count(rows.begin(), rows.end(), '\n'), 2) << rows;
  std::ofstream(cut / "validation.csv") << rows.substr(0, rows.find('\n') + 1);
  ASSERT_EQ(restore(cut).code, 0);
  EXPECT_EQ(timeless_columns(cut / "validation.csv"),
            timeless_columns(directory / "whole" / "validation.csv"));
  EXPECT_EQ(digest_of(cut), digest_of(directory / "whole"));
}

// Its folder below the run is a run, whose accuracy is that of the row with its name.
class EmaTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Precisions, EmaTest, testing::Values("16.32", "16.16"), [](const auto& p) {
  return p.param == "16.16" ? "NarrowMasters" : "Float32Masters";
});

TEST_P(EmaTest, TheAverageIsARunOfItsOwn) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const Words options =
      Words{"--epochs 1 --iterations-between-evals 5 --ema-decay 0.8 --precision", GetParam()};
  expect_end(train(run, options + "--shards 2 --pipeline-splits b2/0/relu --ranks 1"), 0);
  const fs::path average = run / "averages/ema-0.8";
  EXPECT_TRUE(fs::exists(average / "checkpoints/ckpt-10"));
  const Table table(run / "validation.csv");
  EXPECT_EQ(table.columns().at("name"), (std::vector<std::string>{"", "ema-0.8", "", "ema-0.8"}));
  std::ostringstream accuracy;
  accuracy << "\"top1\":" << table.last("val_acc") / 100.0;
  expect_in(millrace({"validate --json --restore-path", average}).output, {accuracy.str()});
  EXPECT_NE(digest_of(average), digest_of(run));

  const fs::path parts = directory / "parts";
  ASSERT_EQ(train(parts, options + "--stop-after 5").code, 75);
  expect_end(restore(parts, "--replicas 1"), 0);
  EXPECT_EQ(digest_of(parts / "averages/ema-0.8"), digest_of(average));
}

// The rest of a schedule that has ended has its last rate, which may be none.
TEST(ExtensionTest, ARateOfZeroIsSaid) {
  const TemporaryDirectory directory;
  const auto extended = [&](const std::string& name, const Words& schedule, const Words& more) {
    const fs::path run = directory / name;
    EXPECT_EQ(train(run, Words("--epochs 1 --no-validation") + schedule).code, 0);
    return restore(run, Words("--epochs 2 --stop-after 1") + more).output;
  };
  const std::string zero =
      "from update 11 on the rate is 0 and weights stay as they are (only the moving statistics of "
      "norms go on); ";
  expect_in(extended("cosine", "--lr-schedule cosine", "--lr-horizon-epochs 1"),
            {zero + "without --lr-horizon-epochs the schedule is stretched to the new length"});
  expect_in(extended("recorded", "--lr-schedule cosine --lr-horizon-epochs 1", {}),
            {zero + "start a new run with a longer --lr-horizon-epochs, or with none"});
  expect_in(extended("stepped", "--lr-schedule stepped", "--lr-horizon-epochs 1"),
            {"its learning rates stay as they were, and constant from update 10 on"});
  expect_in(extended("stretched", "--lr-schedule stepped", {}),
            {"--lr-horizon-epochs 1 keeps the rates as they were"});
}

// A longer run is the same whether it was interrupted or not, even before the first checkpoint that
// knows of its length. Its learning rates are those of a run that began with that length.
TEST(ExtensionTest, AnExtendedRunContinuesAcrossInterruptions) {
  const TemporaryDirectory directory;
  const fs::path whole = directory / "whole";
  const Words begin = "--epochs 1 --lr-schedule cosine --logs-per-epoch 5 --max-ckpts-to-keep 0";
  ASSERT_EQ(train(whole, begin).code, 0);
  const fs::path parts = directory / "parts";
  fs::copy(whole, parts, fs::copy_options::recursive);
  const ProcessResult extended = restore(whole, "--epochs 3");
  expect_end(extended, 0,
             {"The run is extended from 1 to 3 epochs; its learning-rate schedule is stretched",
              "Finished: 30 of 30 updates"});
  EXPECT_EQ(extended.output.find("keeps the rates"), std::string::npos) << "a cosine ends at 0";
  expect_end(restore(parts, "--epochs 3 --stop-after 4"), 75);
  fs::remove_all(parts / "checkpoints/ckpt-14");  // killed before it was saved
  expect_end(restore(parts, "--stop-after 13"), 75, {"The run is extended from 1 to 3 epochs"});
  const ProcessResult last = restore(parts);
  expect_end(last, 0);
  expect_not_in(last.output, {"extended"});
  EXPECT_EQ(digest_of(parts), digest_of(whole));
  EXPECT_EQ(timeless_columns(parts / "training.csv"), timeless_columns(whole / "training.csv"));
  EXPECT_EQ(timeless_columns(parts / "validation.csv"), timeless_columns(whole / "validation.csv"));

  ASSERT_EQ(train(directory / "long", "--epochs 3 --lr-schedule cosine --logs-per-epoch 5 ").code,
            0);
  const std::vector<double> rates = Table(whole / "training.csv")["lr"];
  const std::vector<double> fresh = Table(directory / "long/training.csv")["lr"];
  ASSERT_EQ(rates.size(), fresh.size());
  for (std::size_t i = 5; i < rates.size(); ++i) EXPECT_EQ(rates[i], fresh[i]) << i;
  EXPECT_NE(rates[4], fresh[4]);
}

// A run that ends early has a checkpoint of its end; a restart decides as it did.
TEST(EarlyStopTest, EndsAndStaysEnded) {
  const TemporaryDirectory directory;
  const Words options = "--epochs 4 --iterations-between-evals 3 --disable-checkpoints ";
  const fs::path whole = directory / "whole";
  expect_end(
      train(whole, options + "--stop-threshold 0.01"), 0,
      {"The run ends after 3 of 40 updates: the validation accuracy", "Finished: 3 of 40 updates"});
  EXPECT_TRUE(fs::exists(whole / "checkpoints/ckpt-3"));
  EXPECT_EQ(Table(whole / "training.csv")["iteration"].back(), 3);
  expect_end(restore(whole), 0, {"The run ends after 3 of 40 updates"});

  const fs::path parts = directory / "parts";
  expect_end(train(parts, options + "--stop-threshold 0.01 --stop-after 2"), 75);
  expect_end(restore(parts), 0, {"The run ends after 3 of 40 updates"});
  EXPECT_EQ(digest_of(parts), digest_of(whole));
  expect_end(restore(whole, "--stop-threshold 1 --stop-after 1"), 75);  // goes on
  expect_end(train(directory / "none", "--no-validation --early-stop 3"), 2,
             {"--early-stop has no effect here: it needs validation during the training"});
}

// Nothing is learned at this rate, so that no validation is better than the first.
TEST(EarlyStopTest, CountsValidationsAcrossRestarts) {
  const TemporaryDirectory directory;
  const Words options =
      "--epochs 4 --iterations-between-evals 2 --base-learning-rate -60 --group-norm --groups 8 "
      "--precision 32.32 --weight-decay 0 --early-stop 3";
  expect_end(train(directory / "whole", options), 0,
             {"The run ends after 8 of 40 updates: the last 3 validations were no better than"});
  const fs::path parts = directory / "parts";
  expect_end(train(parts, options + "--stop-after 5"), 75);
  expect_end(restore(parts), 0, {"The run ends after 8 of 40 updates"});
  EXPECT_EQ(digest_of(parts), digest_of(directory / "whole"));
}

}  // namespace
}  // namespace millrace::test
