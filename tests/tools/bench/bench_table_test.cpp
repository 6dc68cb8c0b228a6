// SPDX-License-Identifier: Apache-2.0
//
// Each number of a table is checked against the runs in its JSON, by the rules of NVIDIA's guide.
#include "tools/bench/bench_table.hpp"

#include "core/text.hpp"
#include "tests/support/test.hpp"

namespace millrace::report {
namespace {

/// A run whose steps take the given milliseconds.
BenchRun run_of(std::int64_t batch, std::int64_t ranks, const std::string& precision,
                const std::vector<double>& milliseconds) {
  BenchRun run{.use = "training",
               .network = "resnet 50 on imagenet",
               .images = "synthetic images",
               .precision = precision,
               .batch_size = batch,
               .images_per_step = batch * ranks,
               .ranks = ranks,
               .threads = 1,
               .warmup_steps = 20,
               .step_seconds = {}};
  for (const double ms : milliseconds) run.step_seconds.push_back(1e-3 * ms);
  return run;
}

BenchRow row_of(const BenchRun& run) {
  return {.batch_size = run.batch_size, .ranks = run.ranks, .precision = run.precision, .run = run};
}

/// Medians of 100 and 250 ms on one rank, 125 and 200 ms on four.
BenchTable four_runs() {
  return {.machine = "a processor",
          .rows = {row_of(run_of(8, 1, "16.32", {100, 90, 130, 100, 110})),
                   row_of(run_of(8, 1, "32.32", {250, 240, 260})),
                   row_of(run_of(8, 4, "16.32", {125, 125})),
                   row_of(run_of(8, 4, "32.32", {200, 190, 210}))}};
}

TEST(BenchTableTest, LatenciesAreThoseOfTheSteps) {
  const Latency latency = latency_of(four_runs().rows[0].run->step_seconds);
  EXPECT_DOUBLE_EQ(latency.average, 0.106);
  EXPECT_DOUBLE_EQ(latency.p50, 0.100);
  EXPECT_DOUBLE_EQ(latency.p90, 0.122);  // numpy.quantile
  EXPECT_DOUBLE_EQ(latency.p95, 0.126);
  EXPECT_DOUBLE_EQ(latency.p99, 0.1292);
  EXPECT_DOUBLE_EQ(latency.p100, 0.130);
}

TEST(BenchTableTest, FiguresAreRatiosOfRates) {
  const std::vector<BenchFigures> figures = figures_of(four_runs());
  EXPECT_DOUBLE_EQ(*figures[0].images_per_second, 80.0);
  EXPECT_DOUBLE_EQ(*figures[1].images_per_second, 32.0);
  EXPECT_DOUBLE_EQ(*figures[2].images_per_second, 256.0);
  EXPECT_DOUBLE_EQ(*figures[3].images_per_second, 160.0);
  EXPECT_DOUBLE_EQ(*figures[0].speed_up, 2.5);
  EXPECT_DOUBLE_EQ(*figures[2].speed_up, 1.6);
  EXPECT_FALSE(figures[1].speed_up) << "32 bits are what others are compared with";
  EXPECT_DOUBLE_EQ(*figures[0].weak_scaling, 1.0);
  EXPECT_DOUBLE_EQ(*figures[2].weak_scaling, 3.2);
  EXPECT_DOUBLE_EQ(*figures[3].weak_scaling, 5.0);
  EXPECT_DOUBLE_EQ(*figures[2].efficiency, 0.8);
  EXPECT_DOUBLE_EQ(*figures[3].efficiency, 1.25);
}

// The guide's own rows: FP32 on a DGX-1 with 1, 4 and 8 GPUs.
TEST(BenchTableTest, AgreesWithTheGuide) {
  BenchTable table;
  for (const auto& [ranks, rate] : {std::pair{1, 364.9}, {4, 1419.4}, {8, 2778.5}})
    table.rows.push_back(row_of(run_of(128, ranks, "32.32", {1e3 * 128 * ranks / rate})));
  table.rows.push_back(row_of(run_of(128, 1, "16.32", {1e3 * 128 / 825.2})));
  const std::vector<BenchFigures> figures = figures_of(table);
  EXPECT_NEAR(*figures[1].weak_scaling, 3.89, 0.005);
  EXPECT_NEAR(*figures[2].weak_scaling, 7.61, 0.005);
  EXPECT_NEAR(*figures[3].speed_up, 2.26, 0.005);  // it prints 2.20
}

TEST(BenchTableTest, TextHasThePrecisionsSideBySide) {
  EXPECT_EQ(
      to_text(four_runs()),
      "Training of resnet 50 on imagenet; synthetic images\n"
      "a processor\n"
      "20 warm-up and 5 measured steps a run; img/s: images of a step over the median of its "
      "times\n"
      "\n"
      "batch  ranks  16.32 img/s  32.32 img/s  16.32 speed-up  16.32 weak scaling  32.32 weak "
      "scaling\n"
      "    8      1         80.0         32.0            2.50                1.00                "
      "1.00\n"
      "    8      4        256.0        160.0            1.60                3.20                "
      "5.00\n"
      "\n"
      "Time of a step in ms\n"
      "batch  ranks  precision  average    50 %    90 %    95 %    99 %   100 %\n"
      "    8      1      16.32   106.00  100.00  122.00  126.00  129.20  130.00\n"
      "    8      1      32.32   250.00  250.00  258.00  259.00  259.80  260.00\n"
      "    8      4      16.32   125.00  125.00  125.00  125.00  125.00  125.00\n"
      "    8      4      32.32   200.00  200.00  208.00  209.00  209.80  210.00\n");
}

TEST(BenchTableTest, CsvAndJsonHaveTheSameNumbers) {
  const BenchTable table = four_runs();
  const Json json = to_json(table);
  const std::vector<std::string> lines = split_list(to_csv(table), '\n');
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0],
            "mode,batch_size,ranks,precision,threads,warmup_steps,steps,images_per_second,speed_up,"
            "weak_scaling,efficiency,latency_average_ms,latency_p50_ms,latency_p90_ms,"
            "latency_p95_ms,latency_p99_ms,latency_p100_ms");
  EXPECT_EQ(lines[1], "training,8,1,16.32,1,20,5,80,2.5,1,1,106,100,122,126,129.2,130");
  EXPECT_EQ(lines[2], "training,8,1,32.32,1,20,3,32,,1,1,250,250,258,259,259.8,260");
  EXPECT_EQ(lines[3], "training,8,4,16.32,1,20,2,256,1.6,3.2,0.8,125,125,125,125,125,125");
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const Json& row = json.at("rows").items()[i];
    const BenchRun run = bench_run_of(row.at("run"));
    EXPECT_DOUBLE_EQ(row.at("images_per_second").as_double(), run.images_per_second());
    EXPECT_EQ(run.ranks, row.at("ranks").as_int64());
    EXPECT_EQ(run.precision, row.at("precision").text());
  }
}

