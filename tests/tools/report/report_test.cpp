// SPDX-License-Identifier: Apache-2.0
//
// Pages about real runs: they need nothing else, and say what the files of the runs say.
#include <fmt/format.h>
#include <regex>

#include "millrace.hpp"
#include "run_tables.hpp"
#include "tests/tools/report/pages.hpp"

namespace millrace::test {
namespace {

std::string report(const Words& words) {
  const ProcessResult result = millrace(Words{"report"} + words);
  EXPECT_EQ(result.code, 0) << result.output;
  return result.output;
}

std::string page_of(const fs::path& run) {
  const std::string said = report({run});
  expect_in(said, {"Wrote " + (run / "report.html").string()});
  std::string page = read_text(run / "report.html");
  expect_sound(page);
  return page;
}

double last_number(const std::string& text, const std::string& pattern) {
  double found = -1.0;
  const std::regex regex(pattern);
  for (auto at = std::sregex_iterator(text.begin(), text.end(), regex);
       at != std::sregex_iterator(); ++at)
    found = std::stod((*at)[1]);
  EXPECT_GE(found, 0.0) << pattern;
  return found;
}

/// Expects that the tiles say what the tables of the run say.
void expect_tables(const std::string& page, const fs::path& run) {
  const std::vector<double> accuracies = Table(run / "validation.csv")["val_acc"];
  const double best = *std::max_element(accuracies.begin(), accuracies.end());
  EXPECT_EQ(tile(page, "best top-1"), fmt::format("{:.2f} %", best));
  const std::string log = read_text(run / "log.txt");
  EXPECT_EQ(tile(page, "img/s while training"),
            fmt::format("{:.1f}", last_number(log, "updates in [0-9:]+, ([0-9.]+) img/s")));
  const double updates = Table(run / "training.csv").last("iteration");
  EXPECT_EQ(tile(page, "updates"), fmt::format("{0:.0f} of {0:.0f}", updates));
  const std::string seconds = page.substr(0, page.find("time, all processes"));
  const double minutes = last_number(seconds, "<b>([0-9]+):");
  EXPECT_NEAR(60.0 * minutes + last_number(seconds, "<b>[0-9]+:([0-9]+)<"),
              Table(run / "training.csv").last("total_time"), 6.0);
  // A dot for each validation in the curves of loss and accuracy.
  EXPECT_EQ(count(page, "<circle"), 2 * accuracies.size());
}

void replace_in(const fs::path& file, const std::string& pattern, const std::string& by) {
  const std::string text = read_text(file);
  const std::string changed = std::regex_replace(text, std::regex(pattern), by);
  EXPECT_NE(text, changed) << pattern;
  std::ofstream(file) << changed;
}

TEST(ReportTest, OfOneProcess) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "a&<b>";
  expect_end(train(run, "--epochs 2 --logs-per-epoch 5 --stop-after 12"), 75);
  expect_in(page_of(run), {"<span class=\"state stopped\">"});
  expect_end(restore(run), 0);
  const std::string page = page_of(run);
  expect_tables(page, run);
  expect_in(page, {"<h1>a&amp;&lt;b&gt; <span class=\"state finished\">finished</span></h1>",
                   "<title>a&amp;&lt;b&gt;</title>", "<td>restored</td>", "A single stage",
                   "the run has no trace", "resnet-8", "<td>seed</td><td>5</td><td>0</td>",
                   "Device: ", "Skipped updates: 0. 4 checkpoints written"});

