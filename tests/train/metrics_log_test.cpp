// SPDX-License-Identifier: Apache-2.0
#include "train/metrics_log.hpp"

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/text.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/file_bytes.hpp"
#include "tests/support/temporary_directory.hpp"
#include "train/progress.hpp"

namespace millrace::training {
namespace {

class MetricsLogTest : public testing::Test {
 protected:
  /// 8 images per iteration, 4 iterations per epoch, and a row every 3 iterations, so that rows and
  /// epochs do not coincide.
  [[nodiscard]] run::Run config(const std::string& name) const {
    run::Run config;
    config.run_directory = root_ / name;
    fs::create_directories(config.run_directory);
    config.batch_size = 4;
    config.micro_batches = 2;
    config.data.train_size = 32;
    config.iterations_per_epoch = 4;
    config.iterations = 12;
    return config;
  }

  static IterationResult result_of(std::int64_t iteration) {
    return {.loss = 1.0 / (1.0 + static_cast<double>(iteration)),
            .correct = iteration % 9,
            .correct_top5 = iteration % 9 + 4,
            .learning_rate = 0.1,
            .seconds = 0.5,
            .loss_scale = 64.0,
            .skipped = iteration / 2};
  }

  /// Iterations first .. last (from 1); a row after every third and after `last_row`.
  static void advance(MetricsLog& log, std::int64_t first, std::int64_t last,
                      std::int64_t last_row = -1) {
    for (std::int64_t done = first; done <= last; ++done) {
      log.add(result_of(done));
      if (done % 3 == 0 || done == last_row) (void)log.report(done);
    }
  }

  /// The total time in the row of update 6 of a run that was restored at update 3, 7 seconds later.
  static double total_after_restoring(const run::Run& config, const PartialRow& partial) {
    MetricsLog restored(config, 3, partial, [] { return 7.0; });
    for (std::int64_t done = 4; done <= 6; ++done) restored.add(result_of(done));
    return restored.report(6).total_seconds;
  }

  /// The CSV without it_time, img_per_sec and total_time, which differ from run to run.
  static std::vector<std::string> without_times(const fs::path& path) {
    std::istringstream in(test::read_text(path));
    std::vector<std::string> rows;
    for (std::string line; std::getline(in, line);) {
      const std::vector<std::string> fields = split_list(line);
      std::string row;
      for (std::size_t i = 0; i < 8; ++i) row += fields.at(i) + ",";
      rows.push_back(row);
    }
    return rows;
  }

