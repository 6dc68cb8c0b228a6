// SPDX-License-Identifier: Apache-2.0
//
// The acceptance tests of the IPU trainer, with its own command lines. Each test has a short form
// on a few small images, which always runs, and a whole form on CIFAR-10 with the original lengths,
// which runs with MILLRACE_LONG_TESTS.
#include <fmt/format.h>

#include "millrace.hpp"
#include "run_tables.hpp"
#include "tables.hpp"

namespace millrace::test {
namespace {

/// "days" also enables trainings that take one core longer than an afternoon.
bool whole_days() { return whole() && std::string(std::getenv("MILLRACE_LONG_TESTS")) == "days"; }

fs::path cifar10() { return shared_data() / "cifar-10-batches-bin"; }

/// A run of `train` in its own directory.
struct SeedRun {
  std::shared_ptr<TemporaryDirectory> place = std::make_shared<TemporaryDirectory>();
  ProcessResult result;
  fs::path run = place->path() / "run";
  [[nodiscard]] Table training() const { return Table(run / "training.csv"); }
  [[nodiscard]] Table validation() const { return Table(run / "validation.csv"); }
};

/// The short form uses one core, because other tests run in parallel; the original lines use all.
SeedRun train_seed(const Words& line, int code = 0) {
  SeedRun run;
  run.result =
      millrace("train --dialect ipu" + line + (whole() ? Words{} : "--threads-per-device 1") +
               Words{"--run-dir", run.run});
  EXPECT_EQ(run.result.code, code) << run.result.output;
  return run;
}

/// One of the trainer's command lines and what it gives, as the tables say.
struct Line {
  std::string name;
  std::string line;
  bool days = false;
  std::string less = {};     ///< shortens it
  std::string printed = {};  ///< parameters
  std::map<std::string, std::pair<double, double>> windows = {};
};
void PrintTo(const Line& line, std::ostream* out) { *out << line.name; }
std::string name_of(const testing::TestParamInfo<Line>& line) { return line.param.name; }

Line line_of(const std::string& text, const std::vector<std::string>& marks) {
  const std::size_t colon = text.find(": ");
  Line line{.name = text.substr(0, colon), .line = text.substr(colon + 2)};
  for (const std::string& mark : marks) {
    const std::string what = mark.substr(0, mark.find(' '));
    const std::string rest = mark.substr(std::min(mark.size(), what.size() + 1));
    if (what == "days")
      line.days = true;
    else if (what == "+")
      line.less = rest;
    else if (what == "prints")
      line.printed = rest;
    else
      std::istringstream(rest) >> line.windows[what].first >> line.windows[what].second;
  }
  return line;
}

std::vector<Line> lines_in(const char* table) {
  std::vector<Line> all;
  for (const Row& row : rows_of(table))
    for (const std::string& line : row.lines) all.push_back(line_of(line, row.marks));
  return all;
}

double value_of(const std::string& what, const SeedRun& run) {
  if (what == "first-rate") return run.training().first("lr");
  if (what == "last-rate") return run.training().last("lr");
  if (what == "trained") return run.training().last("train_acc_avg");
  if (what == "loss") return run.training().last("loss_batch");
  EXPECT_TRUE(what.starts_with("validated")) << what;
  return run.validation().last("val_acc", what == "validated-before" ? 2 : 1);
}

void expect_results(const Line& line, const SeedRun& run) {
  expect_in(run.result.output, {line.printed});
  (void)expect_sound_losses(run.run);
  for (const auto& [what, window] : line.windows) {
    const double value = value_of(what, run);
    EXPECT_TRUE(std::isfinite(value)) << what;
    if (!whole() && !what.ends_with("-rate")) continue;
    fmt::print("{} {:.6f}, asked {} to {}\n", what, value, window.first, window.second);
    EXPECT_GE(value, window.first * (1.0 - 1e-12)) << what;
    EXPECT_LE(value, window.second * (1.0 + 1e-12)) << what;
  }
}

class SeedTest : public testing::TestWithParam<Line> {
 protected:
  void SetUp() override {
    if (whole() && !fs::exists(cifar10()))
      GTEST_SKIP() << "the whole form needs CIFAR-10 in " << cifar10();
  }
};

class CifarLineTest : public SeedTest {};
INSTANTIATE_TEST_SUITE_P(Lines, CifarLineTest, testing::ValuesIn(lines_in("seed_cifar_lines.txt")),
                         name_of);
TEST_P(CifarLineTest, Trains) {
  const Line& line = GetParam();
  if (line.days && whole() && !whole_days())
    GTEST_SKIP() << "hours or half a day: MILLRACE_LONG_TESTS=days";
  expect_results(line, train_seed(Words{"--dataset cifar-10 --seed 1 --data-dir",
                                        whole() ? cifar10() : small_data()} +
                                  line.line.c_str() + (whole() ? "" : line.less.c_str())));
}

class SyntheticLineTest : public SeedTest {};
INSTANTIATE_TEST_SUITE_P(Lines, SyntheticLineTest,
                         testing::ValuesIn(lines_in("seed_synthetic_lines.txt")), name_of);
TEST_P(SyntheticLineTest, Trains) {
  const Line& line = GetParam();
  expect_results(line, train_seed("--synthetic-data --no-validation" + Words(line.line.c_str()) +
                                  (whole() ? "" : line.less.c_str())));
}

}  // namespace
}  // namespace millrace::test