  // As early versions left it; then with damage.
  replace_in(run / "metrics.jsonl", "[^\n]*\"event\"[^\n]*\n", "");
  expect_in(page_of(run), {"state finished"});
  replace_in(run / "metrics.jsonl", "\\{\"iteration\":2,", "{\"itera\x02");
  const std::string said = report({run});
  expect_in(said, {"metrics.jsonl: line 2 is damaged: left out"});
  expect_in(page_of(run), {"<p>metrics.jsonl: line 2 is damaged: left out</p>"});
  std::ofstream(run / "config.toml") << "[train]\nno-such-key = 1\n";
  expect_in(page_of(run), {"cannot plan the run: ", "unknown key", "best top-1"});
}

TEST(ReportTest, OfTwoStagesWithATraceAndOfBothRuns) {
  const TemporaryDirectory directory;
  const fs::path staged = directory / "staged";
  const Words layout =
      "--shards 2 --ranks 2 --pipeline-splits b2/0/relu --gc-profile --profile-steps 9,10 --epochs "
      "2 ";
  expect_end(train(staged, layout), 0);
  const std::string page = page_of(staged);
  expect_tables(page, staged);
  expect_in(page, {"cut at b2/0/relu", "Planned: ", "Measured: ", ", update 10</figcaption>",
                   "replica 0 device 1 (rank 1)", "<td>b2/0/relu .. loss</td>",
                   "<td>pipeline-splits</td><td>b2/0/relu</td><td>–</td>"});
  const std::string log = read_text(staged / "log.txt");
  EXPECT_EQ(tile(page, "bubble, measured"),
            fmt::format("{:.1f} %", last_number(log, "Bubble: ([0-9.]+) % measured")));
  // A restore that has nothing to do replaces none of it.
  expect_end(restore(staged, "--gc-profile --profile-steps 9,10"), 0);
  const std::string again = page_of(staged);
  for (const char* meaning : {"img/s while training", "bubble, measured", "updates"})
    EXPECT_EQ(tile(again, meaning), tile(page, meaning));
  expect_in(again, {", update 10</figcaption>"});
  // Two devices in each of the two schedules, with a box for every action of two micro-batches.
  EXPECT_EQ(count(page, "<g class=\"device\">"), 4u);
  EXPECT_GE(count(page, "<rect class=\"F\""), 8u);
  // The planned memory is that of `plan`.
  const ProcessResult plan = millrace(
      "plan --dataset cifar-10 --model-size 8 --shards 2 --batch-size 32 --gradients-to-accumulate "
      "2 --optimiser momentum --threads-per-device 1 --pipeline-splits b2/0/relu");
  std::smatch memory;
  ASSERT_TRUE(std::regex_search(plan.output, memory, std::regex("loss .*  ([0-9.]+ [kM]B)\n")))
      << plan.output;
  expect_in(page, {"<td class=\"n\">" + memory[1].str() + "</td></tr>"});

  const fs::path plain = directory / "plain";
  expect_end(train(plain, "--epochs 1 --no-validation --replicas 2 --ranks 1"), 0);
  expect_in(page_of(plain), {"no validation", "<td>validation-mode</td><td>none</td><td>all</td>",
                             "resnet-8 · 2 replicas · total batch 128 · "});
  const fs::path both = directory / "both.html";
  report({staged, plain, "--output", both});
  const std::string compared = read_text(both);
  expect_sound(compared);
  expect_in(compared,
            {"<h1>2 runs</h1>", "<td>staged</td>", "<td>plain</td>",
             "<span class=\"c0 solid\">staged</span>", "<span class=\"c1 solid\">plain</span>",
             "<td class=\"n\">" + tile(page, "best top-1") + "</td>"});
}

TEST(ReportTest, RefusesWhatItCannotDo) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  fs::create_directory(run);
  expect_end(millrace({"report", run}), 2, {"is not a run", "give the directory of a run"});
  std::ofstream(run / "config.toml") << "[model]\nmodel = \"resnet\"\n";
  expect_end(millrace({"report", run, "--format text"}), 2, {"--format text has no effect here"});
  expect_end(millrace({"report", run, "--output", directory.path()}), 2, {"is a directory"});
  expect_end(millrace({"report", run, run, "--cost-model profile"}), 2, {"of one run"});
  expect_end(millrace("plan --format html --dataset cifar-10"), 2, {"--format html has no effect"});
  EXPECT_FALSE(fs::exists(run / "report.html"));
}

}  // namespace
}  // namespace millrace::test