  const test::TemporaryDirectory directory_;
  const fs::path root_ = directory_.path();
};

TEST_F(MetricsLogTest, WritesTheHeadersOfTheRecipe) {
  const run::Run config = this->config("run");
  const MetricsLog log(config);
  EXPECT_EQ(test::read_text(config.run_directory / "training.csv"),
            "step,iteration,epoch,lr,loss_batch,loss_avg,train_acc_batch,train_acc_avg,it_time,img_"
            "per_sec,total_time\n");
  EXPECT_EQ(
      test::read_text(config.run_directory / "validation.csv"),
      "iteration,epoch,val_acc,val_time,img_per_sec,latency,name,val_acc_top5,val_loss,val_size\n");
}

// Steps with a non-finite loss are not averaged, also in a restored run.
TEST_F(MetricsLogTest, IterationsWithoutALossCountNowhere) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const run::Run config = this->config("run");
  {
    MetricsLog log(config, [] { return 3.0; });
    log.add({.loss = kNone, .correct = 5});
    log.add({.loss = 1.0, .correct = 6});
    const TrainRow first = log.report(2);
    EXPECT_EQ(first.loss, 1.0);
    EXPECT_EQ(first.accuracy, 75.0);
    log.add({.loss = kNone});
    const TrainRow none = log.report(3);
    EXPECT_TRUE(std::isnan(none.loss));
    EXPECT_EQ(none.loss_average, 1.0);
    test::expect_not_in(format_line(none), {"-nan"});
    EXPECT_EQ(test::read_text(config.run_directory / "training.csv").find("-nan"),
              std::string::npos);
    log.add({.loss = kNone});
    EXPECT_EQ(parse_partial_row(to_json(log.partial()), 4), log.partial());
    EXPECT_EQ(log.partial().left_out, 1);
  }
  MetricsLog log(config, 4, {.iterations = 1, .left_out = 1});
  EXPECT_EQ(log.take_notices(), std::vector<std::string>{});
  log.add({.loss = 3.0, .correct = 8});
  const TrainRow row = log.report(5);
  EXPECT_EQ(row.step, 3);
  EXPECT_EQ(row.loss, 3.0);
}

TEST_F(MetricsLogTest, AveragesOverTheRowAndOverTheLastEpoch) {
  const run::Run config = this->config("run");
  MetricsLog log(config, [] { return 12.5; });
  log.add({.loss = 3.0, .correct = 2, .learning_rate = 0.5, .seconds = 9.0});
  log.add({.loss = 1.0, .correct = 6, .learning_rate = 0.25, .seconds = 0.5});
  const TrainRow first = log.report(2);
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(first.epoch, 0.5);
  EXPECT_EQ(first.learning_rate, 0.25);
  EXPECT_EQ(first.loss, 2.0);
  EXPECT_EQ(first.accuracy, 50.0);
  EXPECT_EQ(first.loss_average, 2.0);
  // The first iteration of a process includes start-up and is not timed.
  EXPECT_EQ(first.seconds_per_iteration, 0.5);
  EXPECT_EQ(first.images_per_second, 16.0);
  EXPECT_EQ(first.total_seconds, 12.5);
  EXPECT_EQ(log.images_per_second(), 16.0);

  for (int i = 0; i < 2; ++i) log.add({.loss = 1.0, .correct = 8, .seconds = 0.25});
  const TrainRow second = log.report(4);
  EXPECT_EQ(second.loss_average, 1.5);
  EXPECT_EQ(second.accuracy_average, 75.0);
  EXPECT_EQ(second.seconds_per_iteration, 0.25);

  // Iterations 1 and 2 are now more than an epoch old.
  for (int i = 0; i < 2; ++i) log.add({.loss = 0.0, .correct = 8, .seconds = 0.25});
  EXPECT_EQ(log.report(6).loss_average, 0.5);
}

TEST_F(MetricsLogTest, RowOfTheFirstIterationAloneHasItsTime) {
  MetricsLog log(config("run"));
  log.add({.loss = 1.0, .correct = 1, .seconds = 2.0});
  const TrainRow row = log.report(1);
  EXPECT_EQ(row.seconds_per_iteration, 2.0);
  EXPECT_EQ(row.images_per_second, 4.0);
  EXPECT_EQ(log.images_per_second(), 4.0);
}

TEST_F(MetricsLogTest, NumbersReadBackAsTheSameDoubles) {
  const run::Run config = this->config("run");
  MetricsLog log(config);
  log.add({.loss = 0.1 + 0.2, .correct = 1, .learning_rate = 0.0005, .seconds = 1.0});
  (void)log.report(1);
  const std::string text = test::read_text(config.run_directory / "training.csv");
  test::expect_in(text, {",0.0005,0.30000000000000004,"});
}

TEST_F(MetricsLogTest, InterruptedRunLeavesTheSameRowsAsAnUninterruptedOne) {
  const run::Run whole = config("whole");
  MetricsLog uninterrupted(whole);
  advance(uninterrupted, 1, 12, 12);
  const std::vector<std::string> expected = without_times(whole.run_directory / "training.csv");
  ASSERT_EQ(expected.size(), 5u);

  for (std::int64_t saved = 0; saved < 12; ++saved) {
    const run::Run broken = config("broken" + std::to_string(saved));
    PartialRow partial;
    {
      MetricsLog log(broken);
      advance(log, 1, saved);
      partial = parse_partial_row(to_json(log.partial()), saved);
      // The process continued after its checkpoint and was killed while writing a line.
      advance(log, saved + 1, std::min<std::int64_t>(saved + 5, 12));
      log.report(ValidationResult{.iteration = saved + 1, .images = 1, .batches = 1});
      std::ofstream(broken.run_directory / "training.csv", std::ios::app) << "9,99,0.1";
    }
    MetricsLog restored(broken, saved, partial);
    advance(restored, saved + 1, 12, 12);
    EXPECT_EQ(without_times(broken.run_directory / "training.csv"), expected)
        << "restored at " << saved;
    EXPECT_EQ(test::read_text(broken.run_directory / "validation.csv"),
              test::read_text(whole.run_directory / "validation.csv"));
  }
}

TEST_F(MetricsLogTest, RowAfterRestoringContinuesTheTotalTime) {
  const run::Run config = this->config("run");
  PartialRow partial;
  {
    MetricsLog log(config, [] { return 20.0; });
    advance(log, 1, 3);
    partial = parse_partial_row(to_json(log.partial()), 3);
  }
  EXPECT_EQ(total_after_restoring(config, partial), 27.0);
}

// Its last rows go, but not their time.
TEST_F(MetricsLogTest, TimeOfAKilledProcessCounts) {
  const run::Run config = this->config("run");
  PartialRow partial;
  {
    MetricsLog log(config, [] { return 50.0; });
    advance(log, 1, 3);
    partial = parse_partial_row(to_json(log.partial()), 3);
    partial.total_seconds = 20.0;  // when it was saved
    advance(log, 4, 9);
  }
  EXPECT_EQ(total_after_restoring(config, partial), 57.0);
}

TEST_F(MetricsLogTest, JsonLinesHaveAHeaderAndOneObjectARow) {
  const run::Run config = this->config("run");
  MetricsLog log(config);
  advance(log, 1, 3);
  log.report(ValidationResult{.iteration = 3,
                              .images = 200,
                              .batches = 10,
                              .correct_top1 = 50,
                              .correct_top5 = 150,
                              .loss = 1.5,
                              .seconds = 2.0});
  std::istringstream lines(test::read_text(config.run_directory / "metrics.jsonl"));
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(objects.size(), 3u);
  EXPECT_EQ(objects[0].at("schema"), "millrace-metrics-1");
  EXPECT_EQ(objects[1].at("iteration"), 3);
  EXPECT_EQ(objects[1].at("lr"), 0.1);
  EXPECT_TRUE(objects[1].contains("train/loss"));
  EXPECT_EQ(objects[1].at("train/top1"), 6.0 / (3.0 * 8.0));
  EXPECT_EQ(objects[1].at("train/top5"), 18.0 / (3.0 * 8.0));
  EXPECT_EQ(objects[1].at("loss_scale"), 64.0);
  EXPECT_EQ(objects[1].at("skipped_updates"), 1);
  EXPECT_EQ(objects[2].at("val/top1"), 0.25);
  EXPECT_EQ(objects[2].at("val/top5"), 0.75);
  EXPECT_EQ(objects[2].at("val/loss"), 1.5);
  EXPECT_FALSE(objects[2].contains("images")) << "all of the set";
  EXPECT_EQ(
      test::read_text(config.run_directory / "validation.csv"),
      "iteration,epoch,val_acc,val_time,img_per_sec,latency,name,val_acc_top5,val_loss,val_size\n"
      "3,0.75,25,2,100,200,,75,1.5,200\n");
}

// Both accuracies of a line are those of the same images. Training.csv lacks the top-5.
TEST_F(MetricsLogTest, TopFiveIsAveragedLikeTopOneAcrossRestarts) {
  const run::Run config = this->config("run");  // 4 updates of 8 images an epoch
  {
    MetricsLog log(config);
    log.add({.loss = 1.0, .correct = 4, .correct_top5 = 8});
    log.add({.loss = 1.0, .correct = 4, .correct_top5 = 8});
    EXPECT_EQ(log.report(2).top5_average, 100.0);
  }
  MetricsLog restored(config, 2, {});
  restored.add({.loss = 1.0, .correct = 0, .correct_top5 = 2});
  const TrainRow row = restored.report(3);
  EXPECT_EQ(row.top5, 25.0);
  EXPECT_DOUBLE_EQ(row.accuracy_average, 100.0 * 8 / 24);
  EXPECT_DOUBLE_EQ(row.top5_average, 100.0 * 18 / 24);
  fs::remove(config.run_directory / "metrics.jsonl");
  MetricsLog without(config, 3, {});
  without.add({.loss = 1.0, .correct = 1, .correct_top5 = 2});
  EXPECT_TRUE(std::isnan(without.report(4).top5_average)) << "the rows before are unknown";
}

TEST_F(MetricsLogTest, AValidationOfAPartSaysOfHowMany) {
  const run::Run config = this->config("run");
  MetricsLog log(config);
  log.report(ValidationResult{.iteration = 3, .images = 20, .set_images = 200, .batches = 1});
  EXPECT_NE(test::read_text(config.run_directory / "metrics.jsonl").find("\"images\":20"),
            std::string::npos);
}

TEST_F(MetricsLogTest, AccuraciesAreComparedWithThoseOfAsManyImages) {
  const run::Run config = this->config("run");
  {
    MetricsLog log(config);
    for (const auto& [iteration, images, correct] :
         {std::array{3, 4, 4}, {6, 16, 8}, {9, 16, 12}, {12, 4, 1}})
      log.report(ValidationResult{
          .iteration = iteration, .images = images, .batches = 1, .correct_top1 = correct});
  }
  Accuracies read = read_accuracies(config.run_directory);
  EXPECT_EQ(read, (Accuracies{{3, {100.0, 4}}, {6, {50.0, 16}}, {9, {75.0, 16}}, {12, {25.0, 4}}}));
  using Percentages = std::map<std::int64_t, double>;
  EXPECT_EQ(comparable(read), (Percentages{{3, 100.0}, {12, 25.0}}));
  read.erase(12);
  EXPECT_EQ(comparable(read), (Percentages{{6, 50.0}, {9, 75.0}}));
  EXPECT_EQ(comparable({}), Percentages{});
}

// A run of an earlier build: its rows stay, the columns of this build are added.
TEST_F(MetricsLogTest, RestoringAddsColumns) {
  const run::Run config = this->config("run");
  const fs::path table = config.run_directory / "validation.csv";
  std::ofstream(table) << "iteration,epoch,val_acc,val_time,img_per_sec,latency,name\n"
                          "3,0.75,25,2,100,200,\n";
  MetricsLog restored(config, 3, {});
  EXPECT_TRUE(restored.take_notices().empty());
  restored.report(ValidationResult{.iteration = 6,
                                   .images = 4,
                                   .batches = 1,
                                   .correct_top1 = 2,
                                   .correct_top5 = 3,
                                   .loss = 0.5,
                                   .seconds = 2.0});
  EXPECT_EQ(
      test::read_text(table),
      "iteration,epoch,val_acc,val_time,img_per_sec,latency,name,val_acc_top5,val_loss,val_size\n"
      "3,0.75,25,2,100,200,\n6,1.5,50,2,2,2000,,75,0.5,4\n");
  EXPECT_EQ(read_accuracies(config.run_directory), (Accuracies{{3, {25.0, 0}}, {6, {50.0, 4}}}));
  EXPECT_FALSE(fs::exists(table.string() + ".damaged"));
}

TEST_F(MetricsLogTest, RestoringCutsTheJsonLinesToo) {
  run::Run config = this->config("run");
  {
    MetricsLog log(config);
    advance(log, 1, 9);
  }
  config.iterations = 77;  // extended
  MetricsLog restored(config, 6, {});
  EXPECT_TRUE(restored.take_notices().empty()) << "rows of a killed process are no damage";
  std::istringstream lines(test::read_text(config.run_directory / "metrics.jsonl"));
  std::vector<std::int64_t> iterations;
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    if (!object.contains("schema")) iterations.push_back(object.at("iteration"));
    if (object.contains("event")) {
      EXPECT_EQ(object.at("iterations"), 77);
    }
  }
  EXPECT_EQ(iterations, (std::vector<std::int64_t>{3, 6, 6}));  // the last one says "restored"
}

