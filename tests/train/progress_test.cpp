// SPDX-License-Identifier: Apache-2.0
#include "train/progress.hpp"
#include "models/registry.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <csignal>

#include "tests/support/file_bytes.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/test.hpp"
#include "tests/support/variable.hpp"

namespace millrace::training {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

std::string contents(std::FILE* file) {
  std::fflush(file);
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  return text;
}

run::Run small_config() {
  run::Run config;
  config.data.train_size = 50'000;
  config.iterations_per_epoch = 1562;
  config.iterations = 15'620;
  config.learning_rate.base_rate = 0.5;
  return config;
}

TEST(ProgressTest, TrainLineIsTheRecipes) {
  const TrainRow row{.step = 12,
                     .iteration = 1164,
                     .epoch = 0.745,
                     .learning_rate = 0.5,
                     .loss = 1.9,
                     .loss_average = 1.8341,
                     .accuracy = 30.0,
                     .accuracy_average = 32.1,
                     .top5 = 30.0,  // of the row
                     .top5_average = 81.25,
                     .seconds_per_iteration = 0.05,
                     .images_per_second = 640.0,
                     .total_seconds = 58.2};
  EXPECT_EQ(
      format_line(row),
      "step:     12, iteration:   1164, epoch:   0.74, lr:    0.5, loss:  1.834, top-1 accuracy: "
      "32.100%, img/sec: 640.00, time: 0.050000, total_time:     58.2, top-5 accuracy: 81.250%");
  TrainRow with_skips = row;
  with_skips.skipped = 3;
  with_skips.loss_scale = 4096.0;
  EXPECT_EQ(format_line(with_skips), format_line(row) + ", skipped updates: 3, loss scale: 4096");
  TrainRow unknown = row;
  unknown.top5_average = std::nan("");
  EXPECT_EQ(format_line(unknown) + ", top-5 accuracy: 81.250%", format_line(row));
}

TEST(ProgressTest, ValidationLineNamesTheCheckpoint) {
  const ValidationResult result{.iteration = 1562,
                                .checkpoint = "ckpt-1562",
                                .images = 10'000,
                                .batches = 100,
                                .correct_top1 = 6125,
                                .correct_top5 = 9600,
                                .loss = 1.0625,
                                .seconds = 4.0};
  EXPECT_EQ(
      format_line(result, 1.0),
      "Validation top-1 accuracy [ckpt-1562] (iteration:   1562, epoch:   1.00, img/sec: 2500.00, "
      "latency (ms):  40.0000, time: 4.000000): 61.250% (top-5: 96.000%, loss: 1.0625)");
}

TEST(ProgressTest, ValidationLineNamesOnlyWhatIsThere) {
  ValidationResult result{.iteration = 8, .images = 4, .batches = 1, .seconds = 1.0};
  const auto names = [&](const std::string& name) {
    return format_line(result, 1.0).starts_with("Validation top-1 accuracy [" + name + "] (");
  };
  EXPECT_TRUE(names("update 8")) << format_line(result, 1.0);
  result.iteration = 0;
  EXPECT_TRUE(names("untrained weights"));
  result.checkpoint = "ckpt-0";
  EXPECT_TRUE(names("ckpt-0"));
  result.name = "mean-2-epochs";
  EXPECT_TRUE(names("mean-2-epochs"));
}

TEST(ProgressTest, AccuraciesOfAPartOfTheSetSayOfWhichPart) {
  ValidationResult result{.iteration = 8, .images = 64, .batches = 1, .seconds = 1.0};
  result.set_images = 64;
  EXPECT_TRUE(format_line(result, 1.0).ends_with(", loss: 0.0000)"));
  result.set_images = 10'000;
  EXPECT_TRUE(format_line(result, 1.0).ends_with(", loss: 0.0000, of 64 of 10,000 images)"));
  result.replaced = 2;
  EXPECT_TRUE(format_line(result, 1.0)
                  .ends_with(", loss: 0.0000, of 64 of 10,000 images, bad images replaced: 2)"));
}

// The best of 32 images says nothing about an accuracy of 64.
TEST(ProgressTest, TheBestIsThatOfAsManyImagesAsTheLast) {
  const auto accuracies = [](const Accuracies& validated, std::int64_t set_images) {
    const std::string text = format_summary({.iteration = 8,
                                             .iterations = 8,
                                             .seconds = 1.0,
                                             .accuracies = validated,
                                             .set_images = set_images});
    return text.substr(text.find('\n') + 1);
  };
  const Accuracies mixed = {{2, {75.0, 32}}, {4, {50.0, 64}}, {6, {62.5, 64}}, {8, {25.0, 64}}};
  EXPECT_EQ(
      accuracies(mixed, 96),
      "Top-1 accuracy of 64 of 96 images: 25.00 % after 8 updates (last), 62.50 % after 6 (best)");
  EXPECT_EQ(accuracies(mixed, 64),
            "Top-1 accuracy: 25.00 % after 8 updates (last), 62.50 % after 6 (best)");
  EXPECT_EQ(accuracies({{2, {75.0, 32}}, {4, {50.0, 64}}}, 64),
            "Top-1 accuracy: 50.00 % after 4 updates (last)");
}

TEST(ProgressTest, AChangedNumberOfValidatedImagesIsTold) {
  const ValidationResult result{.iteration = 8, .images = 64};
  EXPECT_EQ(format_other_images({}, result), "");
  EXPECT_EQ(format_other_images({{4, {50.0, 32}}, {6, {50.0, 64}}}, result), "");
  EXPECT_EQ(format_other_images({{4, {50.0, 64}}, {6, {50.0, 1}}}, result),
            "The validations before this one were of 1 image, this one is of 64: they are not "
            "compared, and the best starts anew");
  EXPECT_NE(format_other_images({{6, {50.0, 0}}}, result).find("of an unknown number of images,"),
            std::string::npos);
}

TEST(ProgressTest, TheFirstUpdateIsTold) {
  run::Run config = small_config();
  config.batch_size = 32;
  EXPECT_EQ(format_first_update(config, 1, {.loss = 2.5, .correct = 4, .seconds = 1.25}),
            "Update 1 of 15,620: loss 2.500, top-1 accuracy 12.500%, 1.250 s");
}

TEST(ProgressTest, PathsCannotEndALine) {
  run::Run config = small_config();
  config.run_directory = "a\nb\033[2J";
  test::expect_in(format_start(config, "", models::build_model(config.model)),
                  {"\n Saving to a\\nb\\x1b[2J\n"});
  const std::string summary = format_summary(
      {.iteration = 1, .iterations = 1, .seconds = 1.0, .run_directory = config.run_directory});
  EXPECT_TRUE(summary.ends_with("\nSaved in a\\nb\\x1b[2J")) << summary;
}

TEST(ProgressTest, StartTellsWhatToolsReadFromIt) {
  run::Run config = small_config();
  config.batch_size = 16;
  config.micro_batches = 2;
  config.run_directory = "logs/RN20_x";
  const std::string text =
      format_start(config, "millrace train --epochs 10", models::build_model(config.model));
  EXPECT_TRUE(text.starts_with("Command line: millrace train --epochs 10\n"));
  test::expect_in(text,
                  {"\n Batch Size: 32\n", "Image Size: 32x32\n", "\n Saving to logs/RN20_x\n"});
  test::expect_not_in(text, {"Trainable Variables"});
  EXPECT_TRUE(text.ends_with("\nTotal Parameters: 269722")) << text;
  config.verbosity = run::Verbosity::Verbose;
  const std::string more = format_start(config, "", models::build_model(config.model));
  test::expect_in(more, {"\nTrainable Variables:\n  b0/conv/kernel (16x3x3x3)\n"});
  test::expect_not_in(more, {"moving_mean"});
  EXPECT_TRUE(more.ends_with("\nTotal Parameters: 269722")) << more;
}

TEST(ProgressTest, StatusTellsEpochUpdateAndRate) {
  const run::Run config = small_config();
  const Status status{.iteration = 1563,
                      .loss = 1.8321,
                      .top1 = 0.412,
                      .images_per_second = 1840.2,
                      .seconds_left = 42.0};
  EXPECT_EQ(format_status(config, status, {}),
            "epoch 2/10  update 1/1562  loss 1.832  top-1 41.2 %  1840 img/s  ETA 0:42");
}

TEST(ProgressTest, StatusCountsToTheEndOfTheRun) {
  run::Run config = small_config();
  config.iterations = 8;
  EXPECT_TRUE(format_status(config, {.iteration = 4}, {}).starts_with("epoch 1/1  update 4/8  "));
  config.iterations = 1562 + 8;
  EXPECT_TRUE(
      format_status(config, {.iteration = 4}, {}).starts_with("epoch 1/2  update 4/1562  "));
  EXPECT_TRUE(
      format_status(config, {.iteration = 1566}, {}).starts_with("epoch 2/2  update 4/8  "));
}

TEST(ProgressTest, SummaryHasNoRateWhereNothingWasTrained) {
  Summary summary{.finished = true, .iteration = 8, .iterations = 8, .seconds = 4.0};
  EXPECT_EQ(format_summary(summary), "Finished: 8 of 8 updates in 0:04");
  summary.images_per_second = 12.34;
  EXPECT_EQ(format_summary(summary), "Finished: 8 of 8 updates in 0:04, 12.3 img/s while training");
  summary.restored = true;
  summary.bubble = 0.507;
  EXPECT_EQ(format_summary(summary),
            "Finished: 8 of 8 updates in 0:04, 12.3 img/s while training since the restart, bubble "
            "50.7 %");
  summary.takes_turns = true;
  EXPECT_TRUE(
      format_summary(summary).ends_with("bubble 50.7 % (the devices of a process take turns)"));
}

TEST(ProgressTest, StatusShowsHowBusyDevicesAre) {
  const run::Run config = small_config();
  Status status{.iteration = 1563,
                .loss = 1.8321,
                .top1 = 0.412,
                .images_per_second = 1840.2,
                .seconds_left = 42.0,
                .busy = {0.77, 0.12},
                .saving = "ckpt-1562"};
  EXPECT_EQ(format_status(config, status, {.width = 120}),
            "epoch 2/10  update 1/1562  loss 1.832  top-1 41.2 %  1840 img/s  ETA 0:42  busy "
            "[###.][....]  saving ckpt-1562");
  status.saving = "";
  // What does not fit is left out: first what log lines will tell.
  EXPECT_EQ(format_status(config, status, {.width = 80}),
            "epoch 2/10  update 1/1562  loss 1.832  1840 img/s  ETA 0:42  busy [###.][....]");
  EXPECT_EQ(format_status(config, status, {.width = 70}),
            "epoch 2/10  update 1/1562  1840 img/s  ETA 0:42  busy [###.][....]");
  EXPECT_EQ(format_status(config, status, {.width = 60}),
            "epoch 2/10  update 1/1562  1840 img/s  busy [###.][....]");
  EXPECT_EQ(format_status(config, status, {.width = 40}), "epoch 2/10  update 1/1562")
      << "half of the bars would be other bars";
  EXPECT_EQ(format_status(config, status, {.width = 20}), "epoch 2/10");
  EXPECT_EQ(format_status(config, status, {.width = 9}), "");
  status.busy.clear();
  EXPECT_EQ(format_status(config, status, {.width = 40}), "epoch 2/10  update 1/1562  1840 img/s");
  EXPECT_EQ(format_status(config, status, {.width = 36}), "epoch 2/10  update 1/1562");
  status.busy = {0.77, 0.12};
  EXPECT_EQ(format_status(config, status, {.width = 70, .colors = true}),
            "epoch 2/10  update 1/1562  1840 img/s  ETA 0:42  busy [\033[32m###\033[0m.][....]");
}

TEST(ConsoleTest, ColorsTakeNoColumns) {
  const File status(std::tmpfile());
  {
    Console console(nullptr, status.get(), {.rewrites_lines = true, .width = 6}, {});
    console.status("[\033[32m###\033[0m.]", 1.0);
  }
  EXPECT_EQ(contents(status.get()), "\r[\033[32m###\033[0m.]\033[K\r\033[K");
}

TEST(ConsoleTest, QuietPrintsOnlyWhatIsImportant) {
  const test::TemporaryDirectory directory;
  const fs::path log = directory / "log.txt";
  const File out(std::tmpfile());
  const File status(std::tmpfile());
  {
    Console console(out.get(), status.get(), {.rewrites_lines = true}, log);
    console.quieten();
    console.status("epoch 1/1", 1.0);
    console.line("a row");
    console.important("a warning");
  }
  EXPECT_EQ(contents(out.get()), "a warning\n");
  EXPECT_EQ(contents(status.get()), "");
  EXPECT_EQ(test::read_text(log), "a row\na warning\n");
}

TEST(ProgressTest, LongValidationsSayHowFarTheyAre) {
  std::vector<std::string> said;
  std::vector<std::string> shown;
  ValidationProgress progress(
      50'000, 100.0, [&said](const std::string& line) { said.push_back(line); },
      [&shown](const std::string& text) { shown.push_back(text); });
  progress.seen(32, 100.1);
  progress.seen(4000, 109.9);
  progress.seen(4100, 110.0);
  progress.seen(8000, 119.0);
  progress.seen(9000, 121.5);
  EXPECT_EQ(said, (std::vector<std::string>{"Validating: 4,100 of 50,000 images",
                                            "Validating: 9,000 of 50,000 images"}));
  ASSERT_EQ(shown.size(), 5u);
  EXPECT_EQ(shown.front(), "validating 32/50,000 images  320 img/s  ETA 2:36");
  EXPECT_EQ(shown.back(), "validating 9,000/50,000 images  419 img/s  ETA 1:38");
}

TEST(ConsoleTest, WithoutATerminalOnlyLinesAppear) {
  const File out(std::tmpfile());
  const File status(std::tmpfile());
  Console console(out.get(), status.get(), Terminal{}, {});
  console.status("epoch 1/1", 1.0);
  console.line("one");
  EXPECT_EQ(contents(out.get()), "one\n");
  EXPECT_EQ(contents(status.get()), "");
}

TEST(ConsoleTest, LinesClearTheStatusAndGoToTheLog) {
  const test::TemporaryDirectory directory;
  const fs::path log = directory / "console.txt";
  const File out(std::tmpfile());
  const File status(std::tmpfile());
  {
    Console console(out.get(), status.get(), {.rewrites_lines = true, .width = 9}, log);
    console.status("epoch 1/1  step 1/9", 1.0);
    console.status("epoch 1/1  step 2/9", 1.05);  // too soon
    console.line("two");
    console.status("epoch 2/2  step 3/9", 1.06);  // none is shown
    console.keep("three");
  }
  EXPECT_EQ(contents(out.get()), "two\n");
  EXPECT_EQ(contents(status.get()), "\repoch 1/1\033[K\r\033[K\repoch 2/2\033[K\r\033[K");
  EXPECT_EQ(test::read_text(log), "two\nthree\n");
}

/// A pipe with room for one page, whose reader reads nothing.
struct FullPipe {
  FullPipe() {
    EXPECT_EQ(::pipe(ends.data()), 0);
    EXPECT_GT(::fcntl(ends[1], F_SETPIPE_SZ, 4096), 0);
    out.reset(::fdopen(ends[1], "w"));
  }
  ~FullPipe() { ::close(ends[0]); }
  std::array<int, 2> ends{};
  File out;
};

TEST(ConsoleTest, AReaderThatStopsReadingBlocksNothing) {
  const test::TemporaryDirectory directory;
  FullPipe pipe;
  Console console(pipe.out.get(), nullptr, {}, directory / "log.txt");
  const std::string line(200, 'x');
  for (int i = 0; i < 100; ++i) console.line(line);
  EXPECT_EQ(fs::file_size(directory / "log.txt"), 100u * (line.size() + 1));
}

TEST(ConsoleTest, AReaderThatGoesAwayEndsNothing) {
  const test::TemporaryDirectory directory;
  std::signal(SIGPIPE, SIG_IGN);
  FullPipe pipe;
  ::close(std::exchange(pipe.ends[0], ::open("/dev/null", O_RDONLY)));
  Console console(pipe.out.get(), nullptr, {}, directory / "log.txt");
  for (int i = 0; i < 3; ++i) console.line("a line");
  EXPECT_EQ(fs::file_size(directory / "log.txt"), 3u * 7);
  EXPECT_EQ(std::fflush(pipe.out.get()), 0);
  EXPECT_EQ(std::ferror(pipe.out.get()), 0);
}

TEST(ConsoleTest, FilesAreNoTerminals) {
  const File file(std::tmpfile());
  EXPECT_FALSE(terminal_of(file.get()).rewrites_lines);
}

TEST(ConsoleTest, RanksShowTheirStatusOnTheTerminalOfTheirLauncher) {
  const File file(std::tmpfile());
  const test::Variable kind("TERM", "xterm");
  for (const bool output : {false, true}) {
    const std::string text =
        terminal_text({.rewrites_lines = true, .width = 70, .shows_output = output});
    EXPECT_EQ(text, output ? "70 output" : "70");
    const test::Variable launcher(kTerminalVariable, text);
    const Terminal terminal = terminal_of(file.get());
    EXPECT_TRUE(terminal.rewrites_lines);
    EXPECT_EQ(terminal.width, 70u);
    EXPECT_EQ(terminal.shows_output, output);
  }
}

}  // namespace
}  // namespace millrace::training