TEST(BenchTableTest, ARunIsReadBackFromItsJson) {
  const BenchRun run = run_of(8, 2, "16.16", {125.0, 250.0});
  const BenchRun again = bench_run_of(Json::parse(to_json(run).dump()));
  EXPECT_EQ(again.network, run.network);
  EXPECT_EQ(again.warmup_steps, 20);
  ASSERT_EQ(again.step_seconds.size(), 2u);
  for (int i : {0, 1})
    EXPECT_DOUBLE_EQ(again.step_seconds[static_cast<std::size_t>(i)],
                     run.step_seconds[static_cast<std::size_t>(i)]);
  EXPECT_THROW((void)bench_run_of(Json::parse(R"({"mode": "training"})")), JsonError);
}

TEST(BenchTableTest, AFailedRunLeavesAGap) {
  BenchTable table = four_runs();
  table.rows[1].run.reset();
  table.rows[1].failure = "too large";
  test::expect_in(to_text(table), {"    8      1         80.0          N/A             N/A"});
  const std::vector<BenchFigures> figures = figures_of(table);
  EXPECT_FALSE(figures[0].speed_up);
  EXPECT_FALSE(figures[3].weak_scaling) << "its first row is missing";
  EXPECT_EQ(to_json(table).at("rows").items()[1].at("failure").text(), "too large");
  EXPECT_EQ(split_list(to_csv(table), '\n')[2], ",8,1,32.32,,,,,,,,,,,,,");
}

TEST(BenchTableTest, ShowsOnlyColumnsThatCompareSomething) {
  BenchTable table{
      .machine = "a processor",
      .rows = {row_of(run_of(1, 1, "16.32", {10})), row_of(run_of(2, 1, "16.32", {15}))}};
  const std::string text = to_text(table);
  test::expect_in(text, {"batch  ranks  16.32 img/s\n"
                         "    1      1        100.0\n"
                         "    2      1        133.3\n"});
}

}  // namespace
}  // namespace millrace::report