TEST_F(MetricsLogTest, WithoutADirectoryNothingIsWritten) {
  run::Run config = this->config("run");
  const fs::path directory = config.run_directory;
  config.run_directory.clear();
  MetricsLog log(config);
  advance(log, 1, 3);
  log.sync();
  EXPECT_TRUE(fs::is_empty(directory));
}

TEST_F(MetricsLogTest, AFileThatCannotBeWrittenIsNamed) {
  run::Run gone;
  gone.run_directory = root_ / "gone";
  expect_error(ErrorKind::Io, {"gone/training.csv"}, [&] { const MetricsLog log(gone); });
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  const run::Run config = this->config("run");
  fs::create_symlink("/dev/full", config.run_directory / "training.csv");
  expect_error(ErrorKind::Io,
               (config.run_directory / "training.csv").string() +
                   ": cannot write: No space left on device; free space or choose another place "
                   "with `run-dir`",
               [&] { const MetricsLog log(config); });
}

// A killed run continues, whatever happened to its last rows.
TEST_F(MetricsLogTest, DamagedRowsAreLeftOutAndSaid) {
  struct Case {
    const char* file;
    std::size_t lines;  ///< that are left
    std::function<std::string(std::string)> change;
    const char* notice;
  };
  const auto with = [](const char* found, const char* put) {
    return [=](std::string text) {
      const std::size_t at = text.find(found);
      return at == std::string::npos ? "no " + text : text.replace(at, std::strlen(found), put);
    };
  };
  const auto and_then = [](const std::string& more) {
    return [=](const std::string& text) { return text + more; };
  };
  const std::vector<Case> cases = {
      {"training.csv", 3, with("2,6,", "2,x,"), "training.csv: line 3 is damaged ('2,x,"},
      {"training.csv", 3, with("2,6,", "2,2,"), "line 3 is damaged ('2,2,"},
      {"training.csv", 3, with("2,6,", "2,600,"), ""},  // may be a row of a later iteration
      {"training.csv", 3, with("1,3,0.75", "1,3"), "line 2 is damaged ('1,3,"},
      {"training.csv", 4, with("step", "what"), "line 1 is damaged ('what"},
      {"training.csv", 3, with("\n3,9", "\n\n3"), "line 4 is damaged (''), and 1 more"},
      {"training.csv", 4, and_then("4,1"), "the row after line 4 is incomplete"},
      {"training.csv", 4, and_then(std::string(1 << 20, '1')), "the row after line 4"},
      {"training.csv", 4, and_then("4,12,\x1b[2J\n"), "line 5 is damaged ('4,12,\\x1b[2J')"},
      {"validation.csv", 1, and_then("9,2.25,50,1,what,3,\n"), "line 2 is damaged"},
      {"validation.csv", 1, and_then("-3,2.25,50,1,2,3,\n"), "line 2 is damaged"},
      {"metrics.jsonl", 4, and_then("[1]\n"), "metrics.jsonl: line 5 is damaged"},
      {"metrics.jsonl", 4, and_then("{\"iteration\": \"x\"}\n"), "line 5 is damaged"},
      {"metrics.jsonl", 4, and_then("{\"iteration\": 1e300}\n"), "line 5 is damaged"}};
  for (const Case& damage : cases) {
    const run::Run config = this->config("run");
    {
      MetricsLog log(config);
      advance(log, 1, 9);
    }
    const fs::path path = config.run_directory / damage.file;
    const std::string text = damage.change(test::read_text(path));
    std::ofstream(path) << text;
    MetricsLog log(config, 9, {});
    const std::vector<std::string> notices = log.take_notices();
    const bool said = *damage.notice != '\0';
    ASSERT_EQ(notices.size(), said ? 1u : 0u) << damage.notice;
    if (said) {
      test::expect_in(notices[0], {damage.notice});
      EXPECT_LT(notices[0].size(), 400u);
    }
    // Only an incomplete last line is dropped without a copy.
    const fs::path aside = path.string() + ".damaged";
    const bool kept = said && notices[0].find("the original file is") != std::string::npos;
    EXPECT_EQ(fs::exists(aside), kept) << damage.notice;
    if (kept) {
      EXPECT_EQ(test::read_text(aside), text);
    }
    const std::string left = test::read_text(path);
    EXPECT_TRUE(std::string_view(damage.file) != "training.csv" || left.starts_with("step,iter"));
    const auto restored = std::string_view(damage.file) == "metrics.jsonl" ? 1 : 0;
    EXPECT_EQ(std::count(left.begin(), left.end(), '\n'),
              static_cast<std::ptrdiff_t>(damage.lines) + restored)
        << damage.notice;
    fs::remove_all(config.run_directory);
  }
}

TEST_F(MetricsLogTest, FilesThatAreRemovedUnderARunBeginAnew) {
  const run::Run config = this->config("run");
  MetricsLog log(config);
  advance(log, 1, 3);
  fs::remove(config.run_directory / "training.csv");
  fs::rename(config.run_directory / "metrics.jsonl", config.run_directory / "moved");
  advance(log, 4, 6);
  const std::vector<std::string> notices = log.take_notices();
  ASSERT_EQ(notices.size(), 2u);
  test::expect_in(notices[0], {"training.csv: was removed or replaced"});
  EXPECT_EQ(log.take_notices(), std::vector<std::string>{});
  EXPECT_TRUE(
      test::read_text(config.run_directory / "training.csv").starts_with("step,iteration,"));
  EXPECT_TRUE(test::read_text(config.run_directory / "metrics.jsonl").starts_with("{\"schema\":"));
  EXPECT_TRUE(MetricsLog(config, 6, {}).take_notices().empty());
}

TEST(PartialRowTest, SurvivesJsonToTheBit) {
  const PartialRow partial{.iterations = 7,
                           .loss_sum = 1.0 + std::numeric_limits<double>::epsilon(),
                           .correct = 1'000'000'007,
                           .correct_top5 = 2'000'000'011};
  EXPECT_EQ(parse_partial_row(to_json(partial), 7), partial);
  EXPECT_EQ(parse_partial_row("", 7), PartialRow{});
}

TEST(PartialRowTest, RefusesAnythingElse) {
  for (const char* text :
       {" ", "{}", "[1]", R"({"iterations": "x"})",
        R"({"iterations": 8, "loss_sum": 1.0, "correct": 1})",
        R"({"iterations": 9223372036854775807, "loss_sum": 1.0, "correct": 1})",
        R"({"iterations": 7, "loss_sum": 1.0, "correct": 9223372036854775807})"}) {
    EXPECT_NE(message_of(ErrorKind::Checkpoint, [&] { (void)parse_partial_row(text, 7); }), "")
        << text;
  }
}

}  // namespace
}  // namespace millrace::training
